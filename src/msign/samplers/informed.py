"""Tempered SMC from the prior with the moves of `posterior.refine`: in the particles' own frame.

Proposals are made in coordinates in which particles have mean zero and unit covariance along the
directions that data determine, so that one stiff direction does not make small steps of all.
"""

import dataclasses

import numpy as np
from jaxtyping import PRNGKeyArray

from msign import checks
from msign.inference import smc
from msign.inference.config import FitConfig
from msign.inference.files import prior_network
from msign.noise import generator
from msign.problems import InverseProblem, Simulator
from msign.samplers.base import Drawn, Sampler, require
from msign.variables import draw


@dataclasses.dataclass(frozen=True)
class InformedSMC(Sampler):
    """Sequential Monte Carlo of the package itself, from the prior instead of a trained flow.

    Moves are Langevin's where there is a derivative, else Crank-Nicolson's.

    Attributes:
        particles: Number; None: as many as fields are wanted.
        correlation: What moves at a temperature leave of the log-likelihoods before them.
        sweeps: Most moves of each particle per temperature.
    """

    particles: int | None = None
    correlation: float = 0.1
    sweeps: int = 200

    def __post_init__(self) -> None:
        if self.particles is not None:
            checks.integer("particles", self.particles, 2)

    def check(self, problem: InverseProblem) -> None:
        """Any problem will do."""

    def draw(self, simulator: Simulator, scale: int, n: int, key: PRNGKeyArray) -> Drawn:
        problem = simulator.problem
        variables = prior_network(problem, FitConfig()).cut(scale).variables(scale)
        options = smc.SMC(
            moves="langevin" if problem.differentiable else "pcn",
            particles=max(n, self.particles or n),
            correlation=self.correlation,
            sweeps=self.sweeps,
        )
        require(simulator, 3 * options.cost, f"SMC with {options.particles} particles")
        sampler = smc.Sampler(variables, scale, simulator, options, key)
        state = sampler.start()
        while state.temperature < 1:
            state = sampler.next(state)
        count = options.particles or n
        kept = generator(key).permutation(count)[:n]
        u = np.concatenate(
            [
                draw(variables, state.particles.z[kept][rows])[0]
                for rows in smc.row_parts(n, variables.dim)
            ]
        )
        information = {
            "moves": options.moves,
            "particles": count,
            "temperatures": len(state.steps),
            "acceptance": float(np.mean([s["acceptance"] for s in state.steps])),
            "correlation": float(max(s["correlation"] for s in state.steps)),
            "families": len(np.unique(state.particles.family)),
        }
        family = state.particles.family[kept]
        return Drawn(u, information, family=family, log_evidence=state.log_evidence)
