"""Zero-padded convolution on a lattice, with its own derivative."""

from itertools import product

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def convolve(x: Float[Array, "*spatial c"], weight: Float[Array, "..."]) -> Array:
    """Return the zero-padded ("same") correlation of a field with a kernel.

    Args:
        x: One field, shape ``(*spatial, c_in)`` with one, two or three spatial axes.
        weight: Kernel, shape ``(*kernel, c_in, c_out)`` with odd sides.

    Returns:
        Array of shape ``(*spatial, c_out)``.
    """
    if not 2 <= x.ndim <= 4:
        raise ValueError(f"x must have shape (*spatial, c_in) in 1 to 3 dimensions, got {x.shape}")
    if weight.ndim != x.ndim + 1:
        raise ValueError(f"weight must have {x.ndim + 1} axes for x {x.shape}, got {weight.shape}")
    if any(k % 2 == 0 for k in weight.shape[:-2]):
        raise ValueError(f"weight must have odd kernel sides, got {weight.shape[:-2]}")
    if weight.shape[-2] != x.shape[-1]:
        raise ValueError(f"weight must take {x.shape[-1]} channels, got shape {weight.shape}")
    return _convolve(x, weight)


@jax.custom_vjp
def _convolve(x, weight):
    *kernel, c_in, c_out = weight.shape
    if c_in <= c_out:
        return _gather(x, kernel) @ weight.reshape(-1, c_out)
    return _shift_add(x @ _columns(weight), kernel)


def _forward(x, weight):
    return _convolve(x, weight), (x, weight)


def _backward(residuals, dy):
    x, weight = residuals
    *kernel, c_in, c_out = weight.shape
    if c_in <= c_out:
        w = weight.reshape(-1, c_out)
        dx = _shift_add(dy @ w.T, kernel, -1)
        dw = _rows(_gather(x, kernel)).T @ _rows(dy)
        return dx, dw.reshape(weight.shape)
    g = _gather(dy, kernel, -1)
    dw = (_rows(x).T @ _rows(g)).reshape(c_in, *kernel, c_out)
    return g @ _columns(weight).T, jnp.moveaxis(dw, 0, -2)


_convolve.defvjp(_forward, _backward)


def _columns(weight):
    return jnp.moveaxis(weight, -2, 0).reshape(weight.shape[-2], -1)


def _rows(x):
    return x.reshape(-1, x.shape[-1])


def _windows(x, kernel, sign):
    """Yield x shifted by every offset of the kernel, zero outside the lattice."""
    spatial = x.shape[:-1]
    padded = jnp.pad(x, [(k // 2, k // 2) for k in kernel] + [(0, 0)])
    for offset in list(product(*map(range, kernel)))[::sign]:
        yield padded[tuple(slice(o, o + n) for o, n in zip(offset, spatial, strict=True))]


def _gather(x, kernel, sign=1):
    return jnp.concatenate(list(_windows(x, kernel, sign)), axis=-1)


def _shift_add(y, kernel, sign=1):
    offsets = range(len(list(product(*map(range, kernel)))))
    c = y.shape[-1] // len(offsets)
    return sum(w[..., m * c : (m + 1) * c] for m, w in enumerate(_windows(y, kernel, sign)))
