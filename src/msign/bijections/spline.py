"""Monotone rational quadratic splines (Durkan et al. 2019), vectorised without gathers.

On a CPU, looking up a bin by index and scattering its gradient back dominates the cost of a spline
flow. With few bins a sum over all of them, masked, is many times faster, and this is what
differs here from flowjax's scalar `RationalQuadraticSpline`. The numbers of a spline lie along the
first axis: behind them there is room for many splines, next to each other in memory, so that sums
over the bins are sums of long vectors.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flowjax.bijections import AbstractBijection
from jaxtyping import Array

from msign.noise import on_device

MIN_BIN = 1e-3  # smallest width, height and derivative of a spline that is trained


def spline_numbers(bins: int) -> int:
    """How many unconstrained numbers a spline takes: widths, heights, inner derivatives."""
    return 3 * bins - 1


def numbers_through(
    x: np.ndarray, y: np.ndarray, slopes: np.ndarray, interval: float, least: float
) -> np.ndarray:
    """Numbers `(3 bins - 1, ...)` of splines from inner knots x to y `(bins - 1, ...)`.

    `slopes` are their derivatives there.
    """
    ends = np.full((1, *x.shape[1:]), interval)
    sizes = [np.diff(np.sort(np.concatenate([-ends, a, ends]), axis=0), axis=0) for a in (x, y)]
    fractions = [np.log(np.maximum(size - least, 1e-3 * least)) for size in sizes]
    beyond = np.maximum(slopes - least, 1e-3 * least)
    raw = beyond + np.log(-np.expm1(-beyond)) - _one(least)  # inverse of softplus
    return np.concatenate([*fractions, raw])


class SplineMap(AbstractBijection):
    """A spline of each variable by itself, the identity at the start.

    Args:
        rank: Number of variables.
        knots: Bins of a spline.
        interval: Splines act on [-interval, interval] and are the identity outside.
        least: Smallest width, height and derivative.
    """

    shape: tuple[int, ...]
    cond_shape: None
    numbers: Array
    interval: float = eqx.field(static=True)
    least: float = eqx.field(static=True)

    def __init__(self, rank: int, knots: int, interval: float, least: float = MIN_BIN):
        self.shape = (rank,)
        self.cond_shape = None
        self.numbers = on_device(np.zeros((spline_numbers(knots), rank)))
        self.interval = interval
        self.least = least

    @property
    def knots(self) -> int:
        """Bins of a spline."""
        return (self.numbers.shape[-2] + 1) // 3

    def through(self, x: np.ndarray, y: np.ndarray, slopes: np.ndarray) -> "SplineMap":
        """The spline of one variable from inner knots x to y, with these derivatives there."""
        numbers = numbers_through(x, y, slopes, self.interval, self.least)
        return eqx.tree_at(lambda spline: spline.numbers, self, on_device(numbers[:, None]))

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        y, log_slope = spline_forward(x, self.numbers, self.interval, self.least)
        return y, log_slope.sum()

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        x, log_slope = spline_inverse(y, self.numbers, self.interval, self.least)
        return x, log_slope.sum()


class _Bin(NamedTuple):
    """The bin that each value lies in: left ends, sizes, slopes at both ends."""

    x: Array
    y: Array
    width: Array
    height: Array
    left: Array
    right: Array


def spline_forward(
    x: Array, numbers: Array, interval: float, least: float = MIN_BIN
) -> tuple[Array, Array]:
    """Values `(c,)` through splines given by `(3 bins - 1, c)` numbers, and log-derivatives.

    The identity where all numbers are zero, and outside of [-interval, interval].
    """
    return _spline(x, numbers, interval, least, False)


def spline_inverse(
    y: Array, numbers: Array, interval: float, least: float = MIN_BIN
) -> tuple[Array, Array]:
    """Inverse of `spline_forward`, and its log-derivatives."""
    return _spline(y, numbers, interval, least, True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _spline(
    v: Array, numbers: Array, interval: float, least: float, inverse: bool
) -> tuple[Array, Array]:
    """The derivative is computed anew on the way back, which costs less than to keep its parts."""
    return _in_lanes(lambda v, k: _evaluated(v, k, interval, least, inverse), v, numbers)


def _spline_forward(
    v: Array, numbers: Array, interval: float, least: float, inverse: bool
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    return _spline(v, numbers, interval, least, inverse), (v, numbers)


def _spline_backward(
    interval: float,
    least: float,
    inverse: bool,
    known: tuple[Array, Array],
    cotangent: tuple[Array, Array],
) -> tuple[Array, Array]:
    def pulled_back(v: Array, numbers: Array, *cotangent: Array) -> tuple[Array, Array]:
        given = lambda v, k: _evaluated(v, k, interval, least, inverse)  # noqa: E731
        return jax.vjp(given, v, numbers)[1](cotangent)

    return _in_lanes(pulled_back, *known, *cotangent)


_spline.defvjp(_spline_forward, _spline_backward)


def _in_lanes(f: Callable[..., tuple[Array, Array]], *arrays: Array) -> tuple[Array, Array]:
    """A function of values `(c,)` and numbers `(k, c)`; a batch by ``vmap`` makes c larger."""
    one = jax.custom_batching.custom_vmap(f)

    @one.def_vmap
    def many(size: int, batched: list[bool], *arrays: Array) -> tuple[Any, Any]:
        lanes = []
        for array, has_batch in zip(arrays, batched, strict=True):
            whole = array if has_batch else jnp.broadcast_to(array, (size, *array.shape))
            lanes.append(jnp.moveaxis(whole, 0, -1).reshape(*whole.shape[1:-1], -1))
        results = [a.reshape(*a.shape[:-1], -1, size) for a in f(*lanes)]
        return tuple(jnp.moveaxis(a, -1, 0) for a in results), (True, True)

    return one(*arrays)


def rational_quadratic(xi: Any, slope: Any, left: Any, right: Any) -> tuple[Any, Any, Any]:
    """How far up a bin its curve is at a part xi of the width, for arrays of JAX or NumPy.

    `slope` is height over width, `left` and `right` the derivatives at both ends. The derivative is
    slope^2 top / curve^2 of the second and third numbers.
    """
    both = xi * (1 - xi)
    curve = slope + (right + left - 2 * slope) * both
    top = right * xi**2 + 2 * slope * both + left * (1 - xi) ** 2
    return (slope * xi**2 + left * both) / curve, top, curve


class Bins(NamedTuple):
    """Of splines: widths and heights `(bins, c)`, slopes at their ends `(bins + 1, c)`."""

    widths: Array
    heights: Array
    slopes: Array


def bins_of(numbers: Array, interval: float, least: float) -> Bins:
    """What unconstrained numbers `(3 bins - 1, c)` mean."""
    bins = (numbers.shape[0] + 1) // 3
    raw = numbers[:bins], numbers[bins : 2 * bins]
    widths, heights = (sizes_of(part, interval, least) for part in raw)
    inner = jax.nn.softplus(numbers[2 * bins :] + _one(least)) + least
    end = jnp.ones_like(inner[:1])
    return Bins(widths, heights, jnp.concatenate([end, inner, end]))


def _evaluated(
    v: Array, numbers: Array, interval: float, least: float, inverse: bool
) -> tuple[Array, Array]:
    return evaluated(v, bins_of(numbers, interval, least), interval, inverse)


def evaluated(v: Array, bins: Bins, interval: float, inverse: bool) -> tuple[Array, Array]:
    """Values `(c,)` through splines, or through their inverses, and log-derivatives."""
    inside = jnp.abs(v) < interval
    at = jnp.where(inside, v, 0.0)
    b = _bin(at, bins, interval, inverse)
    slope = b.height / b.width
    bend = b.right + b.left - 2 * slope
    if inverse:
        rise = at - b.y
        p = b.height * (slope - b.left) + rise * bend
        q = b.height * b.left - rise * bend
        root = jnp.sqrt(jnp.maximum(q**2 + 4 * p * slope * rise, 1e-30))
        xi = jnp.clip(2 * slope * rise / (q + root), 0.0, 1.0)
    else:
        xi = jnp.clip((at - b.x) / b.width, 0.0, 1.0)
    up, top, curve = rational_quadratic(xi, slope, b.left, b.right)
    log_slope = 2 * jnp.log(slope) + jnp.log(top) - 2 * jnp.log(curve)
    if inverse:
        out, log_slope = b.x + xi * b.width, -log_slope
    else:
        out = b.y + b.height * up
    return jnp.where(inside, out, v), jnp.where(inside, log_slope, 0.0)


def _bin(v: Array, bins: Bins, interval: float, inverse: bool) -> _Bin:
    widths, heights, slopes = bins
    # A product is faster than a cumsum.
    before = jnp.tril(jnp.ones((len(widths), len(widths)), v.dtype), -1)
    x, y = (_product(before, s) - interval for s in (widths, heights))
    past = (v >= (y if inverse else x)).astype(v.dtype)  # 1 up to the bin of v, 0 behind it
    here = past - jnp.concatenate([past[1:], jnp.zeros_like(past[:1])])

    def pick(values: Array) -> Array:
        return jnp.sum(here * values, 0)

    return _Bin(pick(x), pick(y), pick(widths), pick(heights), pick(slopes[:-1]), pick(slopes[1:]))


def _product(a: Array, b: Array) -> Array:
    return jnp.tensordot(a, b, 1, precision=jax.lax.Precision.HIGHEST)


def sizes_of(raw: Array, interval: float, least: float) -> Array:
    """Positive sizes that fill [-interval, interval]."""
    return least + (2 * interval - len(raw) * least) * jax.nn.softmax(raw, 0)


def _one(least: float) -> float:
    """The number of a derivative of one: softplus(_one) + least = 1."""
    return math.log(math.expm1(1 - least))
