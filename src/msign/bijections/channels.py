"""The two channel-wise layers of a Glow block: actnorm and the invertible 1x1 convolution."""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from flowjax.bijections import AbstractBijection
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, ArrayLike

MAX_LOG_SCALE = 8.0  # of actnorm and of the diagonal of the 1x1 convolution: factors up to 3000


def bounded(raw: Array, limit: float) -> Array:
    """A smooth clamp to (-limit, limit), the identity to first order."""
    return limit * jnp.tanh(raw / limit)


class ActNorm(AbstractBijection):
    """One scale and shift per channel, y = exp(s) x + b; identity at the start.

    It has no initialisation flag: a data-dependent start (`from_data`) only sets the parameters.
    """

    shape: tuple[int, ...]
    cond_shape: None
    raw_log_scale: Array
    shift: Array

    def __init__(self, shape: tuple[int, ...]):
        self.shape = tuple(shape)
        self.cond_shape = None
        self.raw_log_scale = jnp.zeros(shape[-1])
        self.shift = jnp.zeros(shape[-1])

    @classmethod
    def from_data(cls, fields: ArrayLike) -> "ActNorm":
        """The layer whose inverse gives `(n, *shape)` fields zero mean and unit variance."""
        fields = jnp.asarray(fields)
        axes = tuple(range(fields.ndim - 1))
        log_std = jnp.log(jnp.std(fields, axes) + 1e-6)
        limit = 0.99 * MAX_LOG_SCALE
        log_std = jnp.clip(log_std, -limit, limit) / MAX_LOG_SCALE
        start = (MAX_LOG_SCALE * jnp.arctanh(log_std), jnp.mean(fields, axes))
        return eqx.tree_at(lambda a: (a.raw_log_scale, a.shift), cls(fields.shape[1:]), start)

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        log_scale = bounded(self.raw_log_scale, MAX_LOG_SCALE)
        return x * jnp.exp(log_scale) + self.shift, _cells(self.shape) * log_scale.sum()

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        log_scale = bounded(self.raw_log_scale, MAX_LOG_SCALE)
        return (y - self.shift) * jnp.exp(-log_scale), -_cells(self.shape) * log_scale.sum()


class ChannelMix(AbstractBijection):
    """Invertible 1x1 convolution y = P L U x in each cell; at the start a permutation.

    P is fixed, L unit lower triangular, U upper triangular with diagonal exp(s): never singular,
    and the log-determinant is the number of cells times the sum of s.

    Args:
        shape: Shape of the field, channels last.
        permutation: Output channel i is input channel `permutation[i]` at the start; the
            identity by default.
    """

    shape: tuple[int, ...]
    cond_shape: None
    permutation: Array
    lower: Array
    upper: Array
    raw_log_diagonal: Array

    def __init__(self, shape: tuple[int, ...], permutation: ArrayLike | None = None):
        c = shape[-1]
        self.shape = tuple(shape)
        self.cond_shape = None
        self.permutation = jnp.arange(c) if permutation is None else jnp.asarray(permutation)
        self.lower = jnp.zeros(c * (c - 1) // 2)
        self.upper = jnp.zeros(c * (c - 1) // 2)
        self.raw_log_diagonal = jnp.zeros(c)

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        lower, upper, log_diagonal = self._factors()
        matrix = (lower @ upper)[self.permutation]
        return x @ matrix.T, _cells(self.shape) * log_diagonal.sum()

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        lower, upper, log_diagonal = self._factors()
        permuted = jnp.eye(self.shape[-1], dtype=y.dtype)[self.permutation].T
        inverse = solve_triangular(lower, permuted, lower=True, unit_diagonal=True)
        inverse = solve_triangular(upper, inverse)
        return y @ inverse.T, -_cells(self.shape) * log_diagonal.sum()

    def _factors(self) -> tuple[Array, Array, Array]:
        c = self.shape[-1]
        log_diagonal = bounded(self.raw_log_diagonal, MAX_LOG_SCALE)
        lower = jnp.eye(c, dtype=self.lower.dtype).at[np.tril_indices(c, -1)].set(self.lower)
        upper = jnp.diag(jnp.exp(log_diagonal)).at[np.triu_indices(c, 1)].set(self.upper)
        return lower, upper, log_diagonal


def _cells(shape: tuple[int, ...]) -> int:
    return math.prod(shape[:-1])
