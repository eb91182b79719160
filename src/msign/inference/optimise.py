"""Adam as the stages use it, and running averages of weights."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from msign.inference.config import FitConfig
from msign.inference.models import Core, NetworkCore

WARM_UP = 40  # steps of Adam on a network before the full step size


def optimiser(config: FitConfig, core: Core) -> optax.GradientTransformation:
    """Adam with clipped gradients; a step that is not finite is skipped.

    On networks the step size rises from zero: the first steps of Adam move every parameter by the
    full step, whatever its gradient, and would spoil what coarser stages have learned.
    """
    if isinstance(core, NetworkCore):
        rate = config.network_step(core.scale, len(core.network.lattices))
        return _optimiser(rate, config.clip_norm, WARM_UP)
    return _optimiser(config.flow_step(core.size), config.clip_norm, 0)


@functools.cache
def _optimiser(rate: float, clip_norm: float, warm_up: int) -> optax.GradientTransformation:
    schedule = optax.linear_schedule(0.0, rate, warm_up) if warm_up else rate
    adam = optax.chain(optax.clip_by_global_norm(clip_norm), optax.adam(schedule))
    return optax.apply_if_finite(adam, max_consecutive_errors=1000)


def running_average(average: PyTree, params: PyTree, decay: float) -> PyTree:
    """Running average of weights; the weights themselves for a decay of zero."""
    return jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)


def descend(
    loss: Callable[[PyTree, PRNGKeyArray], Array],
    params: PyTree,
    adam: optax.GradientTransformation,
    rate: Array,
    key: PRNGKeyArray,
    steps: int,
    averaging: float,
) -> tuple[PyTree, Array]:
    """Adam with a step size that falls from `rate` times its own to zero, for compiled code.

    Each step has its own key. Returns averaged parameters and the mean loss of the last tenth.
    """

    def step(carry: tuple[Any, ...], key: PRNGKeyArray) -> tuple[tuple[Any, ...], Array]:
        params, average, state, k = carry
        value, gradient = jax.value_and_grad(loss)(params, key)
        change, state = adam.update(gradient, state, params)
        decay = 0.5 * rate * (1 + jnp.cos(jnp.pi * k / steps))
        params = eqx.apply_updates(params, jax.tree.map(lambda c: decay * c, change))
        return (params, running_average(average, params, averaging), state, k + 1), value

    start = (params, params, adam.init(params), 0)
    (_, average, _, _), values = jax.lax.scan(step, start, jr.split(key, steps))
    return average, values[-max(1, steps // 10) :].mean()
