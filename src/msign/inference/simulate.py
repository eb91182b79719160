"""Fresh fields of a model, simulated a part at a time so that memory does not grow with them."""

from typing import NamedTuple

import numpy as np
from jaxtyping import PRNGKeyArray

from msign.noise import normal_parts
from msign.problems.simulator import Simulator
from msign.variables import VALUES_AT_ONCE, Variables, draw


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

    @property
    def log_weights(self) -> np.ndarray:
        """Log q - log p, up to the evidence."""
        return self.log_likelihood - self.log_ratio


def simulate(
    simulator: Simulator, model: Variables, scale: int, key: PRNGKeyArray, n: int
) -> Simulated:
    """Draw n fields and evaluate the forward map on each."""
    parts = []
    for noise in normal_parts(key, n, model.dim, part_size(model.dim)):
        u, s, log_ratio = draw(model, noise)
        found = simulator.evaluate(u, scale)
        parts.append((s, log_ratio.astype(np.float64), found.log_likelihood, found.features))
    return Simulated(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def part_size(dim: int) -> int:
    """How many fields of `dim` values are held at once."""
    return max(1, VALUES_AT_ONCE // dim)
