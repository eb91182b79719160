"""The direction along which a posterior's modes lie apart, and its marginal there."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from sklearn.cluster import KMeans

from msign.diagnostics.judge import Marginal
from msign.experiments.capture import leading_eigenvectors
from msign.priors.spectral import SpectralPrior
from msign.problems import InverseProblem
from msign.samplers import InformedSMC

EXACT_SAMPLES = 20_000
PARTICLES = (200, 4000)  # of the reference, fewest and most
FEWEST_FAMILIES = 100  # with 36 the modes of the hard elliptic problem were 0.38 wide, not 0.66
SWEEPS_PAID = 100  # moves of every particle that its budget should pay for
ROUNDING = 1e-3  # of values whose signs a symmetry changes
SEED = 90_001  # of references, which no run should share


class Critical(NamedTuple):
    """Where a posterior of one scale is looked at.

    Attributes:
        direction: In whitened coordinates `(d,)`.
        marginal: What it should be there.
        source: What that is known from.
    """

    direction: np.ndarray
    marginal: Marginal
    source: str

    def values(self, u: np.ndarray) -> np.ndarray:
        """Of fields in whitened coordinates."""
        return np.asarray(u, np.float64) @ self.direction

    def as_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        named = {**self._asdict(), "marginal": self.marginal._asdict()}
        return {**named, "shares": self.marginal.shares}

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> "Critical":
        """Inverse of `as_json`."""
        marginal = Marginal(**{**kept["marginal"], "values": np.array(kept["marginal"]["values"])})
        return cls(np.array(kept["direction"]), marginal, kept["source"])


def critical_of(problem: InverseProblem, scale: int, budget: int) -> Critical:
    """Of a scale: by exact samples, else by informed SMC with a budget of its own.

    A known symmetry of the posterior is imposed on the latter; where it changes the sign along
    the direction, the modes are the two halves.
    """
    if problem.reference is not None:
        u = problem.reference.sample(jr.key(SEED), EXACT_SAMPLES, scale)
        d, index = u.shape[1], problem.reference.critical_index(scale)
        direction = np.zeros(d)
        direction[index] = problem.reference.critical_values(np.eye(d)[index], scale)
        return Critical(direction, Marginal.of(u @ direction), "exact samples")
    particles = int(np.clip(budget // SWEEPS_PAID, *PARTICLES))
    found = InformedSMC().run(problem, scale, budget, particles, SEED)
    families = found.information["families"]
    source = f"informed SMC, {found.nfs} simulations, {families} families"
    if families < FEWEST_FAMILIES:
        source += " (NOT RELIABLE: give it a larger --reference)"
    if problem.symmetry is None:
        direction = separating_direction(problem, scale, found.u)
        return Critical(direction, Marginal.of(found.u @ direction), source)
    prior = problem.priors[scale - 1]
    mirrored = jnp.asarray(np.ascontiguousarray(problem.symmetry(found.fields)))
    both = np.concatenate([found.u, np.asarray(prior.whiten(mirrored))])
    direction = separating_direction(problem, scale, both)
    values = both @ direction
    first, second = np.split(values, 2)
    turned = np.abs(first + second).max() < ROUNDING * np.abs(values).max()
    marginal = Marginal.of(values, middle=0.0 if turned else None)
    return Critical(direction, marginal, f"{source}, with mirror images")


def separating_direction(problem: InverseProblem, scale: int, u: np.ndarray) -> np.ndarray:
    """The leading eigenvector of the prior along which two clusters of samples lie apart most.

    Where the prior has none, the line through the clusters' means.
    """
    prior = problem.priors[scale - 1]
    spectral = isinstance(prior, SpectralPrior)
    seen = u[:, leading_eigenvectors(prior)] if spectral else u
    labels = KMeans(2, n_init=4, random_state=0).fit_predict(seen)
    apart = seen[labels == 1].mean(0) - seen[labels == 0].mean(0)
    direction = np.zeros(u.shape[1])
    if spectral:
        best = np.argmax(np.abs(apart) / np.maximum(seen.std(0), 1e-12))
        direction[leading_eigenvectors(prior)[best]] = 1.0
    else:
        direction[:] = apart / max(float(np.linalg.norm(apart)), 1e-12)
    return direction
