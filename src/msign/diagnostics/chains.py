"""Long Markov chains of an inverse problem: a reference where no exact samples exist.

Proposals are split (Cui, Law and Marzouk 2016): along the informed directions a Langevin step,
preconditioned by a covariance; in all others a Crank-Nicolson step that keeps the prior. Their
acceptance does not fall as the lattice is refined.
"""

from typing import NamedTuple

import numpy as np

from msign import checks
from msign.problems import InverseProblem, Simulator

WANTED = 0.57  # acceptance that the step size is tuned to
TUNED = 0.05  # how fast, while burning in


class Chains(NamedTuple):
    """States of n chains.

    Attributes:
        u: Whitened coordinates `(kept, n, d)`.
        acceptance: Fraction of accepted proposals after burn-in.
        step: Step size along the informed directions, in standard deviations.
    """

    u: np.ndarray
    acceptance: float
    step: float


class _State(NamedTuple):
    u: np.ndarray
    log_likelihood: np.ndarray
    slope: np.ndarray  # of the log-posterior along the informed directions


def run_chains(
    problem: InverseProblem,
    start: np.ndarray,
    basis: np.ndarray,
    covariance: np.ndarray,
    steps: int,
    burn_in: int = 300,
    every: int = 10,
    others: float = 0.5,
    seed: int = 0,
    scale: int | None = None,
    simulator: Simulator | None = None,
) -> Chains:
    """Exact chains of the posterior; two simulations per chain and step.

    Args:
        problem: With a derivative.
        start: Whitened coordinates `(n, d)` where the chains start.
        basis: Orthonormal informed directions `(d, r)`.
        covariance: `(r, r)`, roughly that of the posterior along them (it tunes, no more).
        steps: After burn-in.
        burn_in: Steps first, during which the step size is tuned.
        every: Keep one state of this many.
        others: Size of the Crank-Nicolson step in all other directions, in (0, 1].
        seed: Of the chains.
        scale: Of the fields; default the finest.
        simulator: Of the problem, to count simulations; default one of its own.
    """
    scale = problem.scales if scale is None else checks.integer("scale", scale, 1, problem.scales)
    for name, value in (("steps", steps), ("every", every)):
        checks.integer(name, value, 1)
    if not 0 < checks.finite("others", others) <= 1:
        raise ValueError(f"others must be in (0, 1], got {others!r}")
    d = problem.priors[scale - 1].lattice.dim
    checks.shape("start", start.shape, (d,))
    simulator = Simulator(problem) if simulator is None else simulator
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(covariance)
    keeps, step, kept, accepted = np.sqrt(1 - others**2), 0.5, [], 0.0

    def state(u: np.ndarray) -> _State:
        found = simulator.evaluate(u, scale, gradient=True)
        slope = np.asarray(found.gradient, np.float64) @ basis - u @ basis
        return _State(u, found.log_likelihood, slope)

    def mean(now: _State) -> np.ndarray:
        return now.u @ basis + 0.5 * step**2 * now.slope @ covariance

    def log_proposal(to: _State, by: _State) -> np.ndarray:
        away = np.linalg.solve(root, (to.u @ basis - mean(by)).T) / step
        return -0.5 * np.sum(away**2, axis=0)

    now = state(np.asarray(start, np.float64))
    for k in range(burn_in + steps):
        noise = rng.normal(size=now.u.shape)
        informed = mean(now) + step * rng.normal(size=(len(now.u), len(root))) @ root.T
        rest = keeps * now.u + others * noise
        proposal = state(rest + (informed - rest @ basis) @ basis.T)
        # The rest keeps its prior: only the informed part of the prior enters the ratio.
        prior = [0.5 * np.sum((s.u @ basis) ** 2, axis=1) for s in (now, proposal)]
        ratio = proposal.log_likelihood - now.log_likelihood + prior[0] - prior[1]
        ratio += log_proposal(now, proposal) - log_proposal(proposal, now)
        probability = np.exp(np.minimum(ratio, 0.0))
        accept = rng.uniform(size=len(ratio)) < probability
        now = _State(
            *(
                np.where(accept.reshape(-1, *[1] * (a.ndim - 1)), a, b)
                for a, b in zip(proposal, now, strict=True)
            )
        )
        if k < burn_in:
            step *= np.exp(TUNED * (probability.mean() - WANTED))
            continue
        accepted += accept.mean() / steps
        if (k - burn_in + 1) % every == 0:
            kept.append(now.u.astype(np.float32))
    return Chains(np.stack(kept), float(accepted), float(step))
