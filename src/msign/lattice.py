"""Lattices, and the linear maps between neighbouring scales (paper, section 2 and appendix D).

A field is an array with one value per cell (`channels=None`) or a vector of channels per cell,
channels last. Every function below accepts any number of leading batch axes.

From one scale to the next coarser one each side is divided by the smallest of 2, 3 and 5 that
divides it: 30 x 48 cells have 15 x 24, 5 x 12 and 1 x 6 below them.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from msign import checks
from msign.noise import as_array

PRIMES = (2, 3, 5)  # by which a side may be divided, in this order


@dataclasses.dataclass(frozen=True)
class Lattice:
    """A regular 1-D, 2-D or 3-D lattice of cells that carries a field.

    Args:
        shape: Cells along each axis.
        channels: Values per cell as a last axis; None for a scalar field without that axis.

    Example:
        >>> from msign import Lattice
        >>> Lattice((28, 28)).hierarchy(3)
        (Lattice(7x7), Lattice(14x14), Lattice(28x28))
        >>> Lattice((15, 24)).factors
        (3, 2)
    """

    shape: tuple[int, ...]
    channels: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", checks.sides("shape", self.shape))
        if self.channels is not None:
            checks.integer("channels", self.channels, 1)

    def __repr__(self) -> str:
        sides = "x".join(map(str, self.shape))
        return (
            f"Lattice({sides})" if self.channels is None else f"Lattice({sides}, {self.channels})"
        )

    @property
    def ndim(self) -> int:
        """Number of spatial axes, n."""
        return len(self.shape)

    @property
    def field_shape(self) -> tuple[int, ...]:
        """Shape of one field, channels included."""
        return self.shape if self.channels is None else (*self.shape, self.channels)

    @property
    def dim(self) -> int:
        """Dimension d of a field: cells times channels."""
        return math.prod(self.field_shape)

    @property
    def axes(self) -> tuple[int, ...]:
        """Spatial axes of a field, counted from the end (so that batch axes do not matter)."""
        last = 0 if self.channels is None else -1
        return tuple(range(last - self.ndim, last))

    @property
    def max_scales(self) -> int:
        """How many scales this lattice has: one more than the times every side can be divided."""
        return 1 + len(self.pooling)

    @property
    def default_scales(self) -> int:
        """As many scales as leave at least two cells along every axis; one at the least."""
        sides, scales = self.shape, 1
        for factors in self.pooling:
            sides = tuple(n // p for n, p in zip(sides, factors, strict=True))
            scales += min(sides) > 1
        return scales

    @property
    def pooling(self) -> tuple[tuple[int, ...], ...]:
        """Factors of every step from here to the coarsest lattice there can be, finest first."""
        return pooling_steps(self.shape)

    @property
    def factors(self) -> tuple[int, ...]:
        """By which `coarsen` divides each side: 2 where it is even, else 3, else 5."""
        factors = pooling_factors(self.shape)
        if factors is None:
            side = next(n for n in self.shape if _factor(n, PRIMES) is None)
            raise ValueError(
                f"shape {self.shape} cannot be pooled: side {side} is not divisible by 2, 3 or 5 "
                f"(the next one to take is {next_side(side, 1)})"
            )
        return factors

    def coarsen(self) -> "Lattice":
        """The next coarser lattice: side lengths divided by `factors`."""
        sides = tuple(n // p for n, p in zip(self.shape, self.factors, strict=True))
        return Lattice(sides, self.channels)

    def hierarchy(self, scales: int) -> tuple["Lattice", ...]:
        """Lattices of scales 1 (coarsest) to `scales` (this one)."""
        checks.integer("scales", scales, 1)
        if scales > self.max_scales:
            raise ValueError(
                f"scales must be at most {self.max_scales} for shape {self.shape}, whose sides "
                f"cannot be divided by 2, 3 or 5 more often, got {scales}{self.remedy(scales)}"
            )
        lattices = [self]
        for _ in range(scales - 1):
            lattices.append(lattices[-1].coarsen())
        return tuple(reversed(lattices))

    def remedy(self, scales: int) -> str:
        """The end of an error about too many scales: the next shape that has them.

        Empty where all sides are products of 2, 3 and 5: these are too short, not unfortunate.
        """
        if all(_rest(n) == 1 for n in self.shape):
            return ""
        return f" (shape {tuple(next_side(n, scales - 1) for n in self.shape)} has as many)"

    def pool(self, x: ArrayLike) -> Array:
        """Average pooling A over windows of `factors`: a field here to one on `coarsen()`."""
        return _pooled(self, self.coarsen(), self.check("x", x))

    def upsample(self, x: ArrayLike) -> Array:
        """Nearest-neighbour upsampling B: a field on `coarsen()` to one here; A B = identity."""
        coarse = self.coarsen()
        x = coarse.check("x", x)
        for axis, factor in zip(coarse.axes, self.factors, strict=True):
            x = jnp.repeat(x, factor, axis)
        return x

    def check(self, name: str, x: ArrayLike) -> Array:
        """`x` as an array of fields on this lattice, or an error that names it."""
        array = as_array(x)
        checks.shape(name, array.shape, self.field_shape)
        return array

    def _batch(self, x: Array) -> tuple[int, ...]:
        return x.shape[: x.ndim - len(self.field_shape)]

    def _with_channels(self, x: Array) -> Array:
        return x[..., None] if self.channels is None else x


@functools.partial(jax.jit, static_argnums=(0, 1))
def _pooled(fine: Lattice, coarse: Lattice, x: Array) -> Array:
    blocks = to_blocks(fine._with_channels(x), fine.factors)
    return blocks.mean(-2).reshape(fine._batch(x) + coarse.field_shape)


def pooling_factors(
    shape: tuple[int, ...], primes: tuple[int, ...] = PRIMES
) -> tuple[int, ...] | None:
    """By which each side is divided on the next coarser lattice; None where one cannot be."""
    factors = tuple(p for p in (_factor(n, primes) for n in shape) if p is not None)
    return factors if len(factors) == len(shape) else None


@functools.lru_cache(maxsize=256)
def pooling_steps(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Factors of every step from a shape to the coarsest one that there can be, finest first."""
    steps = []
    while (factors := pooling_factors(shape)) is not None:
        steps.append(factors)
        shape = tuple(n // p for n, p in zip(shape, factors, strict=True))
    return tuple(steps)


def next_side(side: int, steps: int) -> int:
    """The smallest side, not below `side`, of which `steps` divisions leave two cells or more.

    The smallest of all is 2^(steps + 1), and a multiple of 2^steps is never far.
    """
    side = max(side, 2 ** (steps + 1))
    while True:
        rest = side
        for _ in range(steps):
            rest //= _factor(rest, PRIMES) or rest
        if rest > 1:
            return side
        side += 1


def _factor(side: int, primes: tuple[int, ...]) -> int | None:
    return next((p for p in primes if side % p == 0), None)


def _rest(side: int) -> int:
    """What is left of a side after it is divided by 2, 3 and 5 as often as possible."""
    while (p := _factor(side, PRIMES)) is not None:
        side //= p
    return side


def to_blocks(x: Any, window: tuple[int, ...]) -> Any:
    """Cut `(..., *sides, c)` into windows: `(..., *sides / window, cells of a window, c)`.

    The array may be JAX's or NumPy's.
    """
    n = len(window)
    batch, sides, c = x.shape[: -n - 1], x.shape[-n - 1 : -1], x.shape[-1]
    coarse = tuple(side // w for side, w in zip(sides, window, strict=True))
    paired = itertools.chain.from_iterable(zip(coarse, window, strict=True))
    x = x.reshape(*batch, *paired, c)
    b = len(batch)
    order = (*range(b), *range(b, b + 2 * n, 2), *range(b + 1, b + 2 * n, 2), b + 2 * n)
    return x.transpose(order).reshape(*batch, *coarse, math.prod(window), c)


def from_blocks(blocks: Any, window: tuple[int, ...]) -> Any:
    """Inverse of `to_blocks`."""
    n = len(window)
    batch, coarse, c = blocks.shape[: -n - 2], blocks.shape[-n - 2 : -2], blocks.shape[-1]
    b = len(batch)
    x = blocks.reshape(*batch, *coarse, *window, c)
    pairs = itertools.chain.from_iterable((b + i, b + n + i) for i in range(n))
    x = x.transpose(*range(b), *pairs, b + 2 * n)
    return x.reshape(*batch, *(m * w for m, w in zip(coarse, window, strict=True)), c)


def haar(blocks: Array) -> Array:
    """Orthonormal Haar transform of the cells of each window, `(..., 2^k, c)`; its own inverse.

    Band 0 is the low-pass band, 2^(k/2) times the window's average (appendix G). Bit j of a band's
    number, read like the cell's own position, says whether axis j was differenced.
    """
    *lead, cells, c = blocks.shape
    k = cells.bit_length() - 1
    x = blocks.reshape(*lead, *(2,) * k, c)
    for axis in range(-k - 1, -1):
        a, b = jnp.split(x, 2, axis)
        x = jnp.concatenate([a + b, a - b], axis) * math.sqrt(0.5)
    return x.reshape(blocks.shape)


def bands(blocks: Array, window: tuple[int, ...], inverse: bool = False) -> Array:
    """Orthonormal bands of the cells of each window, `(..., cells, c)`, or the cells of its bands.

    Haar's for windows of one or two cells along each axis. Along an axis of three or five cells
    they are cosines, of which two would be Haar's. Band 0 is the root of the number of cells times
    the window's average.
    """
    if max(window) <= 2:
        return haar(blocks)
    x = blocks.reshape(*blocks.shape[:-2], *window, blocks.shape[-1])
    for axis, p in zip(range(-len(window) - 1, -1), window, strict=True):
        matrix = jnp.asarray(band_matrix(p).T if inverse else band_matrix(p), x.dtype)
        x = jnp.tensordot(matrix, x, (1, axis), precision=jax.lax.Precision.HIGHEST)
        x = jnp.moveaxis(x, 0, axis)
    return x.reshape(blocks.shape)


@functools.lru_cache
def band_matrix(p: int) -> np.ndarray:
    """The orthonormal cosines of p cells (DCT-II), one per row, in float64."""
    rows = np.cos(np.pi * np.outer(np.arange(p), np.arange(p) + 0.5) / p) * math.sqrt(2 / p)
    rows[0] = math.sqrt(1 / p)
    return rows


def join_bands(flat: Array, lattice: Lattice, noise_std: ArrayLike) -> Array:
    """Bands `(..., *coarse, cells, c)` from `(..., d)`: coarse field, standardised details."""
    coarser = lattice.coarsen()
    batch, sides, cells = flat.shape[:-1], coarser.shape, math.prod(lattice.factors)
    coarse, noise = jnp.split(flat, [coarser.dim], axis=-1)
    low = coarse.reshape(*batch, *sides, 1, -1) * cells**0.5
    details = noise.reshape(*batch, *sides, cells - 1, low.shape[-1]) * noise_std
    return jnp.concatenate([low, details], -2)


def split_bands(blocks: Array, noise_std: ArrayLike, ndim: int | None = None) -> Array:
    """Inverse of `join_bands`; `ndim` spatial axes (default: all but the last two)."""
    n = blocks.ndim - 2 if ndim is None else ndim
    batch = blocks.shape[: blocks.ndim - 2 - n]
    coarse = blocks[..., 0, :] * blocks.shape[-2] ** -0.5
    noise = blocks[..., 1:, :] / noise_std
    return jnp.concatenate([coarse.reshape(*batch, -1), noise.reshape(*batch, -1)], -1)
