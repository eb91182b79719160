"""Adam as the stages use it, and running averages of weights."""

import functools

import jax
import optax
from jaxtyping import PyTree

from msign.inference.config import FitConfig


def optimiser(config: FitConfig, size: int) -> optax.GradientTransformation:
    """Adam with clipped gradients; a step that is not finite is skipped."""
    rate = config.learning_rate or (5e-3 if size <= 4 else 2e-3)
    return _optimiser(rate, config.clip_norm)


@functools.cache
def _optimiser(rate: float, clip_norm: float) -> optax.GradientTransformation:
    adam = optax.chain(optax.clip_by_global_norm(clip_norm), optax.adam(rate))
    return optax.apply_if_finite(adam, max_consecutive_errors=1000)


def running_average(average: PyTree, params: PyTree, decay: float) -> PyTree:
    """Running average of weights; the weights themselves for a decay of zero."""
    return jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)
