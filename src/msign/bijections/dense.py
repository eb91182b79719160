"""Couplings of a few variables with small dense conditioners: the blocks of informed flows."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import paramax
from flowjax.bijections import AbstractBijection
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from msign.bijections.channels import bounded
from msign.bijections.spline import spline_forward, spline_inverse, spline_numbers
from msign.noise import generator, on_device

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
        rng = generator(key)
        first = rng.normal(size=(hidden, inputs)) / np.sqrt(max(inputs, 1))
        self.first = on_device(first) if inputs else None
        self.first_bias = on_device(np.zeros(hidden))
        self.middle = on_device(rng.normal(size=(hidden, hidden)) / np.sqrt(hidden))
        self.middle_bias = on_device(np.zeros(hidden))
        self.last = on_device(np.zeros((outputs, hidden)))
        self.last_bias = on_device(np.zeros(outputs))

    def __call__(self, x: Array) -> Array:
        h = self.first_bias if self.first is None else self.first @ x + self.first_bias
        h = jnp.tanh(self.middle @ jnp.tanh(h) + self.middle_bias)
        return self.last @ h + self.last_bias


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
        self.moved = jax.device_put(np.asarray(moved, bool))
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


def widened(fresh: DenseCoupling, coupling: DenseCoupling) -> DenseCoupling:
    """A coupling (or a stack of them) that does the same to its variables, and nothing to more.

    `fresh` is a coupling of all variables; it says which of the new ones will be moved.
    """
    old, rank = coupling.moved.shape[-1], fresh.moved.shape[-1]
    net = coupling.conditioner
    moved = np.array(fresh.moved)
    moved[..., :old] = coupling.moved
    more = ((0, 0), (0, rank - old))
    stack = ((0, 0),) * (moved.ndim - 1)

    def of_each_variable(a: Array, *behind: tuple[int, int]) -> Array:
        """Log-scales and shifts, with zeros for those of new variables."""
        pairs = np.asarray(a).reshape(*moved.shape[:-1], 2, old, *a.shape[moved.ndim :])
        pairs = np.pad(pairs, (*stack, *more, *behind))
        return on_device(pairs.reshape(*moved.shape[:-1], 2 * rank, *a.shape[moved.ndim :]))

    assert net.first is not None
    first = on_device(np.pad(np.asarray(net.first), (*stack, *more)))
    last, last_bias = of_each_variable(net.last, (0, 0)), of_each_variable(net.last_bias)
    kept = (first, net.first_bias, net.middle, net.middle_bias, last, last_bias)
    return eqx.tree_at(
        lambda c: (c.moved, *jax.tree.leaves(c.conditioner)), fresh, (jax.device_put(moved), *kept)
    )


class SplineCoupling(AbstractBijection):
    """Rational quadratic splines of some variables given the others; the identity at the start.

    `candidates` variables pass through splines, picked by a product with ones and zeros, so that
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
    picked: Array
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
        moves = np.asarray(moved, bool)
        rank, order = len(moves), np.argsort(~moves, kind="stable")[:candidates]
        self.moved = jax.device_put(moves)
        self.picked = paramax.non_trainable(on_device(np.eye(rank)[order] * moves))
        self.shape = (rank,)
        self.cond_shape = None
        self.interval = interval
        self.conditioner = Conditioner(key, rank, hidden, candidates * spline_numbers(knots))

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        return self._move(x, spline_forward)

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        return self._move(y, spline_inverse)

    def _move(
        self, x: Array, spline: Callable[[Array, Array, float], tuple[Array, Array]]
    ) -> tuple[Array, Array]:
        picked = paramax.unwrap(self.picked)
        numbers = self.conditioner(jnp.where(self.moved, 0.0, x)).reshape(-1, len(picked))
        after, log_det = spline(_product(picked, x), numbers, self.interval)
        y = jnp.where(self.moved, _product(picked.T, after), x)
        return y, jnp.sum(_product(picked.sum(1), log_det))


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
