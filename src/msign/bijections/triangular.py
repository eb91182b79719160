"""Affine maps with a triangular matrix."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flowjax.bijections import AbstractBijection
from jaxtyping import Array

from msign.bijections.channels import MAX_LOG_SCALE, bounded
from msign.noise import on_device


class TriangularMap(AbstractBijection):
    """y = L x + b, L lower triangular with positive, bounded diagonal; identity at the start."""

    shape: tuple[int, ...]
    cond_shape: None
    shift: Array
    lower: Array
    raw_log_diagonal: Array

    def __init__(self, rank: int):
        self.shape = (rank,)
        self.cond_shape = None
        self.shift = on_device(np.zeros(rank))
        self.lower = on_device(np.zeros(rank * (rank - 1) // 2))
        self.raw_log_diagonal = on_device(np.zeros(rank))

    @classmethod
    def from_matrix(cls, matrix: np.ndarray, shift: np.ndarray) -> "TriangularMap":
        """The map with a given lower triangular matrix and shift."""
        rank = len(shift)
        limit = 0.99 * MAX_LOG_SCALE
        log_diagonal = np.clip(np.log(np.diag(matrix)), -limit, limit) / MAX_LOG_SCALE
        values = (
            on_device(shift),
            on_device(matrix[np.tril_indices(rank, -1)]),
            on_device(MAX_LOG_SCALE * np.arctanh(log_diagonal)),
        )
        where = lambda m: (m.shift, m.lower, m.raw_log_diagonal)  # noqa: E731
        return eqx.tree_at(where, cls(rank), values)

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        matrix, log_diagonal = self._matrix()
        return matrix @ x + self.shift, log_diagonal.sum()

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        matrix, log_diagonal = self._matrix()
        return lower_inverse(matrix) @ (y - self.shift), -log_diagonal.sum()

    def matrix_and_shift(self) -> tuple[np.ndarray, np.ndarray]:
        """L and b, in double precision."""
        raw, lower, shift = (
            np.asarray(a, np.float64) for a in (self.raw_log_diagonal, self.lower, self.shift)
        )
        matrix = np.diag(np.exp(MAX_LOG_SCALE * np.tanh(raw / MAX_LOG_SCALE)))
        matrix[np.tril_indices(len(shift), -1)] = lower
        return matrix, shift

    def _matrix(self) -> tuple[Array, Array]:
        log_diagonal = bounded(self.raw_log_diagonal, MAX_LOG_SCALE)
        below = np.tril_indices(self.shape[0], -1)
        return jnp.diag(jnp.exp(log_diagonal)).at[below].set(self.lower), log_diagonal


def lower_inverse(matrix: Array) -> Array:
    """Inverse of a lower triangular matrix, by halves.

    A few products of blocks of one size at a time; on a CPU many times faster than a triangular
    solve inside of compiled code, and as stable.
    """
    n = len(matrix)
    size = 1 << max(0, n - 1).bit_length()
    padded = jnp.eye(size, dtype=matrix.dtype).at[:n, :n].set(matrix)
    blocks = (1 / jnp.diagonal(padded))[:, None, None]  # inverses of the blocks on the diagonal
    for half in (1 << k for k in range(size.bit_length() - 1)):
        count = size // (2 * half)
        pairs = padded.reshape(count, 2 * half, count, 2 * half)
        below = pairs[jnp.arange(count), half:, jnp.arange(count), :half]
        first, second = blocks[0::2], blocks[1::2]
        corner = -_product(_product(second, below), first)
        top = jnp.concatenate([first, jnp.zeros_like(first)], -1)
        blocks = jnp.concatenate([top, jnp.concatenate([corner, second], -1)], -2)
    return blocks[0, :n, :n]


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
