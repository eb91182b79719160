"""Gradient descent as every kind of training here uses it: what is trained, Adam, its schedule."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.random as jr
import optax
import paramax
from jaxtyping import Array, PRNGKeyArray, PyTree

WARM_UP = 0.1  # of the steps, in which Adam does not yet know the size of its gradients
T = TypeVar("T")


def split_trainable(module: T) -> tuple[T, T]:
    """A module with its trainable arrays alone, and with all the rest."""
    return eqx.partition(module, eqx.is_inexact_array, is_leaf=is_fixed)


def combine(trainable: T, rest: T) -> T:
    """Inverse of `split_trainable`."""
    return eqx.combine(trainable, rest, is_leaf=is_fixed)


def is_fixed(node: object) -> bool:
    """Whether a node of a module is marked as not to be trained."""
    return isinstance(node, paramax.NonTrainable)


@functools.cache
def adam(clip_norm: float, schedule: Any = 1.0) -> optax.GradientTransformation:
    """Adam with clipped gradients and a learning rate; a step that is not finite is skipped."""
    chain = optax.chain(optax.clip_by_global_norm(clip_norm), optax.adam(schedule))
    return optax.apply_if_finite(chain, max_consecutive_errors=1000)


def schedule(steps: int) -> optax.Schedule:
    """Learning rate relative to the highest: up from zero, down by a cosine."""
    warm = max(1, round(WARM_UP * steps))
    return optax.warmup_cosine_decay_schedule(1 / warm, 1.0, warm, max(steps, warm + 1))


def running_average(average: PyTree, params: PyTree, decay: Any) -> PyTree:
    """Running average of weights; the weights themselves for a decay of zero."""
    return jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)


def descend(
    loss: Callable[[PyTree, PRNGKeyArray], Array],
    params: PyTree,
    learning_rate: Array,
    key: PRNGKeyArray,
    steps: int,
    clip_norm: float,
) -> tuple[PyTree, Array]:
    """Parameters after some steps of Adam, for compiled code; each step has its own key.

    Returns the mean loss of the last tenth of the steps as well.
    """
    optimiser, rate = adam(clip_norm), schedule(steps)

    def step(carry: tuple[Any, ...], key: PRNGKeyArray) -> tuple[tuple[Any, ...], Array]:
        params, state, k = carry
        value, gradient = jax.value_and_grad(loss)(params, key)
        params, state = adam_step(optimiser, params, gradient, state, learning_rate * rate(k))
        return (params, state, k + 1), value

    start = (params, optimiser.init(params), 0)
    (params, _, _), values = jax.lax.scan(step, start, jr.split(key, steps))
    return params, values[-max(1, steps // 10) :].mean()


def adam_step(
    optimiser: optax.GradientTransformation,
    params: PyTree,
    gradient: PyTree,
    state: PyTree,
    rate: Array,
) -> tuple[PyTree, PyTree]:
    """Parameters and state of an optimiser after one step with this learning rate."""
    change, state = optimiser.update(gradient, state, params)
    return eqx.apply_updates(params, jax.tree.map(lambda c: rate * c, change)), state
