"""Affine coupling on a lattice, with a small convolutional network as conditioner."""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from flowjax.bijections import AbstractBijection
from jaxtyping import Array, PRNGKeyArray

from msign import checks
from msign.bijections.channels import bounded
from msign.bijections.conv import convolve, mix_channels


@jax.custom_vjp
def _tanh(x: Array) -> Array:
    """``jnp.tanh``; its derivative keeps the result only, which the next layer keeps anyway."""
    return jnp.tanh(x)


_tanh.defvjp(lambda x: (y := jnp.tanh(x), y), lambda y, dy: (dy * (1 - y * y),))

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": _tanh,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


class ConvConditioner(eqx.Module):
    """3^n convolution, 1^n convolution, 3^n convolution, the last one zero at the start.

    Axes of a single cell get kernels of side 1. With `position`, the cell's coordinates in
    [-1, 1] enter the first layer linearly; they do not depend on the sample and cost nothing.
    """

    first: Array
    first_bias: Array
    place: Array | None
    middle: Array
    middle_bias: Array
    last: Array
    last_bias: Array
    cells: tuple[int, ...] = eqx.field(static=True)
    activation: str = eqx.field(static=True)

    def __init__(
        self,
        key: PRNGKeyArray,
        cells: tuple[int, ...],
        inputs: int,
        outputs: int,
        hidden: int,
        activation: str,
        position: bool,
    ):
        kernel = tuple(3 if n > 1 else 1 for n in cells)
        fan_in = math.prod(kernel) * inputs
        places = sum(n > 1 for n in cells) if position else 0
        # One draw for all weights: most of the time to compile this is in the generator.
        weights = jr.normal(key, (fan_in + places + hidden, hidden))
        first, place, middle = jnp.split(weights, [fan_in, fan_in + places])
        self.first = first.reshape(*kernel, inputs, hidden) / math.sqrt(fan_in)
        self.first_bias = jnp.zeros(hidden)
        self.place = place if places else None
        self.middle = middle / math.sqrt(hidden)
        self.middle_bias = jnp.zeros(hidden)
        self.last = jnp.zeros((*kernel, hidden, outputs))
        self.last_bias = jnp.zeros(outputs)
        self.cells = cells
        self.activation = checks.one_of("activation", activation, ACTIVATIONS)

    def __call__(self, x: Array) -> Array:
        """Outputs per cell `(*cells, outputs)` from inputs per cell."""
        act = ACTIVATIONS[self.activation]
        bias = self.first_bias
        if self.place is not None:
            bias = bias + jnp.asarray(_coordinates(self.cells), x.dtype) @ self.place
        h = act(convolve(x, self.first) + bias)
        h = act(mix_channels(h, self.middle) + self.middle_bias)
        return convolve(h, self.last) + self.last_bias


class AffineCoupling(AbstractBijection):
    """y_2 = exp(s(x_1)) x_2 + t(x_1), y_1 = x_1, halves of the channels; identity at the start.

    Args:
        key: Of the conditioner's initial weights.
        shape: Shape of the field, channels last, at least two of them.
        hidden: Hidden channels of the conditioner.
        activation: `tanh`, `relu` or `silu`.
        position: Whether the conditioner sees where a cell is.
        max_log_scale: Bound on |s|.
    """

    shape: tuple[int, ...]
    cond_shape: None
    conditioner: ConvConditioner
    max_log_scale: float = eqx.field(static=True)

    def __init__(
        self,
        key: PRNGKeyArray,
        shape: tuple[int, ...],
        hidden: int = 32,
        activation: str = "tanh",
        position: bool = True,
        max_log_scale: float = 1.0,
    ):
        c = checks.integer("channels of shape", shape[-1], 2)
        self.shape = tuple(shape)
        self.cond_shape = None
        self.max_log_scale = checks.positive("max_log_scale", max_log_scale)
        self.conditioner = ConvConditioner(
            key,
            self.shape[:-1],
            inputs=c // 2,
            outputs=2 * (c - c // 2),
            hidden=checks.integer("hidden", hidden, 1),
            activation=activation,
            position=position,
        )

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        x1, x2, log_scale, shift = self._split(x)
        return jnp.concatenate([x1, x2 * jnp.exp(log_scale) + shift], -1), log_scale.sum()

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        y1, y2, log_scale, shift = self._split(y)
        return jnp.concatenate([y1, (y2 - shift) * jnp.exp(-log_scale)], -1), -log_scale.sum()

    def _split(self, x: Array) -> tuple[Array, Array, Array, Array]:
        x1, x2 = jnp.split(x, [self.shape[-1] // 2], -1)
        raw, shift = jnp.split(self.conditioner(x1), 2, -1)
        return x1, x2, bounded(raw, self.max_log_scale), shift


def _coordinates(cells: tuple[int, ...]) -> np.ndarray:
    """Centres of the cells in [-1, 1] along each axis of more than one cell: `(*cells, axes)`."""
    lines = [(2 * np.arange(n) + 1) / n - 1 for n in cells]
    mesh = np.meshgrid(*lines, indexing="ij")
    return np.stack([m for m, n in zip(mesh, cells, strict=True) if n > 1], -1)
