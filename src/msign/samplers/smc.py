"""Adaptive tempered sequential Monte Carlo from the prior, in whitened coordinates.

Effective sample size, temperatures and resampling are BlackJAX's. Its `adaptive_tempered_smc` as a
whole is not used: it evaluates likelihoods of each particle anew that are known already, moves
particles at the temperature before, and does not adapt their steps.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from msign import checks
from msign.inference.moves import adapted, log_drift, proposed
from msign.inference.smc import temperatures_left
from msign.noise import generator, normal
from msign.problems import BudgetExceeded, InverseProblem, Simulator
from msign.samplers.base import Drawn, Sampler, require, require_derivative

WANTED = {"pcn": 0.25, "langevin": 0.57}  # acceptance that the angle of moves is adapted to
FIRST_ANGLE = 0.5
AT_ONCE = 1024  # particles that are moved at a time; the angle is adapted after each
LAST = 1e-6  # of temperature, which is not worth a step of its own


class Particles(NamedTuple):
    """N particles.

    Attributes:
        u: Whitened coordinates `(n, d)`.
        log_likelihood: `(n,)`.
        slope: Gradient of the log-likelihood `(n, d)`, or None.
        family: First draw from which each descends `(n,)`.
    """

    u: np.ndarray
    log_likelihood: np.ndarray
    slope: np.ndarray | None
    family: np.ndarray

    def rows(self, index: Any) -> "Particles":
        """Some of them."""
        return jax.tree.map(lambda a: a[index], self)


@dataclasses.dataclass(frozen=True)
class TemperedSMC(Sampler):
    """Particles from prior to posterior, moved by Crank-Nicolson or Langevin proposals.

    Attributes:
        moves: `langevin` (two simulations a move), `pcn` (one), or `auto`: Langevin where there is
            a derivative.
        particles: Number; None: as many as fields are wanted.
        sweeps: Moves of each particle per temperature; None: what the budget allows, the same at
            each of the temperatures that are still to be expected.
        ess: Part of the particles that the weights of the next temperature are worth.
    """

    moves: str = "auto"
    particles: int | None = None
    sweeps: int | None = None
    ess: float = 0.5

    def __post_init__(self) -> None:
        checks.one_of("moves", self.moves, ("auto", *WANTED))
        for name in ("particles", "sweeps"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), 1)
        if not 0 < checks.finite("ess", self.ess) < 1:
            raise ValueError(f"ess must be in (0, 1), got {self.ess!r}")

    def check(self, problem: InverseProblem) -> None:
        if self.moves == "langevin":
            require_derivative(problem, "Langevin moves")

    def draw(self, simulator: Simulator, scale: int, n: int, key: PRNGKeyArray) -> Drawn:
        from blackjax.smc import resampling

        moves = self.moves
        if moves == "auto":
            moves = "langevin" if simulator.problem.differentiable else "pcn"
        count = max(n, self.particles or n)
        cost = count * (2 if moves == "langevin" else 1)
        require(simulator, 3 * cost, f"SMC with {count} particles")
        mover = _Mover(simulator, scale, moves)
        dim = simulator.problem.priors[scale - 1].lattice.dim
        particles = mover.evaluated(normal(jr.fold_in(key, 0), (count, dim)), np.arange(count))
        t, log_z, variance, steps = 0.0, 0.0, 0.0, list[dict[str, float]]()
        while t < 1:
            before, key = t, jr.fold_in(key, 1)
            t = self._next_temperature(particles.log_likelihood, t)
            step = (t - before) * particles.log_likelihood
            weights = np.exp(step - step.max())
            log_z += float(step.max() + np.log(weights.mean()))
            variance += float(weights.var() / weights.mean() ** 2 / count)
            shares = jnp.asarray(weights / weights.sum())
            index = np.asarray(resampling.systematic(jr.fold_in(key, 0), shares, count))
            particles = particles.rows(index)
            sweeps = self.sweeps
            if sweeps is None:
                coming = 1 + temperatures_left(before, t)
                sweeps = max(1, simulator.left // cost // coming)
            if sweeps * cost > simulator.left:
                raise BudgetExceeded(
                    f"the budget of {simulator.budget} forward simulations ends at temperature "
                    f"{t:.3g}: SMC needs more, or fewer than {count} particles"
                )
            for k in range(sweeps):
                particles = mover.swept(particles, t, jr.fold_in(jr.fold_in(key, 2), k))
            steps.append({"temperature": t, "sweeps": sweeps, "acceptance": mover.acceptance})
        kept = generator(jr.fold_in(key, 3)).permutation(count)[:n]
        information = {
            "moves": moves,
            "particles": count,
            "temperatures": len(steps),
            "steps": steps,
            "acceptance": float(np.mean([s["acceptance"] for s in steps])),
            "families": len(np.unique(particles.family)),
            "log_evidence_stderr": variance**0.5,
        }
        particles = particles.rows(kept)
        return Drawn(particles.u, information, family=particles.family, log_evidence=log_z)

    def _next_temperature(self, log_likelihood: np.ndarray, t: float) -> float:
        top = log_likelihood.max()
        if not np.isfinite(top):
            raise RuntimeError(
                "no simulation of the prior's draws succeeded: there is no posterior"
            )
        rise = float(_rise()(jnp.asarray(log_likelihood - top), self.ess, 1 - t))
        return 1.0 if not rise < 1 - t - LAST else t + rise


class _Mover:
    """Moves of all particles, whose angle follows the acceptance."""

    def __init__(self, simulator: Simulator, scale: int, moves: str):
        self.simulator, self.scale = simulator, scale
        self.gradient, self.wanted = moves == "langevin", WANTED[moves]
        self.angle, self.acceptance = FIRST_ANGLE, 1.0

    def evaluated(self, u: np.ndarray, family: np.ndarray) -> Particles:
        """Particles at places `(n, d)`."""
        found = self.simulator.evaluate(u, self.scale, self.gradient)
        slope = None if found.gradient is None else found.gradient.astype(u.dtype)
        return Particles(u, found.log_likelihood, slope, family)

    def swept(self, particles: Particles, t: float, key: PRNGKeyArray) -> Particles:
        """Every particle after one proposal at temperature t."""
        parts, rates = [], []
        for i, start in enumerate(range(0, len(particles.u), AT_ONCE)):
            old = particles.rows(slice(start, start + AT_ONCE))
            part, rate = self._moved(old, t, generator(jr.fold_in(key, i)))
            parts.append(part)
            rates.append(rate)
            self.angle = adapted(self.angle, rate, self.wanted)
        self.acceptance = float(np.mean(rates))
        return jax.tree.map(lambda *a: np.concatenate(a), *parts)

    def _moved(self, old: Particles, t: float, rng: np.random.Generator) -> tuple[Particles, float]:
        slope = None if old.slope is None else t * old.slope
        u = proposed(old.u, slope, rng.standard_normal(old.u.shape, old.u.dtype), self.angle)
        with self.simulator.rejecting():
            new = self.evaluated(u, old.family)
        back = None if new.slope is None else t * new.slope
        log_chance = t * (new.log_likelihood - old.log_likelihood)
        log_chance = log_chance + log_drift(new.u, old.u, back, self.angle)
        log_chance = log_chance - log_drift(old.u, new.u, slope, self.angle)
        chance = np.exp(np.minimum(np.nan_to_num(log_chance, nan=-np.inf), 0.0))
        accept = rng.uniform(size=len(chance)) < chance
        kept = jax.tree.map(
            lambda a, b: np.where(accept.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old
        )
        return kept, float(chance.mean())


@functools.cache
def _rise() -> Any:
    """How far the temperature may rise so that weights are worth a part of the particles."""
    from blackjax.smc import ess, solver

    return jax.jit(
        lambda l, part, most: ess.ess_solver(lambda l: l, l, part, most, solver.dichotomy)
    )
