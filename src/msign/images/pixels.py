"""From the integers of an image to the real numbers of a field, and back, with every constant.

An image x has values 0, ..., levels - 1. With uniform noise u in [0, 1) it becomes continuous, and
an element-wise map g takes x + u to the field v that the network models. The change of variables
and Jensen's inequality give

    log P(x) >= E_u [ log p(v) + log|det dv/du| ],   v = g(x + u),

so that bits per dimension, -log P(x) / (n log 2) for n values, are bounded from above by what
`bits_per_dim` returns. With `plain`, v = (x + u) / levels - 1/2. With `sigmoid`, the paper's output
activation (section 3), sigmoid(v) = margin + (1 - 2 margin) (x + u) / levels.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from msign import checks

OUTPUTS = ("plain", "sigmoid")


@dataclasses.dataclass(frozen=True)
class Pixels:
    """How grey levels become numbers.

    Attributes:
        levels: Number of grey levels of the modelled images: 256 for 8 bits, 17 for `digits`.
        output: `plain`: scaled to [-1/2, 1/2]; `sigmoid`: an output activation, so that samples
            cannot leave the range.
        margin: Distance that `sigmoid` keeps from 0 and 1.
        source_levels: Grey levels of the files, a multiple of `levels`: neighbouring levels are
            merged (8-bit files modelled with 5 bits: 256 and 32). None: the same as `levels`.

    Example:
        >>> import jax.numpy as jnp
        >>> from msign.images import Pixels
        >>> pixels = Pixels()
        >>> v, log_det = pixels.field(jnp.zeros((2, 2, 1), "uint8"), jnp.full((2, 2, 1), 0.5))
        >>> print(v.ravel(), pixels.image(v).ravel())
        [-0.49804688 -0.49804688 -0.49804688 -0.49804688] [0 0 0 0]
        >>> print(pixels.bits_per_dim(0.0, log_det, 4))  # density one: the uniform model
        8.0
    """

    levels: int = 256
    output: str = "plain"
    margin: float = 1e-6
    source_levels: int | None = None

    def __post_init__(self) -> None:
        checks.integer("levels", self.levels, 2, 256)
        checks.one_of("output", self.output, OUTPUTS)
        if not 0 < checks.finite("margin", self.margin) < 0.5:
            raise ValueError(f"margin must lie between 0 and 1/2, got {self.margin!r}")
        source = self.source_levels
        if source is not None and (source < self.levels or source % self.levels):
            raise ValueError(
                f"source_levels must be a multiple of levels={self.levels}, got {source!r}"
            )

    @classmethod
    def with_bits(cls, source_levels: int, bits: int | None, output: str = "plain") -> "Pixels":
        """All levels of the files (`bits` None), or 2^bits of them."""
        if bits is None:
            return cls(source_levels, output)
        if 2 ** checks.integer("bits", bits, 1, 8) > source_levels or source_levels % 2**bits:
            raise ValueError(f"bits must divide {source_levels} grey levels evenly, got {bits!r}")
        return cls(2**bits, output, source_levels=source_levels)

    def reduce(self, images: Array) -> Array:
        """Grey levels of the model from those of the files."""
        merged = 1 if self.source_levels is None else self.source_levels // self.levels
        return images // merged if merged > 1 else images

    def field(self, images: Array, noise: Array) -> tuple[Array, Array]:
        """Field v of one image (already reduced) and uniform noise; log|det dv/du|."""
        y = (images.astype(noise.dtype) + noise) / self.levels
        log_levels = y.size * math.log(self.levels)
        if self.output == "plain":
            return y - 0.5, jnp.asarray(-log_levels, noise.dtype)
        s = self.margin + (1 - 2 * self.margin) * y
        log_slope = math.log(1 - 2 * self.margin) - jnp.log(s) - jnp.log1p(-s)
        return jnp.log(s) - jnp.log1p(-s), log_slope.sum() - log_levels

    def grey(self, v: Array) -> Array:
        """Continuous grey values x + u of a field: the inverse of `field`."""
        if self.output == "plain":
            return (v + 0.5) * self.levels
        y = (jax.nn.sigmoid(v) - self.margin) / (1 - 2 * self.margin)
        return y * self.levels

    def image(self, v: ArrayLike) -> np.ndarray:
        """Grey levels of a field; what lies outside of the range is clipped."""
        grey = np.floor(np.asarray(self.grey(jnp.asarray(v))))
        return np.clip(np.nan_to_num(grey), 0, self.levels - 1).astype(np.uint8)

    def bits_per_dim(self, log_p: ArrayLike, log_det: ArrayLike, values: int) -> Array:
        """Bits per dimension from natural logarithms, divided by the `values` of an image."""
        return -(jnp.asarray(log_p) + log_det) / (values * math.log(2))

    def shown(self, images: ArrayLike) -> np.ndarray:
        """The same images with 256 grey levels, to look at."""
        scaled = np.asarray(images, np.float64) * (255 / (self.levels - 1))
        return np.round(scaled).astype(np.uint8)
