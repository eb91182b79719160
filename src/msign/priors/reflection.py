"""Whitened prior conditioning as one small Householder reflection per coarse mode."""

import jax.numpy as jnp
import numpy as np
import paramax
from flowjax.bijections import AbstractBijection
from jaxtyping import Array

from msign.noise import on_device


class BlockReflection(AbstractBijection):
    """Columns of a matrix `(b, k)`, each reflected so that e_1 goes to a given direction.

    The flat input is the matrix row by row: first the k coarse variables, then the noise. A
    reflection is its own inverse and needs as many numbers as its direction.

    Args:
        directions: `(b, k)`, the image of e_1 in each column, of any length; the first entry
            must not be negative.
        channels: Copies of every column, as a last axis.
    """

    shape: tuple[int, ...]
    cond_shape: None
    normal: Array

    def __init__(self, directions: np.ndarray, channels: int = 1):
        self.shape = (directions.size * channels,)
        self.cond_shape = None
        v = directions / np.sqrt((directions**2).sum(0))
        rest = (v[1:] ** 2).sum(0)
        normal = np.concatenate([(rest / (1 + v[0]))[None], -v[1:]])  # e_1 - v, no cancellation
        length = np.sqrt((normal**2).sum(0))
        normal = np.divide(normal, length, out=np.zeros_like(normal), where=length > 0)
        self.normal = paramax.non_trainable(on_device(normal))

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        normal = self.normal[..., None]
        rows = x.reshape(*self.normal.shape, -1)
        # A sum of rows, written out: as a reduction it is four times slower on CPUs.
        along = sum(normal[i] * rows[i] for i in range(len(normal)))
        return (rows - 2 * normal * along).reshape(self.shape), jnp.zeros((), x.dtype)

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        return self.transform_and_log_det(y)
