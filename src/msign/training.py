"""Gradient descent as every kind of training here uses it: what is trained, its steps, a schedule.

Networks on whole fields, and what learns from a pool, follow Adam. What learns from an emulator,
flows of many variables whose weights are stacks of matrices, follows Muon: momentum with all
singular values made equal, so that directions of small gradients move as well.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import optax
import optax.contrib
import paramax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from msign.devices import copied_here

ADAM_RMS = 0.2  # of a step of Adam, for each parameter, as it is known of many networks
WARM_UP = 0.1  # of the steps, in which Adam does not yet know the size of its gradients
T = TypeVar("T")
_MATRIX = optax.contrib.MuonDimensionNumbers(reduction_axis=-1, output_axis=-2)


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


@functools.cache
def muon(clip_norm: float) -> optax.GradientTransformation:
    """Muon for stacks of matrices, Adam for all else, at one learning rate; gradients clipped.

    Steps of Muon have the root mean square of Adam's (`ADAM_RMS`).
    """

    def matrices(params: PyTree) -> PyTree:
        return jax.tree.map(lambda a: _MATRIX if a.ndim == 3 else None, params)

    chain = optax.chain(
        optax.clip_by_global_norm(clip_norm),
        optax.contrib.muon(1.0, consistent_rms=ADAM_RMS, muon_weight_dimension_numbers=matrices),
    )
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
    optimiser: optax.GradientTransformation,
) -> tuple[PyTree, Array]:
    """Parameters after an optimiser's step with each of the inputs (first axis), for compiled code.

    Returns the mean loss of the last tenth of the steps as well. What is no stack of matrices is
    one vector on the way: updated by a few operations, not by a few for each array.
    """
    steps = len(jax.tree.leaves(inputs)[0])
    rate = schedule(steps)
    parts, joined = _stacks_and_rest(params)

    def step(carry: tuple[Any, ...], given: PyTree) -> tuple[tuple[Any, ...], Array]:
        parts, state, k = carry
        value, gradient = jax.value_and_grad(lambda parts: loss(joined(parts), given))(parts)
        parts, state = optimiser_step(optimiser, parts, gradient, state, learning_rate * rate(k))
        return (parts, state, k + 1), value

    (parts, _, _), values = jax.lax.scan(step, (parts, optimiser.init(parts), 0), inputs)
    return copied_here(joined(parts)), values[-max(1, steps // 10) :].mean()


def _stacks_and_rest(params: PyTree) -> tuple[tuple[list[Array], Array], Callable[..., PyTree]]:
    """Parameters as stacks of matrices and one vector of all the rest, and the way back."""
    leaves, structure = jax.tree.flatten(params)
    stacked = [a.ndim == 3 for a in leaves]
    stacks = [a for a, own in zip(leaves, stacked, strict=True) if own]
    vector, unravel = ravel_pytree([a for a, own in zip(leaves, stacked, strict=True) if not own])

    def joined(parts: tuple[list[Array], Array]) -> PyTree:
        stacks, rest = iter(parts[0]), iter(unravel(parts[1]))
        return jax.tree.unflatten(structure, [next(stacks if own else rest) for own in stacked])

    return (stacks, vector), joined


def optimiser_step(
    optimiser: optax.GradientTransformation,
    params: PyTree,
    gradient: PyTree,
    state: PyTree,
    rate: Array,
) -> tuple[PyTree, PyTree]:
    """Parameters and state of an optimiser after one step with this learning rate."""
    change, state = optimiser.update(gradient, state, params)
    return eqx.apply_updates(params, jax.tree.map(lambda c: rate * c, change)), state
