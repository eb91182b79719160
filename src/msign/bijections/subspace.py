"""Flows that move only a few directions: the likelihood-informed subspace of whitened space.

Data inform few directions. In whitened coordinates the posterior is nearly standard normal in all
others, so a flow on r << d coordinates, the identity elsewhere, can be all that is needed: exact
log-determinant, and a cost that does not grow with d.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import paramax
from flowjax.bijections import (
    AbstractBijection,
    Chain,
    Indexed,
    Scan,
)
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from msign import checks
from msign.bijections.channels import MAX_LOG_SCALE, bounded
from msign.bijections.dense import DenseCoupling, SplineCoupling


@dataclasses.dataclass(frozen=True)
class InformedConfig:
    """Hyper-parameters of the flow on the informed subspace.

    Attributes:
        max_rank: Largest dimension of the subspace (where gradients say that the posterior is
            Gaussian, as many as they can tell).
        coupling_rank: Couplings act on so many variables at most, the stiffest; an affine map acts
            on all of them.
        spline_rank: Couplings of up to so many variables are splines, of more affine: these cost
            a fraction, and bend densities well enough where each has many others to lean on.
        blocks: Couplings per stack (for a single variable half as many splines).
        hidden: Width of the conditioners' two hidden layers.
        knots: Bins of a spline.
        interval: Splines act on [-interval, interval] and are the identity outside.
    """

    max_rank: int = 64
    coupling_rank: int = 64
    spline_rank: int = 2
    blocks: int = 6
    hidden: int = 48
    knots: int = 16
    interval: float = 6.0

    def __post_init__(self) -> None:
        checks.integer("max_rank", self.max_rank, 1)
        checks.integer("coupling_rank", self.coupling_rank, 1)
        checks.integer("spline_rank", self.spline_rank, 0)
        checks.integer("blocks", self.blocks, 1)
        checks.integer("hidden", self.hidden, 1)
        checks.integer("knots", self.knots, 2)
        checks.positive("interval", self.interval)


class SubspaceFlow(AbstractBijection):
    """`inner` on the coordinates along orthonormal columns V, the identity orthogonal to them.

    Args:
        basis: V, of shape `(d, r)`, orthonormal columns.
        inner: Bijection of shape `(r,)`.
    """

    shape: tuple[int, ...]
    cond_shape: None
    basis: Array
    inner: AbstractBijection

    def __init__(self, basis: ArrayLike, inner: AbstractBijection):
        basis = jnp.asarray(basis)
        if basis.ndim != 2 or basis.shape[1] != (inner.shape[0] if inner.shape else None):
            raise ValueError(
                f"basis must have one column for each of inner's {inner.shape} variables, got "
                f"shape {basis.shape}"
            )
        self.shape = (basis.shape[0],)
        self.cond_shape = None
        self.basis = paramax.non_trainable(basis)
        self.inner = inner

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        return self._move(x, self.inner.transform_and_log_det)

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        return self._move(y, self.inner.inverse_and_log_det)

    def _move(self, x: Array, inner: Any) -> tuple[Array, Array]:
        s = jnp.matmul(x, self.basis, precision=jax.lax.Precision.HIGHEST)
        moved, log_det = inner(s)
        return x + self.basis @ (moved - s), log_det


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
        self.shift = jnp.zeros(rank)
        self.lower = jnp.zeros(rank * (rank - 1) // 2)
        self.raw_log_diagonal = jnp.zeros(rank)

    @classmethod
    def from_matrix(cls, matrix: np.ndarray, shift: np.ndarray) -> "TriangularMap":
        """The map with a given lower triangular matrix and shift."""
        rank = len(shift)
        limit = 0.99 * MAX_LOG_SCALE
        log_diagonal = np.clip(np.log(np.diag(matrix)), -limit, limit) / MAX_LOG_SCALE
        values = (
            jnp.asarray(shift),
            jnp.asarray(matrix[np.tril_indices(rank, -1)]),
            jnp.asarray(MAX_LOG_SCALE * np.arctanh(log_diagonal)),
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


def informed_stack(key: PRNGKeyArray, rank: int, config: InformedConfig) -> Chain:
    """Couplings and then an affine map on `rank` variables, the identity at the start.

    Variables are expected in order of falling stiffness: the last couplings move the stiffest
    ones given all others.
    """
    coupled = min(rank, config.coupling_rank)
    blocks = config.blocks if coupled > 1 else (config.blocks + 1) // 2
    moved = np.stack([_moved(k, blocks, coupled) for k in range(blocks)])
    candidates = int(moved.sum(1).max())

    def coupling(key: PRNGKeyArray, moved: Array) -> AbstractBijection:
        if coupled > max(1, config.spline_rank):
            return DenseCoupling(key, moved, config.hidden)
        return SplineCoupling(key, moved, candidates, config.hidden, config.knots, config.interval)

    stacked = eqx.filter_vmap(coupling)(jr.split(key, blocks), jnp.asarray(moved))
    nonlinear: AbstractBijection = Scan(stacked)
    if coupled < rank:
        nonlinear = Indexed(nonlinear, jnp.arange(coupled), (rank,))
    return Chain([nonlinear, TriangularMap(rank)])


def _moved(block: int, blocks: int, rank: int) -> np.ndarray:
    """Which variables a block moves: halves in turn, and the stiffest few at the very end."""
    half, few = (rank + 1) // 2, max(1, rank // 6)
    index = np.arange(rank)
    if rank == 1:
        return np.ones(1, bool)
    patterns = [
        index >= half,
        index < half,
        index % 2 == 1,
        index % 2 == 0,
        (index >= few) & (index < few + half),
        index < few,
    ]
    patterns = [p for p in patterns if 0 < p.sum() < rank]
    return patterns[(block - blocks) % len(patterns)]
