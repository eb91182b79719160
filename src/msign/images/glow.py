"""The baseline: Glow with squeeze and split, of the same blocks as MsIGN's flows.

At each level the field is squeezed (2 x 2 cells become channels), K blocks are applied, and half
of the channels leave as noise, Gaussian with mean and scale from a 3 x 3 convolution of the other
half (zero at the start). The rest goes on, so that channels double from level to level, which is
where its parameters are.
"""

import itertools
import math
import os
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import paramax
from flowjax.bijections import Scan
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from msign import archive, checks, passes
from msign.bijections import GlowConfig, glow_stack, start_from_data
from msign.bijections.channels import MAX_LOG_SCALE, bounded
from msign.bijections.conv import convolve
from msign.lattice import Lattice, from_blocks, to_blocks
from msign.noise import as_array, on_device


class SplitPrior(eqx.Module):
    """Mean and log-scale of the channels that leave at a split, from those that stay."""

    weight: Array
    bias: Array

    def __init__(self, kept: int, leaving: int):
        self.weight = jnp.zeros((3, 3, kept, 2 * leaving))
        self.bias = jnp.zeros(2 * leaving)

    def __call__(self, h: Array) -> tuple[Array, Array]:
        mean, raw = jnp.split(convolve(h, self.weight) + self.bias, 2, -1)
        return mean, bounded(raw, MAX_LOG_SCALE)


