"""Priors with any covariance matrix: Theorem 3.1 as it stands, in float64, O(d^3) to prepare."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import paramax
from flowjax.bijections import AbstractBijection
from jaxtyping import Array, ArrayLike

from msign import checks
from msign.lattice import Lattice, to_blocks
from msign.noise import on_device
from msign.priors.base import Prior, mean_field


class DensePrior(Prior):
    """Gaussian field with a given covariance matrix.

    Args:
        covariance: Symmetric positive definite, d x d, in the order of the ravelled field.
        shape: Cells along each axis.
        mean: A number, or one field.
        channels: Values per cell as a last axis; None for a scalar field.
        downsampling: Full-rank matrices to use instead of average pooling, finest first, each
            from one scale to the next coarser one, whose fields are then flat vectors. Their
            number bounds that of the scales.
    """

    lattice: Lattice = eqx.field(static=True)
    mean: Array
    log_det: Array
    root: Array
    inverse_root: Array
    covariance: np.ndarray  # float64 whatever the precision of the rest, like `downsampling`
    downsampling: tuple[np.ndarray, ...] | None

    def __init__(
        self,
        covariance: ArrayLike,
        shape: tuple[int, ...],
        mean: ArrayLike = 0.0,
        channels: int | None = None,
        downsampling: Sequence[ArrayLike] | None = None,
    ):
        self.lattice = Lattice(shape, channels)
        d = self.lattice.dim
        sigma = checks.finite_array("covariance", covariance)
        if sigma.shape != (d, d):
            raise ValueError(f"covariance must have shape {(d, d)}, got {sigma.shape}")
        gap = np.abs(sigma - sigma.T).max()
        if gap > 1e-6 * np.abs(sigma).max():
            raise ValueError(f"covariance must be symmetric, got a difference of {gap:.3g}")
        sigma = 0.5 * (sigma + sigma.T)
        values, vectors = np.linalg.eigh(sigma)
        if values[0] <= np.finfo(np.float64).eps * d * abs(values[-1]):  # zero up to rounding
            raise ValueError(
                f"covariance must be positive definite, got an eigenvalue of {values[0]:.3g}"
            )
        self.root = on_device((vectors * np.sqrt(values)) @ vectors.T)
        self.inverse_root = on_device((vectors / np.sqrt(values)) @ vectors.T)
        self.covariance = sigma
        self.mean = on_device(mean_field(mean, self.lattice))
        self.log_det = on_device(-0.5 * np.log(values).sum())
        if downsampling is None:
            self.downsampling = None
        else:
            self.downsampling = tuple(checks.finite_array("downsampling", a) for a in downsampling)
            for a in self.downsampling[:1]:
                _check_downsampling(a, d)

    @eqx.filter_jit
    def whiten(self, x: Array) -> Array:
        flat = (x - self.mean).reshape(*x.shape[: -len(self.lattice.field_shape)], -1)
        return _matmul(flat, self.inverse_root)

    @eqx.filter_jit
    def unwhiten(self, u: Array) -> Array:
        return _matmul(u, self.root).reshape(*u.shape[:-1], *self.lattice.field_shape) + self.mean

    def downsampling_matrix(self) -> np.ndarray:
        """The matrix A from this scale to the next coarser one."""
        if self.downsampling is None:
            return pooling_matrix(self.lattice)
        if not self.downsampling:
            raise ValueError("downsampling=() makes this the coarsest scale")
        return self.downsampling[0]

    @property
    def max_scales(self) -> int:
        return super().max_scales if self.downsampling is None else len(self.downsampling) + 1

    def coarsen(self) -> "DensePrior":
        a = self.downsampling_matrix()
        sigma = a @ self.covariance @ a.T
        mean = a @ np.broadcast_to(self.mean, self.lattice.field_shape).reshape(-1)
        if self.downsampling is not None:
            return DensePrior(sigma, (len(a),), mean, None, self.downsampling[1:])
        coarse = self.lattice.coarsen()
        return DensePrior(sigma, coarse.shape, mean.reshape(coarse.field_shape), coarse.channels)

    def rotation(self) -> "Rotation":
        u, w = conditional_gaussian(self.covariance, self.downsampling_matrix())
        coarse = self.coarsen()
        lifted = np.concatenate([u @ np.asarray(coarse.root, np.float64), w], 1)
        omega = np.asarray(self.inverse_root, np.float64) @ lifted
        left, _, right = np.linalg.svd(omega)  # orthogonal up to rounding: remove the rounding
        return Rotation(left @ right)

    def marginal_std(self, window: tuple[int, ...]) -> np.ndarray:
        c = self.lattice.channels or 1
        basis = to_blocks(np.eye(self.lattice.dim).reshape(-1, *self.lattice.shape, c), window)
        cells = basis.shape[-2]
        if all(w in (1, 2) for w in window):
            basis = np.einsum("bc,...cd->...bd", _haar_matrix(cells), basis)
        basis = basis.reshape(self.lattice.dim, -1)
        variance = np.einsum("ia,ia->a", basis, self.covariance @ basis)
        coarse = tuple(m // w for m, w in zip(self.lattice.shape, window, strict=True))
        return np.sqrt(variance).reshape(*coarse, cells, c)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "DensePrior",
            "shape": list(self.lattice.shape),
            "channels": self.lattice.channels,
            "downsampling": None if self.downsampling is None else len(self.downsampling),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        given = {"covariance": self.covariance, "mean": np.asarray(self.mean)}
        return given | {f"downsampling{i}": a for i, a in enumerate(self.downsampling or ())}


class Rotation(AbstractBijection):
    """Multiplication with an orthogonal matrix."""

    shape: tuple[int, ...]
    cond_shape: None
    matrix: Array

    def __init__(self, matrix: ArrayLike):
        self.matrix = paramax.non_trainable(on_device(matrix))
        self.shape = (np.shape(matrix)[0],)
        self.cond_shape = None

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        return _matmul(self.matrix, x), jnp.zeros((), x.dtype)

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        return _matmul(y, self.matrix), jnp.zeros((), y.dtype)


def conditional_gaussian(sigma: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """U^c and W of Theorem 3.1: N(0, sigma) given A x = x_c is U^c x_c + W z.

    Both in float64. The rows of A-tilde are an orthonormal basis of the null space of A.
    """
    complement = np.linalg.svd(a)[2][len(a) :]
    u = np.linalg.solve(a @ sigma @ a.T, a @ sigma).T
    precision = complement @ np.linalg.solve(sigma, complement.T)
    values, vectors = np.linalg.eigh(0.5 * (precision + precision.T))
    w = complement.T @ (vectors / np.sqrt(values)) @ vectors.T
    return u, w


def pooling_matrix(lattice: Lattice) -> np.ndarray:
    """Average pooling A as a matrix, d_c x d, in float64."""
    matrix: np.ndarray = np.ones((1, 1))
    for n, p in zip(lattice.shape, lattice.factors, strict=True):
        matrix = np.kron(matrix, np.kron(np.eye(n // p), np.full((1, p), 1 / p)))
    return np.asfortranarray(np.kron(matrix, np.eye(lattice.channels or 1)))  # products by columns


def _check_downsampling(a: np.ndarray, d: int) -> None:
    if a.ndim != 2 or a.shape[1] != d or a.shape[0] >= d:
        raise ValueError(
            f"downsampling must have fewer than {d} rows and {d} columns, got {a.shape}"
        )
    rank = np.linalg.matrix_rank(a)
    if rank < len(a):
        raise ValueError(f"downsampling must have full row rank {len(a)}, got rank {rank}")


def _haar_matrix(cells: int) -> np.ndarray:
    matrix = np.ones((1, 1))
    while len(matrix) < cells:
        matrix = np.kron(matrix, np.array([[1.0, 1.0], [1.0, -1.0]]) * np.sqrt(0.5))
    return matrix


def _matmul(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
