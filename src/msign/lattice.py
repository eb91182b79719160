"""Lattices, and the linear maps between neighbouring scales (paper, section 2 and appendix D).

A field is an array with one value per cell (`channels=None`) or a vector of channels per cell,
channels last. Every function below accepts any number of leading batch axes.
"""

import dataclasses
import itertools
import math

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from msign import checks


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
        """How many scales this lattice has: one more than the times every side can be halved."""
        return 1 + min((n & -n).bit_length() - 1 for n in self.shape)

    def coarsen(self) -> "Lattice":
        """The lattice of half the side lengths."""
        odd = [n for n in self.shape if n % 2]
        if odd:
            raise ValueError(f"shape {self.shape} cannot be halved: side {odd[0]} is odd")
        return Lattice(tuple(n // 2 for n in self.shape), self.channels)

    def hierarchy(self, scales: int) -> tuple["Lattice", ...]:
        """Lattices of scales 1 (coarsest) to `scales` (this one)."""
        checks.integer("scales", scales, 1)
        if scales > self.max_scales:
            raise ValueError(
                f"scales must be at most {self.max_scales} for shape {self.shape}, whose sides "
                f"cannot be halved more often, got {scales}"
            )
        lattices = [self]
        for _ in range(scales - 1):
            lattices.append(lattices[-1].coarsen())
        return tuple(reversed(lattices))

    def pool(self, x: ArrayLike) -> Array:
        """Average pooling A with window and stride 2: a field here to one on `coarsen()`."""
        coarse = self.coarsen()
        x = self.check("x", x)
        blocks = to_blocks(self._with_channels(x), (2,) * self.ndim)
        return blocks.mean(-2).reshape(self._batch(x) + coarse.field_shape)

    def upsample(self, x: ArrayLike) -> Array:
        """Nearest-neighbour upsampling B: a field on `coarsen()` to one here; A B = identity."""
        coarse = self.coarsen()
        x = coarse.check("x", x)
        for axis in coarse.axes:
            x = jnp.repeat(x, 2, axis)
        return x

    def check(self, name: str, x: ArrayLike) -> Array:
        """`x` as an array of fields on this lattice, or an error that names it."""
        array = jnp.asarray(x)
        checks.shape(name, array.shape, self.field_shape)
        return array

    def _batch(self, x: Array) -> tuple[int, ...]:
        return x.shape[: x.ndim - len(self.field_shape)]

    def _with_channels(self, x: Array) -> Array:
        return x[..., None] if self.channels is None else x


def to_blocks(x: Array, window: tuple[int, ...]) -> Array:
    """Cut `(..., *sides, c)` into windows: `(..., *sides / window, cells of a window, c)`."""
    n = len(window)
    batch, sides, c = x.shape[: -n - 1], x.shape[-n - 1 : -1], x.shape[-1]
    coarse = tuple(side // w for side, w in zip(sides, window, strict=True))
    paired = itertools.chain.from_iterable(zip(coarse, window, strict=True))
    x = x.reshape(*batch, *paired, c)
    b = len(batch)
    order = (*range(b), *range(b, b + 2 * n, 2), *range(b + 1, b + 2 * n, 2), b + 2 * n)
    return x.transpose(order).reshape(*batch, *coarse, math.prod(window), c)


def from_blocks(blocks: Array, window: tuple[int, ...]) -> Array:
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


def join_bands(flat: Array, lattice: Lattice, noise_std: ArrayLike) -> Array:
    """Haar blocks `(..., *coarse, 2^n, c)` from `(..., d)`: coarse field, standardised details."""
    n = lattice.ndim
    batch = flat.shape[:-1]
    sides = lattice.coarsen().shape
    coarse, noise = jnp.split(flat, [lattice.dim >> n], axis=-1)
    low = coarse.reshape(*batch, *sides, 1, -1) * 2 ** (n / 2)
    details = noise.reshape(*batch, *sides, 2**n - 1, low.shape[-1]) * noise_std
    return jnp.concatenate([low, details], -2)


def split_bands(blocks: Array, noise_std: ArrayLike, ndim: int | None = None) -> Array:
    """Inverse of `join_bands`; `ndim` spatial axes (default: all but the last two)."""
    n = blocks.ndim - 2 if ndim is None else ndim
    batch = blocks.shape[: blocks.ndim - 2 - n]
    coarse = blocks[..., 0, :] * 2 ** (-n / 2)
    noise = blocks[..., 1:, :] / noise_std
    return jnp.concatenate([coarse.reshape(*batch, -1), noise.reshape(*batch, -1)], -1)
