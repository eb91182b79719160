"""Glow blocks and stacks of them: the paper's invertible flow F_l (section 3)."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from flowjax.bijections import AbstractBijection, Identity, Scan
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from msign import checks
from msign.bijections.channels import ActNorm, ChannelMix
from msign.bijections.coupling import ACTIVATIONS, AffineCoupling
from msign.bijections.squeeze import (
    MAX_DENSE_CHANNELS,
    Squeezed,
    squeeze_window,
    squeezed_shape,
)
from msign.lattice import to_blocks
from msign.priors import Prior

COORDINATES = ("bands", "raw")


@dataclasses.dataclass(frozen=True)
class GlowConfig:
    """Hyper-parameters of the Glow flows of a network.

    Attributes:
        blocks: Blocks K at each scale: a number, or one per scale (0: identity).
        hidden: Hidden channels of the conditioners: a number, or one per scale.
        coordinates: `bands`: Haar bands divided by their prior standard deviations; `raw`: the
            cells' values as they are.
        activation: Of the conditioners: `tanh`, `relu` or `silu`.
        position: Whether conditioners see where a cell is.
        max_log_scale: Bound on the log-scale of one coupling.
    """

    blocks: int | tuple[int, ...] = 16
    hidden: int | tuple[int, ...] = 32
    coordinates: str = "bands"
    activation: str = "tanh"
    position: bool = True
    max_log_scale: float = 1.0

    def __post_init__(self) -> None:
        for name, minimum in (("blocks", 0), ("hidden", 1)):
            value = getattr(self, name)
            if isinstance(value, list):
                value = tuple(value)
                object.__setattr__(self, name, value)
            for entry in value if isinstance(value, tuple) else (value,):
                checks.integer(name, entry, minimum)
        checks.one_of("coordinates", self.coordinates, COORDINATES)
        checks.one_of("activation", self.activation, ACTIVATIONS)
        checks.positive("max_log_scale", self.max_log_scale)

    def at(self, scale: int, scales: int) -> "GlowConfig":
        """The same with the numbers of one scale (1 is the coarsest) of a network of `scales`."""
        blocks = checks.per_scale("blocks", self.blocks, scales)[scale - 1]
        hidden = checks.per_scale("hidden", self.hidden, scales)[scale - 1]
        return dataclasses.replace(self, blocks=blocks, hidden=hidden)


class GlowBlock(AbstractBijection):
    """Actnorm, invertible 1x1 convolution, affine coupling; identity at the start.

    The 1x1 convolution starts as a permutation that decides which channels the coupling moves,
    and the block ends by undoing it, so that blocks differ in what they move and a stack of them
    starts as the identity that Algorithm 1 asks for.
    """

    shape: tuple[int, ...]
    cond_shape: None
    actnorm: ActNorm
    mix: ChannelMix
    coupling: AffineCoupling

    def __init__(
        self,
        key: PRNGKeyArray,
        shape: tuple[int, ...],
        permutation: ArrayLike | None = None,
        hidden: int = 32,
        activation: str = "tanh",
        position: bool = True,
        max_log_scale: float = 1.0,
    ):
        self.shape = tuple(shape)
        self.cond_shape = None
        self.actnorm = ActNorm(shape)
        self.mix = ChannelMix(shape, permutation)
        self.coupling = AffineCoupling(key, shape, hidden, activation, position, max_log_scale)

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        x, norm = self.actnorm.transform_and_log_det(x)
        x, mix = self.mix.transform_and_log_det(x)
        x, coupling = self.coupling.transform_and_log_det(x)
        return x @ self._permutation(x), norm + mix + coupling

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        y, coupling = self.coupling.inverse_and_log_det(y @ self._permutation(y).T)
        y, mix = self.mix.inverse_and_log_det(y)
        y, norm = self.actnorm.inverse_and_log_det(y)
        return y, norm + mix + coupling

    def _permutation(self, x: Array) -> Array:
        """The fixed matrix P of `mix`: a product with a c x c matrix, faster than a gather."""
        return jax.nn.one_hot(self.mix.permutation, self.shape[-1], dtype=x.dtype)


def glow_stack(
    key: PRNGKeyArray,
    shape: tuple[int, ...],
    blocks: int,
    hidden: int = 32,
    activation: str = "tanh",
    position: bool = True,
    max_log_scale: float = 1.0,
) -> Scan:
    """`blocks` Glow blocks as one `Scan`; each pair of blocks moves every channel."""
    checks.integer("blocks", blocks, 1)
    return Scan(_stacked(key, tuple(shape), blocks, hidden, activation, position, max_log_scale))


@eqx.filter_jit
def _stacked(key: PRNGKeyArray, shape: tuple[int, ...], blocks: int, *options: Any) -> GlowBlock:
    """The blocks of a stack as one, each of whose arrays has a leading axis."""
    c = shape[-1]
    keys, order_key = jr.split(jr.fold_in(key, 0), blocks), jr.fold_in(key, 1)
    orders = jax.vmap(lambda k: jr.permutation(k, c))(jr.split(order_key, (blocks + 1) // 2))
    swapped = jnp.roll(orders, c - c // 2, axis=1)
    orders = jnp.stack([orders, swapped], 1).reshape(-1, c)[:blocks]
    return eqx.filter_vmap(lambda key, order: GlowBlock(key, shape, order, *options))(keys, orders)


def glow_flow(key: PRNGKeyArray, prior: Prior, config: GlowConfig) -> AbstractBijection:
    """The flow F_l for fields of `prior`'s lattice, in the coordinates that `config` asks for."""
    lattice = prior.lattice
    if config.blocks == 0:
        return Identity(lattice.field_shape)
    assert isinstance(config.blocks, int) and isinstance(config.hidden, int)
    window = squeeze_window(lattice)
    shape = squeezed_shape(lattice, window)
    if shape[-1] < 2:
        raise ValueError(f"blocks must be 0 on a lattice of a single value, got {config.blocks}")
    if window == lattice.shape and shape[-1] > MAX_DENSE_CHANNELS:
        raise ValueError(
            f"shape {lattice.shape} has no sides to squeeze by 2, 3 or 5, and {shape[-1]} values "
            f"are too many for one cell (at most {MAX_DENSE_CHANNELS}): use blocks=0 at this scale"
        )
    stack = glow_stack(
        key,
        shape,
        config.blocks,
        config.hidden,
        config.activation,
        config.position,
        config.max_log_scale,
    )
    if config.coordinates == "raw":
        return Squeezed(stack, lattice, window, "pixel")
    if max(window) <= 2:
        std = prior.marginal_std(window).reshape(shape)
        return Squeezed(stack, lattice, window, "haar", prior.mean, std)
    cells = prior.marginal_std((1,) * lattice.ndim).reshape(*lattice.shape, -1)
    std = to_blocks(cells, window).reshape(shape)
    return Squeezed(stack, lattice, window, "pixel", prior.mean, std)


def start_from_data(stack: Scan, fields: ArrayLike) -> Scan:
    """The stack with data-dependent actnorms: going from data to noise, each sees unit variance."""
    blocks = stack.bijection
    count = jax.tree.leaves(eqx.filter(blocks, eqx.is_array))[0].shape[0]
    started = []
    y = jnp.asarray(fields)
    for k in reversed(range(count)):
        block = jax.tree.map(lambda a, k=k: a[k] if eqx.is_array(a) else a, blocks)
        block, y = _start_block(block, y)
        started.append(block)
    merged = jax.tree.map(lambda *a: jnp.stack(a[::-1]) if eqx.is_array(a[0]) else a[0], *started)
    return Scan(merged)


@eqx.filter_jit
def _start_block(block: GlowBlock, y: Array) -> tuple[GlowBlock, Array]:
    """The block with its actnorm set from its outputs, and what its inverse makes of them."""
    neutral = eqx.tree_at(lambda b: b.actnorm, block, ActNorm(block.shape))
    actnorm = ActNorm.from_data(jax.vmap(neutral.inverse)(y))
    block = eqx.tree_at(lambda b: b.actnorm, block, actnorm)
    return block, jax.vmap(block.inverse)(y)
