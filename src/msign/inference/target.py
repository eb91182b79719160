"""The target of a stage: the posterior, tempered while the model is still far from it.

    log q_T = (1 - T) log p_start + T log q,

p_start the model with which the stage starts (q~_l of Algorithm 1), q the posterior of the scale.
All methods bridge by this one definition.
"""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PyTree

from msign.weights import highest_power

WORTHLESS = 1e4  # nats below the best likelihood: no weight is left, and numbers stay finite


class Tempered(eqx.Module):
    """The tempered target of temperature T in [0, 1]; 1 is the posterior itself."""

    temperature: float | Array

    def log_ratio(self, log_likelihood: PyTree, start: PyTree) -> PyTree:
        """Log target - log prior, of values or gradients of log-likelihood and p_start/prior."""
        t = self.temperature
        return jax.tree.map(lambda a, b: t * a + (1 - t) * b, log_likelihood, start)

    def raised(
        self,
        log_likelihood: np.ndarray,
        start: np.ndarray,
        proposal: np.ndarray,
        effective: float,
    ) -> "Tempered":
        """The target of the highest temperature whose weights are worth `effective` fields.

        `proposal` is log density - log prior of what drew the fields. Never lower than now.
        """

        def log_weights(t: float) -> np.ndarray:
            return Tempered(t).log_ratio(log_likelihood, start) - proposal

        return Tempered(highest_power(log_weights, effective, float(self.temperature)))


def bounded_below(log_likelihood: np.ndarray) -> np.ndarray:
    """Log-likelihoods of which no one, rejected simulations included, is minus infinity."""
    finite = log_likelihood[np.isfinite(log_likelihood)]
    best = finite.max() if finite.size else 0.0
    return np.maximum(log_likelihood, best - WORTHLESS)
