"""Fresh fields of a model, simulated a part at a time so that memory does not grow with them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from msign.devices import fields_at_once
from msign.noise import MANY, ahead, normal, normal_parts, parts
from msign.problems.simulator import Simulator
from msign.variables import VALUES_AT_ONCE, Variables, draw, moved


class Simulated(NamedTuple):
    """N fields of a model, simulated.

    Attributes:
        s: Their variables `(n, m)`.
        log_ratio: The model's log-density minus log prior `(n,)`.
        log_likelihood: `(n,)`.
        features: What their likelihoods are functions of `(n, observations)`.
    """

    s: np.ndarray
    log_ratio: np.ndarray
    log_likelihood: np.ndarray
    features: np.ndarray

    def joined(self, other: "Simulated") -> "Simulated":
        """These fields and others of the same model."""
        return Simulated(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))

    @property
    def log_weights(self) -> np.ndarray:
        """Log q - log p, up to the evidence."""
        return self.log_likelihood - self.log_ratio


class Drawn(NamedTuple):
    """Fields of a model: whitened coordinates, variables, and log p - log prior of each."""

    u: np.ndarray
    s: np.ndarray
    log_ratio: np.ndarray


def simulate(
    simulator: Simulator, model: Variables, scale: int, key: PRNGKeyArray, n: int
) -> Simulated:
    """Draw n fields and evaluate the forward map on each."""
    found, size = [], fields_at_once(model.dim, simulator.problem.traceable)
    for u, s, log_ratio in drawn_parts(model, key, n, size):
        own = simulator.evaluate(u, scale)
        found.append((s, log_ratio.astype(np.float64), own.log_likelihood, own.features))
    return Simulated(*(np.concatenate(column) for column in zip(*found, strict=True)))


def drawn_parts(model: Variables, key: PRNGKeyArray, n: int, size: int) -> Iterator[Drawn]:
    """N fields of a model in parts of `size`, each made while the one before is used.

    Where a model moves a few directions, its variables are drawn first, for all fields; a part then
    is noise in which the coordinates along these directions are replaced.
    """
    noise, basis = normal_parts(jr.fold_in(key, 0), n, model.dim, size), model.directions
    if basis is None:
        yield from (Drawn(*draw(model, part)) for part in ahead(noise))
        return
    s, log_ratio = moved(model, normal(jr.fold_in(key, 1), (n, model.size)))
    # Threads of NumPy's products wait for more of them on a core that others could use.
    put = _put_compiled if n * model.dim >= MANY else _put

    def placed(part: np.ndarray, own: slice) -> Drawn:
        return Drawn(np.asarray(put(part, s[own], basis)), s[own], log_ratio[own])

    yield from ahead(map(placed, noise, parts(n, size)))


def _put(noise: Any, s: Any, basis: Any) -> Any:
    """Noise `(n, d)` with coordinates `(n, m)` along the columns of a basis in place of its own."""
    return noise + (s - noise @ basis) @ basis.T


_put_compiled = jax.jit(_put)


def part_size(dim: int) -> int:
    """How many fields of `dim` values are held at once."""
    return max(1, VALUES_AT_ONCE // dim)
