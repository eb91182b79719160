"""Orthonormal eigenbases of the cell-centred Laplacian, and what average pooling does to them.

On N cells with centres (i + 1/2) / N the eigenvectors of the discrete Laplacian are

- `dirichlet`: sin(pi k (i + 1/2) / N), k = 1..N (DST-II);
- `neumann`:   cos(pi k (i + 1/2) / N), k = 0..N-1 (DCT-II);
- `periodic`:  cos and sin of 2 pi k (i + 1/2) / N, stored as cos 0, 1, ... then sin 1, 2, ...

all with eigenvalue 2 - 2 cos(omega_k) over h^2, omega_k the angle per cell. Pooling a pair of
cells multiplies a mode by cos(omega_k / 2) and folds the modes at omega and pi - omega onto the
same coarse mode, so that the pooling matrix couples fine modes in pairs (one pair per axis).
"""

import functools
import itertools
import math
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

Boundary = Literal["dirichlet", "neumann", "periodic"]
BOUNDARIES: tuple[str, ...] = get_args(Boundary)

# Up to this side a dense matrix product is at least as fast as the FFT, on every device.
DENSE_SIDE = 64


def angles(n: int, boundary: Boundary) -> np.ndarray:
    """Angle omega_k per cell of the n basis vectors, in storage order."""
    if boundary == "dirichlet":
        return np.pi * np.arange(1, n + 1) / n
    if boundary == "neumann":
        return np.pi * np.arange(n) / n
    cosines, sines = _periodic_frequencies(n)
    return 2 * np.pi * np.concatenate([cosines, sines]) / n


def eigenvalues(n: int, boundary: Boundary, length: float = 1.0) -> np.ndarray:
    """Eigenvalues of minus the Laplacian on n cells of an interval of the given length."""
    return (2 - 2 * np.cos(angles(n, boundary))) * (n / length) ** 2


@functools.lru_cache(maxsize=64)
def basis(n: int, boundary: Boundary) -> np.ndarray:
    """The orthonormal basis as a matrix, one basis vector per row (float64)."""
    centres = np.arange(n) + 0.5
    phase = angles(n, boundary)[:, None] * centres
    if boundary == "dirichlet":
        rows = np.sin(phase)
    elif boundary == "neumann":
        rows = np.cos(phase)
    else:
        split = len(_periodic_frequencies(n)[0])
        rows = np.concatenate([np.cos(phase[:split]), np.sin(phase[split:])])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def analyse(x: Array, boundary: Boundary, axes: tuple[int, ...]) -> Array:
    """Coefficients of `x` in the orthonormal basis along each of `axes` (negative axis numbers)."""
    for axis in axes:
        x = _along(x, axis, boundary, inverse=False)
    return x


def synthesise(c: Array, boundary: Boundary, axes: tuple[int, ...]) -> Array:
    """The field with coefficients `c`: inverse and transpose of `analyse`."""
    for axis in axes:
        c = _along(c, axis, boundary, inverse=True)
    return c


def pooling_pairs(n: int, boundary: Boundary) -> tuple[np.ndarray, np.ndarray]:
    """How average pooling of n cells acts in the bases: `(index, weight)`, both `(n / 2, 2)`.

    Coarse coefficient k is `sum_j weight[k, j] * fine[index[k, j]]`; every fine index stands
    exactly once (with weight zero where pooling kills the mode).
    """
    m = n // 2
    half = math.sqrt(0.5)
    if boundary == "dirichlet":
        k = np.arange(1, m + 1)
        index = np.stack([k - 1, n - k - 1], 1)
        weight = half * np.stack([np.cos(np.pi * k / (2 * n)), np.sin(np.pi * k / (2 * n))], 1)
        index[-1], weight[-1] = (m - 1, n - 1), (half, 0.0)
    elif boundary == "neumann":
        k = np.arange(m)
        index = np.stack([k, n - k], 1)
        weight = half * np.stack([np.cos(np.pi * k / (2 * n)), -np.sin(np.pi * k / (2 * n))], 1)
        index[0], weight[0] = (0, m), (half, 0.0)
    else:
        index, weight = _periodic_pairs(n)
    return index, weight


