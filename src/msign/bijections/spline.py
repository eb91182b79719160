"""Monotone rational quadratic splines (Durkan et al. 2019), vectorised without gathers.

On a CPU, looking up a bin by index and scattering its gradient back dominates the cost of a spline
flow. With few bins a sum over all of them, masked, is many times faster, and this is what
differs here from flowjax's scalar `RationalQuadraticSpline`.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

MIN_BIN = 1e-3  # smallest width, height and derivative
ONE = math.log(math.expm1(1 - MIN_BIN))  # softplus(ONE) + MIN_BIN = 1


def spline_numbers(bins: int) -> int:
    """How many unconstrained numbers a spline takes: widths, heights, inner derivatives."""
    return 3 * bins - 1


class _Bin(NamedTuple):
    """The bin that each value lies in: left ends, sizes, slopes at both ends."""

    x: Array
    y: Array
    width: Array
    height: Array
    left: Array
    right: Array


def spline_forward(x: Array, numbers: Array, interval: float) -> tuple[Array, Array]:
    """Values `(...)` through splines given by `(..., 3 bins - 1)` numbers, and log-derivatives.

    The identity where all numbers are zero, and outside of [-interval, interval].
    """
    inside = jnp.abs(x) < interval
    v = jnp.where(inside, x, 0.0)
    b = _bin(v, numbers, interval, inverse=False)
    slope = b.height / b.width
    xi = jnp.clip((v - b.x) / b.width, 0.0, 1.0)
    both = xi * (1 - xi)
    curve = slope + (b.right + b.left - 2 * slope) * both
    y = b.y + b.height * (slope * xi**2 + b.left * both) / curve
    return jnp.where(inside, y, x), jnp.where(inside, _log_slope(b, slope, xi, curve), 0.0)


def spline_inverse(y: Array, numbers: Array, interval: float) -> tuple[Array, Array]:
    """Inverse of `spline_forward`, and its log-derivatives."""
    inside = jnp.abs(y) < interval
    v = jnp.where(inside, y, 0.0)
    b = _bin(v, numbers, interval, inverse=True)
    slope = b.height / b.width
    rise = v - b.y
    bend = b.right + b.left - 2 * slope
    p = b.height * (slope - b.left) + rise * bend
    q = b.height * b.left - rise * bend
    root = jnp.sqrt(jnp.maximum(q**2 + 4 * p * slope * rise, 1e-30))
    xi = jnp.clip(2 * slope * rise / (q + root), 0.0, 1.0)
    curve = slope + bend * xi * (1 - xi)
    x = b.x + xi * b.width
    return jnp.where(inside, x, y), jnp.where(inside, -_log_slope(b, slope, xi, curve), 0.0)


def _log_slope(b: _Bin, slope: Array, xi: Array, curve: Array) -> Array:
    top = b.right * xi**2 + 2 * slope * xi * (1 - xi) + b.left * (1 - xi) ** 2
    return 2 * jnp.log(slope) + jnp.log(top) - 2 * jnp.log(curve)


def _bin(v: Array, numbers: Array, interval: float, inverse: bool) -> _Bin:
    bins = (numbers.shape[-1] + 1) // 3
    widths = _sizes(numbers[..., :bins], interval)
    heights = _sizes(numbers[..., bins : 2 * bins], interval)
    inner = jax.nn.softplus(numbers[..., 2 * bins :] + ONE) + MIN_BIN
    end = jnp.ones_like(inner[..., :1])
    slopes = jnp.concatenate([end, inner, end], -1)
    before = jnp.triu(jnp.ones((bins, bins), v.dtype), 1)  # a product is faster than a cumsum
    x, y = (_product(s, before) - interval for s in (widths, heights))
    starts = y if inverse else x
    past = (v[..., None] >= starts).astype(v.dtype)  # 1 up to the bin of v, 0 behind it
    here = past - jnp.concatenate([past[..., 1:], jnp.zeros_like(past[..., :1])], -1)

    def pick(values: Array) -> Array:
        return jnp.sum(here * values, -1)

    return _Bin(
        pick(x), pick(y), pick(widths), pick(heights), pick(slopes[..., :-1]), pick(slopes[..., 1:])
    )


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _sizes(raw: Array, interval: float) -> Array:
    """Positive sizes that fill [-interval, interval]."""
    bins = raw.shape[-1]
    return MIN_BIN + (2 * interval - bins * MIN_BIN) * jax.nn.softmax(raw, -1)
