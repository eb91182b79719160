"""Gradient descent as every kind of training here uses it: what is trained, Adam, its schedule."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import optax
import paramax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from msign.devices import copied_here

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
    loss: Callable[[PyTree, PyTree], Array],
    params: PyTree,
    inputs: PyTree,
    learning_rate: Array,
    clip_norm: float,
) -> tuple[PyTree, Array]:
    """Parameters after a step of Adam with each of the inputs (first axis), for compiled code.

    Returns the mean loss of the last tenth of the steps as well. Parameters are one vector on the
    way: updated by a few operations, not by a few for each array.
    """
    steps = len(jax.tree.leaves(inputs)[0])
    optimiser, rate = adam(clip_norm), schedule(steps)
    flat, unravel = ravel_pytree(params)

    def step(carry: tuple[Any, ...], given: PyTree) -> tuple[tuple[Any, ...], Array]:
        flat, state, k = carry
        value, gradient = jax.value_and_grad(lambda flat: loss(unravel(flat), given))(flat)
        flat, state = adam_step(optimiser, flat, gradient, state, learning_rate * rate(k))
        return (flat, state, k + 1), value

    (flat, _, _), values = jax.lax.scan(step, (flat, optimiser.init(flat), 0), inputs)
    return copied_here(unravel(flat)), values[-max(1, steps // 10) :].mean()


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