class Glow(eqx.Module):
    """A Glow network on images.

    Methods have the names and meanings of `MsIGN`'s; there is one scale to train, the last.

    Args:
        lattice: Of the images, with channels.
        scales: Number of levels; sides are halved as often.
        flow: Blocks and hidden channels; entry l of a tuple is that of `MsIGN`'s scale l, the
            coarsest first.
        mean: Subtracted from the images.
        std: Divides them.
        key: Of the initial weights.
    """

    flows: tuple[Scan, ...]
    splits: tuple[SplitPrior, ...]
    mean: Array
    std: Array
    lattice: Lattice = eqx.field(static=True)
    config: GlowConfig = eqx.field(static=True)

    def __init__(
        self,
        lattice: Lattice,
        scales: int,
        flow: GlowConfig,
        mean: float = 0.0,
        std: float = 1.0,
        key: PRNGKeyArray | None = None,
    ):
        halvings = min((n & -n).bit_length() - 1 for n in lattice.shape)
        if checks.integer("scales", scales, 1) > halvings:
            raise ValueError(
                f"scales must be at most {halvings} for images of shape {lattice.shape}, whose "
                f"sides Glow halves at every level, got {scales}"
            )
        key = jr.key(0) if key is None else key
        self.lattice, self.config = lattice, flow
        self.mean = paramax.non_trainable(on_device(mean))
        self.std = paramax.non_trainable(on_device(checks.positive("std", std)))
        flows, splits = [], []
        for level, shape in enumerate(_shapes(lattice, scales)):
            c = flow.at(scales - level, scales)
            flows.append(
                glow_stack(
                    jr.fold_in(key, level),
                    shape,
                    checks.integer("blocks", c.blocks, 1),  # type: ignore[arg-type]
                    c.hidden,  # type: ignore[arg-type]
                    c.activation,
                    c.position,
                    c.max_log_scale,
                )
            )
            if level < scales - 1:
                splits.append(SplitPrior(shape[-1] // 2, shape[-1] - shape[-1] // 2))
        self.flows, self.splits = tuple(flows), tuple(splits)

    @property
    def scales(self) -> int:
        """Number of levels."""
        return len(self.flows)

    @property
    def lattices(self) -> tuple[Lattice, ...]:
        """Lattices of pooled images, coarse to fine, as `MsIGN` has them."""
        return self.lattice.hierarchy(self.scales)

    # --- one image -------------------------------------------------------------------------

    def backward(self, x: Array) -> tuple[tuple[Array, ...], Array]:
        """Noise of one image, the coarsest level first, and the log-density of the image."""
        z, log_det = self.inverse_and_log_det(x)
        return z, log_det + sum(_log_normal(entry) for entry in z)

    def forward(self, z: tuple[Array, ...]) -> Array:
        """One image of its noise: the inverse of `backward`."""
        return self.transform_and_log_det(z)[0]

    def inverse_and_log_det(self, x: Array) -> tuple[tuple[Array, ...], Array]:
        """Noise of one image, the coarsest level first, and the log-determinant on the way."""
        this = paramax.unwrap(self)
        h = (x - this.mean) / this.std
        total = -self.lattice.dim * jnp.log(this.std)
        noise = []
        for level, flow in enumerate(this.flows):
            h = _squeeze(h)
            h, log_det = flow.inverse_and_log_det(h)
            total += log_det
            if level < self.scales - 1:
                h, leaving = jnp.split(h, [h.shape[-1] // 2], -1)
                mean, log_scale = this.splits[level](h)
                noise.append(((leaving - mean) * jnp.exp(-log_scale)).reshape(-1))
                total -= log_scale.sum()
        return (h.reshape(-1), *reversed(noise)), total

    def transform_and_log_det(self, z: tuple[Array, ...]) -> tuple[Array, Array]:
        """One image of its noise, and the log-determinant on the way."""
        this = paramax.unwrap(self)
        shapes = _shapes(self.lattice, self.scales)
        h, total = z[0].reshape(shapes[-1]), self.lattice.dim * jnp.log(this.std)
        for level in reversed(range(self.scales)):
            if level < self.scales - 1:
                mean, log_scale = this.splits[level](h)
                leaving = z[self.scales - 1 - level].reshape(mean.shape)
                h = jnp.concatenate([h, leaving * jnp.exp(log_scale) + mean], -1)
                total += log_scale.sum()
            h, log_det = this.flows[level].transform_and_log_det(h)
            h, total = _unsqueeze(h), total + log_det
        return h * this.std + this.mean, total

    # --- batches ---------------------------------------------------------------------------

    def log_prob(self, x: ArrayLike, scale: int | None = None) -> Array:
        """Log-density of images with any leading axes."""
        self._check_scale(scale)
        return _log_prob(self, self.lattice.check("x", x))

    def encode(self, x: ArrayLike) -> tuple[Array, ...]:
        """Noise of images, the coarsest level first."""
        return _encode(self, self.lattice.check("x", x))

    def decode(self, z: Sequence[ArrayLike]) -> Array:
        """Images of noise `(n, size)` per level."""
        arrays = tuple(as_array(entry) for entry in z)
        for l, (entry, size) in enumerate(zip(arrays, self.noise_sizes(), strict=True), start=1):
            checks.shape(f"z_{l}", entry.shape, (size,))
        return _decode(self, arrays)

    def noise(self, key: PRNGKeyArray, n: int) -> tuple[Array, ...]:
        """Standard normal noise of n images."""
        return passes.noise(key, checks.integer("n", n, 0), self.noise_sizes(), self.flow_dtype)

    def sample(
        self, key: PRNGKeyArray, n: int, scale: int | None = None, temperature: float = 1.0
    ) -> Array:
        """Draw n images."""
        self._check_scale(scale)
        t = checks.positive("temperature", temperature)
        return self.decode([t * z for z in self.noise(key, n)])

    @property
    def flow_dtype(self) -> Any:
        """Type of the weights."""
        return self.flows[0].bijection.actnorm.shift.dtype

    def _check_scale(self, scale: int | None) -> None:
        if scale not in (None, self.scales):
            raise ValueError(f"scale must be {self.scales}: Glow has no coarser density")

    def noise_sizes(self) -> tuple[int, ...]:
        """Lengths of the noise of each level, the coarsest first."""
        shapes = _shapes(self.lattice, self.scales)
        leaving = [math.prod(s[:-1]) * (s[-1] - s[-1] // 2) for s in shapes[:-1]]
        return (math.prod(shapes[-1]), *reversed(leaving))

    # --- start, description, files -------------------------------------------------------------

    def started_from(self, fields: ArrayLike) -> "Glow":
        """The network with data-dependent actnorms: each sees unit variance."""
        h = (self.lattice.check("fields", fields) - paramax.unwrap(self.mean)) / paramax.unwrap(
            self.std
        )
        flows = []
        for flow in self.flows:
            h = jax.vmap(_squeeze)(h)
            started = start_from_data(flow, h)
            flows.append(type(flow)(started.bijection))
            h = jax.vmap(started.inverse)(h)
            h = h[..., : h.shape[-1] // 2]
        return eqx.tree_at(lambda g: g.flows, self, tuple(flows))

    def parameters(self) -> tuple[int, ...]:
        """Number of trainable parameters of each level, the coarsest first."""
        pairs = itertools.zip_longest(self.flows, self.splits)
        return tuple(archive.count_parameters(pair) for pair in pairs)[::-1]

    def describe(self) -> dict[str, Any]:
        """The architecture as plain JSON values."""
        return {
            "model": "glow",
            "shape": list(self.lattice.shape),
            "channels": self.lattice.channels,
            "scales": self.scales,
            "flow": archive.describe_config(self.config),
            "parameters": list(self.parameters()),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write arrays and a readable description to one file."""
        archive.save(path, self, self.describe())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Glow":
        """Read a network."""
        description, _ = archive.read_description(path)
        if description.get("model") != "glow":
            raise ValueError(f"{path} must hold a Glow network, got {description.get('model')!r}")
        lattice = Lattice(tuple(description["shape"]), description["channels"])
        flow = GlowConfig(**description["flow"])
        return archive.load(path, cls(lattice, description["scales"], flow))


def _shapes(lattice: Lattice, scales: int) -> list[tuple[int, ...]]:
    """Shape of the squeezed field at each level, the finest first."""
    height, width = lattice.shape
    channels = lattice.channels or 1
    shapes: list[tuple[int, ...]] = []
    for _ in range(scales):
        height, width, channels = height // 2, width // 2, 4 * channels
        shapes.append((height, width, channels))
        channels //= 2
    return shapes


def _squeeze(h: Array) -> Array:
    blocks = to_blocks(h, (2, 2))
    return blocks.reshape(*blocks.shape[:-2], -1)


def _unsqueeze(h: Array) -> Array:
    return from_blocks(h.reshape(*h.shape[:-1], 4, -1), (2, 2))


def _log_normal(z: Array) -> Array:
    return -0.5 * jnp.sum(z**2) - 0.5 * z.size * math.log(2 * math.pi)


@eqx.filter_jit
def _log_prob(glow: Glow, x: Array) -> Array:
    flat = x.reshape(-1, *glow.lattice.field_shape)
    return jax.vmap(lambda field: glow.backward(field)[1])(flat).reshape(x.shape[:-3])


@eqx.filter_jit
def _encode(glow: Glow, x: Array) -> tuple[Array, ...]:
    flat = x.reshape(-1, *glow.lattice.field_shape)
    z = jax.vmap(lambda field: glow.backward(field)[0])(flat)
    return tuple(entry.reshape(*x.shape[:-3], -1) for entry in z)


@eqx.filter_jit
def _decode(glow: Glow, z: tuple[Array, ...]) -> Array:
    flat = tuple(entry.reshape(-1, entry.shape[-1]) for entry in z)
    x = jax.vmap(lambda *entry: glow.forward(entry))(*flat)
    return x.reshape(*z[0].shape[:-1], *glow.lattice.field_shape)
