"""Zero-padded convolution on a lattice, with its own derivative.

XLA's convolutions on a CPU are slow where a flow spends its time: the weight gradient in two
dimensions, everything in three. Here a convolution is one matrix product over the channels and
one of two linear maps that only move numbers and are each other's transpose:

* ``_gather`` puts the k^n neighbours of a site side by side, (*spatial, c) -> (*spatial, k^n c);
* ``_scatter`` adds k^n c channels to those neighbours, (*spatial, k^n c) -> (*spatial, c).

With few channels in, gather and multiply; with few channels out, multiply and scatter. So it is
the smaller number of channels that is multiplied by k^n, and the derivative is the other map and
two more products. Three things matter for speed: both maps go one axis at a time (longer runs of
memory are copied); every axis ends in a barrier (or XLA fuses the steps and repeats the first for
every shift); the product is left to automatic differentiation, which under ``vmap`` makes the
weight gradient one product over all sites of the batch, where a custom rule would make one a field.

A call costs 2 k^n c_in c_out operations a site, three times that with both derivatives, and
k^n min(c_in, c_out) numbers a site that are freed at once; it keeps its input for the derivative.
Reverse mode only.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.lax import optimization_barrier
from jaxtyping import Array, Float


def convolve(x: Float[Array, "*spatial c_in"], weight: Float[Array, "..."]) -> Array:
    """Return the zero-padded ("same") correlation of one field with a kernel.

    Args:
        x: A field of shape ``(*spatial, c_in)`` with one, two or three spatial axes; use
            ``jax.vmap`` for a batch.
        weight: A kernel of shape ``(*kernel, c_in, c_out)`` with odd sides.

    Returns:
        A field of shape ``(*spatial, c_out)``.
    """
    if not 2 <= x.ndim <= 4:
        raise ValueError(f"x must have 1 to 3 spatial axes and one of channels, got {x.shape}")
    if weight.ndim != x.ndim + 1:
        raise ValueError(f"weight must have {x.ndim + 1} axes for x {x.shape}, got {weight.shape}")
    *kernel, c_in, c_out = weight.shape
    if any(k % 2 == 0 for k in kernel):
        raise ValueError(f"weight must have odd kernel sides, got {tuple(kernel)}")
    if c_in != x.shape[-1]:
        raise ValueError(f"weight must take {x.shape[-1]} channels as x has, got {c_in}")
    # Drop taps that only ever meet the padding: on a lattice of side 1 a kernel is its centre.
    cuts = [max(0, k // 2 - n + 1) for k, n in zip(kernel, x.shape, strict=False)]
    weight = weight[tuple(slice(c, k - c) for c, k in zip(cuts, kernel, strict=True))]
    sides = weight.shape[:-2]
    if c_in <= c_out:
        return _gather_product(x, weight.reshape(-1, c_out).T, sides)
    flipped = jnp.flip(weight, range(len(sides)))
    return _scatter(_product(x, flipped.swapaxes(-1, -2).reshape(-1, c_in)), sides)


def mix_channels(x: Float[Array, "*spatial c_in"], matrix: Float[Array, "c_in c_out"]) -> Array:
    """Return ``x @ matrix``, a convolution with a kernel of side 1, with a fast derivative."""
    return _product(x, matrix.T)


def _product(x: Array, matrix: Array) -> Array:
    """Return ``x @ matrix.T``; so written, and with the barrier, its derivative is fast too."""
    return jnp.einsum("...i,oi->...o", x, optimization_barrier(matrix))


@partial(jax.checkpoint, static_argnums=2, prevent_cse=False)  # keeps x, not the gathered x
def _gather_product(x: Array, matrix: Array, kernel: tuple[int, ...]) -> Array:
    return _product(_gather(x, kernel), matrix)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _gather(x: Array, kernel: tuple[int, ...]) -> Array:
    for axis in reversed(range(len(kernel))):
        if (k := kernel[axis]) > 1:
            shifts = [_shift(x, o - k // 2, axis) for o in range(k)]
            x = optimization_barrier(jnp.concatenate(shifts, -1))
    return x


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _scatter(y: Array, kernel: tuple[int, ...]) -> Array:
    for axis, k in enumerate(kernel):
        if k > 1:
            parts = jnp.split(y, k, -1)
            shifts = [_shift(part, k // 2 - o, axis) for o, part in enumerate(parts)]
            y = optimization_barrier(sum(shifts))
    return y


_gather.defvjp(lambda x, kernel: (_gather(x, kernel), None), lambda k, _, dy: (_scatter(dy, k),))
_scatter.defvjp(lambda y, kernel: (_scatter(y, kernel), None), lambda k, _, dx: (_gather(dx, k),))


def _shift(x: Array, by: int, axis: int) -> Array:
    """Return ``y[i] = x[i + by]`` along an axis, zero outside the lattice."""
    low, high = max(-by, 0), max(by, 0)
    y = jnp.pad(x, [(low, high) if a == axis else (0, 0) for a in range(x.ndim)])
    return jax.lax.slice_in_dim(y, high, high + x.shape[axis], axis=axis)