@functools.lru_cache(maxsize=64)
def coarse_first(shape: tuple[int, ...], boundary: Boundary) -> tuple[np.ndarray, np.ndarray]:
    """The order of modes in which pooling blocks are columns: `(order, position)`, flat.

    Seen as a matrix of 2^n rows, `order[j, k]` is the mode that member j of the block of the
    k-th coarse mode has, coarse modes themselves being in coarse-first order. So the first
    variables at every scale are the smoothest ones. A lattice that cannot be halved has its modes
    in natural order. `position` is the inverse of `order`.
    """
    if any(n % 2 for n in shape):
        order = np.arange(math.prod(shape), dtype=np.int32)
    else:
        coarse = tuple(n // 2 for n in shape)
        k = np.unravel_index(coarse_first(coarse, boundary)[0], coarse)
        pairs = [pooling_pairs(n, boundary)[0] for n in shape]
        members = [
            np.ravel_multi_index([p[i, j] for p, i, j in zip(pairs, k, row, strict=True)], shape)
            for row in itertools.product((0, 1), repeat=len(shape))
        ]
        order = np.concatenate(members).astype(np.int32)
    position = np.empty_like(order)
    position[order] = np.arange(order.size, dtype=np.int32)
    return order, position


def _periodic_frequencies(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies of the cosines and of the sines that do not vanish on cell centres."""
    return np.arange((n + 1) // 2), np.arange(1, n // 2 + 1)


def _periodic_pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    m = n // 2
    half = math.sqrt(0.5)
    coarse_cos, coarse_sin = _periodic_frequencies(m)
    sines = len(_periodic_frequencies(n)[0])  # sin k is at sines + k - 1
    k = coarse_cos[1:]
    angle = np.pi * k / n
    index = [np.array([(0, sines + m - 1)]), np.stack([k, m - k], 1)]
    weight = [np.array([(half, 0.0)]), half * np.stack([np.cos(angle), -np.sin(angle)], 1)]
    k = coarse_sin if m % 2 else coarse_sin[:-1]
    angle = np.pi * k / n
    index.append(np.stack([sines + k - 1, sines + m - k - 1], 1))
    weight.append(half * np.stack([np.cos(angle), np.sin(angle)], 1))
    if m % 2 == 0:
        index.append(np.array([(sines + m // 2 - 1, m // 2)]))
        weight.append(np.array([(half, 0.0)]))
    return np.concatenate(index).astype(int), np.concatenate(weight)


def _along(x: Array, axis: int, boundary: Boundary, inverse: bool) -> Array:
    n = x.shape[axis]
    if n <= DENSE_SIDE:
        rows = basis(n, boundary)
        matrix = jnp.asarray(rows if inverse else rows.T, x.dtype)
        if axis == -1:
            return jnp.matmul(x, matrix, precision=jax.lax.Precision.HIGHEST)
        y = jnp.matmul(matrix.T, _to_second_last(x, axis), precision=jax.lax.Precision.HIGHEST)
        return y.reshape(x.shape)
    x = jnp.moveaxis(x, axis, -1)
    if boundary == "dirichlet":
        signs = jnp.asarray(1 - 2 * (np.arange(n) % 2), x.dtype)
        x = _dct(x[..., ::-1], True) * signs if inverse else _dct(x * signs, False)[..., ::-1]
    elif boundary == "neumann":
        x = _dct(x, inverse)
    else:
        x = _fourier(x, inverse)
    return jnp.moveaxis(x, -1, axis)


def _to_second_last(x: Array, axis: int) -> Array:
    """View with `axis` second last and everything behind it flattened into the last."""
    return x.reshape(*x.shape[:axis], x.shape[axis], -1)


def _dct(x: Array, inverse: bool) -> Array:
    """Orthonormal DCT-II along the last axis (or its inverse), by one real FFT of length n."""
    n = x.shape[-1]
    h = n // 2 + 1
    twiddle = np.exp(-0.5j * np.pi * np.arange(h) / n)
    scale = np.full(n, math.sqrt(2 / n))
    scale[0] = math.sqrt(1 / n)
    partners = (n - 1) // 2  # frequencies k > 0 whose partner n - k the real FFT does not store
    if not inverse:
        folded = jnp.concatenate([x[..., ::2], x[..., 1::2][..., ::-1]], -1)
        spectrum = jnp.fft.rfft(folded) * twiddle.astype(_complex(x))
        tail = -spectrum.imag[..., 1 : partners + 1][..., ::-1]
        return jnp.concatenate([spectrum.real, tail], -1) * scale.astype(x.dtype)
    c = x * (1 / (scale * n)).astype(x.dtype)
    tail = jnp.concatenate([jnp.zeros_like(c[..., :1]), c[..., ::-1][..., : h - 1]], -1)
    spectrum = jax.lax.complex(c[..., :h], -tail) * np.conj(twiddle).astype(_complex(x))
    folded = jnp.fft.irfft(spectrum, n) * n
    even, odd = folded[..., : (n + 1) // 2], folded[..., (n + 1) // 2 :][..., ::-1]
    if n % 2:
        odd = jnp.concatenate([odd, even[..., :1]], -1)  # a place holder, cut off below
    return jnp.stack([even, odd], -1).reshape(*x.shape[:-1], -1)[..., :n]


def _fourier(x: Array, inverse: bool) -> Array:
    """Orthonormal real Fourier transform on cell centres along the last axis."""
    n = x.shape[-1]
    h = n // 2 + 1
    twiddle = np.exp(-1j * np.pi * np.arange(h) / n)
    scale = np.full(h, math.sqrt(2 / n))
    scale[0] = math.sqrt(1 / n)
    if n % 2 == 0:
        scale[-1] = math.sqrt(1 / n)
    cosines = (n + 1) // 2
    if not inverse:
        spectrum = jnp.fft.rfft(x) * (twiddle * scale).astype(_complex(x))
        return jnp.concatenate([spectrum.real[..., :cosines], -spectrum.imag[..., 1:]], -1)
    zero = jnp.zeros_like(x[..., :1])
    real = jnp.concatenate([x[..., :cosines], zero], -1)[..., :h]
    imag = jnp.concatenate([zero, -x[..., cosines:]], -1)
    weight = np.full(h, math.sqrt(n / 2))
    weight[0] = math.sqrt(n)
    if n % 2 == 0:
        weight[-1] = math.sqrt(n)
    return jnp.fft.irfft(
        jax.lax.complex(real, imag) * (np.conj(twiddle) * weight).astype(_complex(x)), n
    )


def _complex(x: Array) -> np.dtype:
    return np.dtype(np.complex128 if x.dtype == jnp.float64 else np.complex64)
