"""Couplings of a few variables with small dense conditioners: the blocks of informed flows."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from flowjax.bijections import AbstractBijection
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from msign.bijections.channels import bounded
from msign.bijections.spline import spline_forward, spline_inverse, spline_numbers

MAX_LOG_SCALE = 2.0  # of one affine coupling: factors up to 7


class Conditioner(eqx.Module):
    """Two hidden layers of tanh from variables to the numbers of a coupling, zero at the start.

    Args:
        key: Of the initial weights.
        inputs: Number of variables; 0: the numbers depend on nothing.
        hidden: Width of the hidden layers.
        outputs: How many numbers.
    """

    first: Array | None
    first_bias: Array
    middle: Array
    middle_bias: Array
    last: Array
    last_bias: Array

    def __init__(self, key: PRNGKeyArray, inputs: int, hidden: int, outputs: int):
        keys = jr.split(key, 2)
        self.first = jr.normal(keys[0], (inputs, hidden)) / np.sqrt(inputs) if inputs else None
        self.first_bias = jnp.zeros(hidden)
        self.middle = jr.normal(keys[1], (hidden, hidden)) / np.sqrt(hidden)
        self.middle_bias = jnp.zeros(hidden)
        self.last = jnp.zeros((hidden, outputs))
        self.last_bias = jnp.zeros(outputs)

    def __call__(self, x: Array) -> Array:
        h = self.first_bias if self.first is None else x @ self.first + self.first_bias
        h = jnp.tanh(jnp.tanh(h) @ self.middle + self.middle_bias)
        return h @ self.last + self.last_bias


class DenseCoupling(AbstractBijection):
    """y = exp(s) x + t on some variables, s and t functions of the others; identity at the start.

    Args:
        key: Of the conditioner's initial weights.
        moved: Which variables move, a boolean for each.
        hidden: Width of the conditioner.
    """

    shape: tuple[int, ...]
    cond_shape: None
    moved: Array
    conditioner: Conditioner

    def __init__(self, key: PRNGKeyArray, moved: ArrayLike, hidden: int):
        self.moved = jnp.asarray(moved, bool)
        rank = self.moved.shape[0]
        self.shape = (rank,)
        self.cond_shape = None
        self.conditioner = Conditioner(key, rank, hidden, 2 * rank)

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        log_scale, shift = self._numbers(x)
        return x * jnp.exp(log_scale) + shift, log_scale.sum()

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        log_scale, shift = self._numbers(y)
        return (y - shift) * jnp.exp(-log_scale), -log_scale.sum()

    def _numbers(self, x: Array) -> tuple[Array, Array]:
        raw = self.conditioner(jnp.where(self.moved, 0.0, x)).reshape(2, -1)
        log_scale, shift = jnp.where(self.moved, raw, 0.0)
        return bounded(log_scale, MAX_LOG_SCALE), shift


class SplineCoupling(AbstractBijection):
    """Rational quadratic splines of some variables given the others; the identity at the start.

    `candidates` variables pass through splines and a mask says which of them move, so that
    couplings that move different variables have the same structure and stack into one `Scan`.

    Args:
        key: Of the conditioner's initial weights.
        moved: Which variables move, a boolean for each.
        candidates: Room for moved variables, at least as many as `moved` has.
        hidden: Width of the conditioner.
        knots: Bins of a spline.
        interval: Splines act on [-interval, interval] and are the identity outside.
    """

    shape: tuple[int, ...]
    cond_shape: None
    moved: Array
    index: Array
    conditioner: Conditioner
    interval: float = eqx.field(static=True)

    def __init__(
        self,
        key: PRNGKeyArray,
        moved: ArrayLike,
        candidates: int,
        hidden: int,
        knots: int,
        interval: float,
    ):
        self.moved = jnp.asarray(moved, bool)
        rank = self.moved.shape[0]
        order = jnp.argsort(~self.moved, stable=True)
        self.index = order[:candidates].astype(jnp.int32)
        self.shape = (rank,)
        self.cond_shape = None
        self.interval = interval
        # Where every variable moves (there is but one) the spline depends on nothing.
        given = rank if candidates < rank else 0
        numbers = candidates * spline_numbers(knots)
        self.conditioner = Conditioner(key, given, hidden, numbers)

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        return self._move(x, spline_forward)

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        return self._move(y, spline_inverse)

    def _move(
        self, x: Array, spline: Callable[[Array, Array, float], tuple[Array, Array]]
    ) -> tuple[Array, Array]:
        numbers = self.conditioner(jnp.where(self.moved, 0.0, x)).reshape(len(self.index), -1)
        moves = self.moved[self.index]
        before = x[self.index]
        after, log_det = spline(before, numbers, self.interval)
        y = x.at[self.index].set(jnp.where(moves, after, before), unique_indices=True)
        return y, jnp.sum(jnp.where(moves, log_det, 0.0))
