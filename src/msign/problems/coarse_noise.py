"""The likelihood of each scale: coarse ones have noise that their discretisation error widens."""

from typing import NamedTuple

import jax
import jax.random as jr
import numpy as np

from msign.noise import normal, on_device
from msign.problems.data_likelihood import DataLikelihood, Inflation
from msign.problems.forward_maps import ForwardMaps

INFLATION_SEED = 20210  # of the prior draws that estimate the discretisation error


class BothPlaces(NamedTuple):
    """A likelihood as NumPy arrays, in double precision, and as compiled code takes it."""

    host: DataLikelihood
    device: DataLikelihood


class CoarseNoise:
    """Discretisation errors, estimated once by simulations of prior draws at all scales.

    Args:
        maps: The forward maps of the run, which count these simulations too.
    """

    def __init__(self, maps: ForwardMaps):
        self.maps, self.problem = maps, maps.problem
        self._inflation: dict[int, Inflation | None] = {}
        self._likelihoods: dict[int, BothPlaces] = {}

    def cost(self, scale: int) -> int:
        """Simulations that this scale's noise still costs; saved counts have them in them."""
        known = self._inflation or self.maps.count.restored
        if known or scale == self.problem.scales:
            return 0
        return self.problem.inflate * self.problem.scales

    def inflation(self, scale: int) -> Inflation | None:
        """The estimated discretisation error of a coarse scale, if the problem asks for it.

        None, too, where the simulations of all prior draws but one were rejected.
        """
        if not self.problem.inflate or self.problem.at_scale(scale).scale == self.problem.scales:
            return None
        self.prepare()
        return self._inflation[scale]

    def prepare(self) -> None:
        """Estimate the discretisation errors now, if the problem asks for it."""
        problem, count = self.problem, self.maps.count
        if not problem.inflate or problem.scales == 1 or self._inflation:
            return
        failures = count.failures
        self.maps.spend(self.cost(1))
        assert problem.noise_cov is not None  # or the problem would not have its noise inflated
        u = normal(jr.key(INFLATION_SEED), (problem.inflate, problem.dim))
        *coarse, fine = self.maps.observe_everywhere(u, range(1, problem.scales + 1))
        for scale, observed in enumerate(coarse, start=1):
            self._inflation[scale] = _estimated(fine - observed, problem.noise_cov)
        if count.restored:
            count.failures = failures  # they have been counted before

    def likelihood(self, scale: int) -> BothPlaces:
        """The likelihood of a scale as a function of features."""
        if scale not in self._likelihoods:
            problem, error = self.problem, self.inflation(scale)
            host = problem.likelihood if error is None else problem.inflated_likelihood(error)
            device = host
            if problem.at_scale(scale).traceable:
                device = jax.tree.map(on_device, host)
            self._likelihoods[scale] = BothPlaces(host, device)
        return self._likelihoods[scale]


def _estimated(error: np.ndarray, noise_cov: np.ndarray) -> Inflation | None:
    """From errors of simulations `(n, m)`, without those that were rejected."""
    error = error[np.isfinite(error).all(1)]
    return Inflation.estimated(error, noise_cov) if len(error) > 1 else None
