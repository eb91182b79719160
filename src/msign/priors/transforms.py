"""Orthonormal eigenbases of the cell-centred Laplacian, and what average pooling does to them.

On N cells with centres (i + 1/2) / N the eigenvectors of the discrete Laplacian are

- `dirichlet`: sin(pi k (i + 1/2) / N), k = 1..N (DST-II);
- `neumann`:   cos(pi k (i + 1/2) / N), k = 0..N-1 (DCT-II);
- `periodic`:  cos and sin of 2 pi k (i + 1/2) / N, stored as cos 0, 1, ... then sin 1, 2, ...

all with eigenvalue 2 - 2 cos(omega_k) over h^2, omega_k the angle per cell. Averaging p cells
multiplies a mode by sin(p omega_k / 2) / (p sin(omega_k / 2)) and makes its angle p omega_k, which
M = N / p cells cannot tell from its distance to the next multiple of 2 pi. So the pooling matrix
couples p fine modes with each coarse mode: with omega = pi f / N those of f = kappa, 2 M - kappa,
2 M + kappa, 4 M - kappa, ... with kappa. For p = 2 these are the modes at omega and pi - omega.
"""

import functools
import itertools
import math
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from msign.lattice import PRIMES, pooling_factors

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


def pooling_blocks(n: int, p: int, boundary: Boundary) -> tuple[np.ndarray, np.ndarray]:
    """How averaging of n cells by p acts in the bases: `(index, weight)`, both `(n / p, p)`.

    Coarse coefficient k is `sum_j weight[k, j] * fine[index[k, j]]`; every fine index stands
    exactly once (with weight zero where pooling kills the mode). The first member of a block has
    the coarse mode's own frequency and a positive weight.
    """
    m = n // p
    fine, sine = _waves(n, boundary)
    coarse, coarse_sine = _waves(m, boundary)
    turn = fine % (2 * m)
    folded = np.minimum(turn, 2 * m - turn)
    place = np.zeros((2, m + 1), int)  # of the coarse sine or cosine of a folded frequency
    place[coarse_sine.astype(int), coarse] = np.arange(m)
    # Sines of folded frequency 0 and cosines of M vanish on the coarse cells. They fill the blocks
    # of the other modes with these frequencies, which have less than p that do not.
    if boundary != "neumann":
        place[1, 0] = place[(0, 0) if boundary == "periodic" else (1, m)]
    if boundary != "dirichlet":
        place[0, m] = place[(1, m) if boundary == "periodic" else (0, 0)]
    block = place[sine.astype(int), folded]
    leads = (fine == coarse[block]) & (sine == coarse_sine[block])
    index = np.lexsort((np.arange(n), ~leads, block)).reshape(m, p)

    sign = np.where(sine | (turn <= m), 1.0, -1.0)
    silent = folded == np.where(sine, 0, m)
    angle, root = np.pi * fine / (2 * n), math.sqrt(1 / p)
    if p == 2:  # no division: lattices that are halved keep the numbers they always had, to the bit
        lead, other = index.T
        weight = root * np.stack([np.cos(angle[lead]), sign[other] * np.sin(angle[lead])], 1)
        weight[silent[other]] = root, 0.0
        return index, weight
    constant = (fine == np.where(sine, n, 0)) * 1.0
    coarse_constant = (coarse == np.where(coarse_sine, m, 0)) * 1.0
    length = np.sqrt(2.0 - constant) / np.sqrt(2.0 - coarse_constant[block])
    kernel = np.sin(np.pi * folded / (2 * m)) / np.where(fine == 0, 1.0, p * np.sin(angle))
    weight = root * length * sign * np.where(fine == 0, 1.0, np.where(silent, 0.0, kernel))
    return index, weight[index]


@functools.lru_cache(maxsize=64)
def coarse_first(
    shape: tuple[int, ...], boundary: Boundary, primes: tuple[int, ...] = PRIMES
) -> tuple[np.ndarray, np.ndarray]:
    """The order of modes in which pooling blocks are columns: `(order, position)`, flat.

    Seen as a matrix with one row per cell of a pooling window, `order[j, k]` is the mode that
    member j of the block of the k-th coarse mode has, coarse modes themselves being in coarse-first
    order. So the first variables at every scale are the smoothest ones. A lattice that cannot be
    pooled has its modes in natural order. `position` is the inverse of `order`.
    """
    factors = pooling_factors(shape, primes)
    if factors is None:
        order = np.arange(math.prod(shape), dtype=np.int32)
    else:
        coarse = tuple(n // p for n, p in zip(shape, factors, strict=True))
        k = np.unravel_index(coarse_first(coarse, boundary, primes)[0], coarse)
        blocks = [pooling_blocks(n, p, boundary)[0] for n, p in zip(shape, factors, strict=True)]
        members = [
            np.ravel_multi_index([b[i, j] for b, i, j in zip(blocks, k, row, strict=True)], shape)
            for row in itertools.product(*map(range, factors))
        ]
        order = np.concatenate(members).astype(np.int32)
    position = np.empty_like(order)
    position[order] = np.arange(order.size, dtype=np.int32)
    return order, position


def _waves(n: int, boundary: Boundary) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies f of the basis vectors, angle pi f / n per cell, and which of them are sines."""
    if boundary == "dirichlet":
        return np.arange(1, n + 1), np.ones(n, bool)
    if boundary == "neumann":
        return np.arange(n), np.zeros(n, bool)
    cosines, sines = _periodic_frequencies(n)
    return 2 * np.concatenate([cosines, sines]), np.arange(n) >= len(cosines)


def _periodic_frequencies(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies of the cosines and of the sines that do not vanish on cell centres."""
    return np.arange((n + 1) // 2), np.arange(1, n // 2 + 1)


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
