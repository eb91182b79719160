"""The coordinates in which a flow works: cells of a window as channels, raw or standardised.

A flowjax bijection keeps its shape, so a change of coordinates is a wrapper: go there, apply the
inner bijection, come back. The log-determinant is the inner one's.
"""

import equinox as eqx
import jax.numpy as jnp
import paramax
from flowjax.bijections import AbstractBijection
from jaxtyping import Array, ArrayLike

from msign import checks
from msign.lattice import Lattice, from_blocks, haar, to_blocks

MAX_DENSE_CHANNELS = 1024


def squeeze_window(lattice: Lattice) -> tuple[int, ...]:
    """Two cells along each axis of even side; the whole lattice where no side is even.

    A large one (more than 1024 values) of odd sides has the windows of pooling, of three or five
    cells, where it can be pooled.
    """
    window = tuple(2 if n % 2 == 0 else 1 for n in lattice.shape)
    if max(window) > 1:
        return window
    large = lattice.dim > MAX_DENSE_CHANNELS
    return lattice.factors if large and lattice.max_scales > 1 else lattice.shape


def squeezed_shape(lattice: Lattice, window: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a field after the squeeze: fewer cells, more channels."""
    for side, w in zip(lattice.shape, window, strict=True):
        if w < 1 or side % w:
            raise ValueError(f"window must divide the lattice {lattice.shape}, got {window}")
    cells = tuple(n // w for n, w in zip(lattice.shape, window, strict=True))
    channels = lattice.dim
    for n in cells:
        channels //= n
    return (*cells, channels)


class Squeezed(AbstractBijection):
    """A bijection on the squeezed field: windows of cells become channels, band by band.

    Args:
        inner: Bijection of shape `squeezed_shape(lattice, window)`.
        lattice: The lattice of the field.
        window: Cells per window along each axis.
        basis: `pixel`: the cells as they are; `haar`: their orthonormal Haar bands (windows of
            one or two cells per axis only).
        mean: Subtracted from the field first: a number, or one field.
        std: Divides the channels of the squeezed field; broadcast to its shape. With a prior's
            mean and `marginal_std` every channel is standard normal under the prior.
    """

    shape: tuple[int, ...]
    cond_shape: tuple[int, ...] | None
    inner: AbstractBijection
    lattice: Lattice = eqx.field(static=True)
    window: tuple[int, ...] = eqx.field(static=True)
    basis: str = eqx.field(static=True)
    mean: Array
    std: Array

    def __init__(
        self,
        inner: AbstractBijection,
        lattice: Lattice,
        window: tuple[int, ...],
        basis: str = "haar",
        mean: ArrayLike = 0.0,
        std: ArrayLike = 1.0,
    ):
        expected = squeezed_shape(lattice, window)
        if inner.shape != expected:
            raise ValueError(f"inner must have shape {expected}, got {inner.shape}")
        checks.one_of("basis", basis, ("pixel", "haar"))
        if basis == "haar" and max(window) > 2:
            raise ValueError(f"window must have sides 1 or 2 with basis='haar', got {window}")
        self.shape = lattice.field_shape
        self.cond_shape = inner.cond_shape
        self.inner = inner
        self.lattice = lattice
        self.window = window
        self.basis = basis
        self.mean = paramax.non_trainable(jnp.asarray(mean, float))
        self.std = paramax.non_trainable(jnp.asarray(std, float))

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        y, log_det = self.inner.transform_and_log_det(self.squeeze(x), condition)
        return self.unsqueeze(y), log_det

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        x, log_det = self.inner.inverse_and_log_det(self.squeeze(y), condition)
        return self.unsqueeze(x), log_det

    def squeeze(self, x: Array) -> Array:
        """The squeezed, standardised field."""
        blocks = to_blocks((x - self.mean).reshape(*self.lattice.shape, -1), self.window)
        blocks = haar(blocks) if self.basis == "haar" else blocks
        return blocks.reshape(self.inner.shape) / self.std

    def unsqueeze(self, y: Array) -> Array:
        """Inverse of `squeeze`."""
        channels = self.lattice.channels or 1
        blocks = (y * self.std).reshape(*y.shape[:-1], -1, channels)
        blocks = haar(blocks) if self.basis == "haar" else blocks
        return from_blocks(blocks, self.window).reshape(self.shape) + self.mean
