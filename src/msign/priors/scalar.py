"""The Haar prior of images: c_l times the identity at each scale (paper, appendix G).

x_l = B x_{l-1} + mu_l A~^T z_l, where the rows of A~ complete those of average pooling to the Haar
basis and A~ A~^T = lambda I, lambda = 2^-n. In the orthonormal Haar basis the details have
standard deviation mu_l sqrt(lambda) = sqrt(c_l). Where a side is divided by 3 or 5, cosines take
the place of Haar's functions along it (`lattice.bands`), and 1 / lambda is the number of cells of a
window.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from flowjax.bijections import Identity
from jaxtyping import Array, ArrayLike

from msign import checks
from msign.lattice import (
    Lattice,
    band_matrix,
    bands,
    from_blocks,
    join_bands,
    split_bands,
    to_blocks,
)
from msign.noise import on_device
from msign.priors.base import Prior, mean_field, pooled_mean


class ScalarPrior(Prior):
    """Independent Haar details of one size per scale, on top of white noise at the coarsest scale.

    Args:
        shape: Cells along each axis at the finest scale.
        mu: mu_2, ..., mu_L of appendix G, coarse to fine: each a positive number, or an array
            `(2^n - 1, channels)` with one number per Haar band and channel (one less than there
            are cells in a pooling window, where that is not 2^n).
        std: Standard deviation sqrt(c_1) of a value at the coarsest scale.
        mean: A number, or one field.
        channels: Values per cell as a last axis; None for a scalar field.
    """

    lattice: Lattice = eqx.field(static=True)
    mu: tuple[Array, ...]
    std: Array
    mean: Array
    log_det: Array

    def __init__(
        self,
        shape: tuple[int, ...],
        mu: Sequence[ArrayLike] = (),
        std: float = 1.0,
        mean: ArrayLike = 0.0,
        channels: int | None = None,
    ):
        self.lattice = Lattice(shape, channels)
        lattices = self.lattice.hierarchy(len(mu) + 1)
        log_det = -lattices[0].dim * math.log(checks.positive("std", std))
        checked = []
        for fine, m in zip(lattices[1:], mu, strict=True):
            array, cells = checks.finite_array("mu", m), math.prod(fine.factors)
            details = (cells - 1, channels or 1)
            if array.shape not in ((), details):
                raise ValueError(f"mu must be numbers or have shape {details}, got {array.shape}")
            if array.min() <= 0:
                raise ValueError(f"mu must be positive, got {array.min()}")
            checked.append(on_device(array))
            logs = np.broadcast_to(np.log(array * cells**-0.5), details)
            windows = math.prod(fine.shape) // cells
            log_det -= windows * (logs.sum() + 0.5 * math.log(cells) * details[1])
        self.mu = tuple(checked)
        self.std = on_device(std)
        self.mean = on_device(mean_field(mean, self.lattice))
        self.log_det = on_device(log_det)

    @eqx.filter_jit
    def whiten(self, x: Array) -> Array:
        return self._split(x - self.mean, self.lattice, self.mu)

    def _split(self, x: Array, lattice: Lattice, mu: tuple[Array, ...]) -> Array:
        batch = x.shape[: x.ndim - len(lattice.field_shape)]
        if not mu:
            return x.reshape(*batch, -1) / self.std
        window, coarser = lattice.factors, lattice.coarsen()
        blocks = bands(to_blocks(x.reshape(*batch, *lattice.shape, -1), window), window)
        flat = split_bands(blocks, _detail_std(lattice, mu[-1]), lattice.ndim)
        coarse, noise = jnp.split(flat, [coarser.dim], -1)
        u = self._split(coarse.reshape(*batch, *coarser.field_shape), coarser, mu[:-1])
        return jnp.concatenate([u, noise], -1)

    @eqx.filter_jit
    def unwhiten(self, u: Array) -> Array:
        lattices = self.lattice.hierarchy(len(self.mu) + 1)
        x = u[..., : lattices[0].dim] * self.std
        for coarse, fine, mu in zip(lattices[:-1], lattices[1:], self.mu, strict=True):
            flat = jnp.concatenate([x, u[..., coarse.dim : fine.dim]], -1)
            blocks = join_bands(flat, fine, _detail_std(fine, mu))
            cells = bands(blocks, fine.factors, inverse=True)
            x = from_blocks(cells, fine.factors).reshape(*u.shape[:-1], -1)
        return x.reshape(*u.shape[:-1], *self.lattice.field_shape) + self.mean

    def coarsen(self) -> "ScalarPrior":
        coarse = self.lattice.coarsen()
        if not self.mu:
            raise ValueError(f"mu=() makes shape {self.lattice.shape} the coarsest scale")
        mean = pooled_mean(self.mean, self.lattice)
        return ScalarPrior(coarse.shape, self.mu[:-1], float(self.std), mean, coarse.channels)

    @property
    def max_scales(self) -> int:
        return len(self.mu) + 1

    def rotation(self) -> Identity:
        """Whitened coordinates are the noise of all scales in order: nothing to rotate."""
        self.coarsen()
        return Identity((self.lattice.dim,))

    def marginal_std(self, window: tuple[int, ...]) -> np.ndarray:
        if max(window) > 2:
            cell_variances = self._band_variances((1,) * len(window))[..., 0, :]
            return np.sqrt(to_blocks(cell_variances, window))
        return np.sqrt(self._band_variances(window))

    def _band_variances(self, window: tuple[int, ...]) -> np.ndarray:
        """Variances `(*sides / window, bands, c)` of the Haar bands of windows of one or two cells.

        A window lies in one of pooling. A band inherits the variance of the coarse cell times the
        square of its sum, and those of the details times the squares of its products with them.
        """
        c = self.lattice.channels or 1
        if not self.mu:
            cells = [n // w for n, w in zip(self.lattice.shape, window, strict=True)]
            return np.full((*cells, math.prod(window), c), float(self.std) ** 2)
        factors = self.lattice.factors
        squares = functools.reduce(np.kron, map(_band_squares, factors, window))
        low, details = squares[0] * math.prod(factors), squares[1:]
        sizes = np.broadcast_to(
            _detail_std(self.lattice, np.asarray(self.mu[-1])) ** 2, (len(details), c)
        )
        own = (details[..., None].astype(sizes.dtype) * sizes[:, None, None, :]).sum(0)
        coarse = self.coarsen()._band_variances((1,) * len(window))[..., 0, :]
        variances = coarse[..., None, None, :] * low[..., None] + own
        within = tuple(p // w for p, w in zip(factors, window, strict=True))
        flat = variances.reshape(*variances.shape[:-2], -1)
        fine = from_blocks(flat, within)
        return fine.reshape(*fine.shape[:-1], -1, c)

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "ScalarPrior",
            "shape": list(self.lattice.shape),
            "std": float(self.std),
            "channels": self.lattice.channels,
            "scales": len(self.mu) + 1,
        }

    def arrays(self) -> dict[str, np.ndarray]:
        return {"mean": np.asarray(self.mean)} | {
            f"mu{l}": np.asarray(m) for l, m in enumerate(self.mu, start=2)
        }


def _detail_std(lattice: Lattice, mu: Any) -> Any:
    """Of the details with which a lattice refines the next coarser one: mu sqrt(lambda)."""
    return mu * math.prod(lattice.factors) ** -0.5


def _band_squares(p: int, w: int) -> np.ndarray:
    """Squared products of the p bands of a pooling window with the Haar bands of windows in it.

    Along one axis, `(p, p / w, w)`; windows of w cells are the pooling window or single cells.
    """
    if w == p:
        return np.eye(p)[:, None, :]
    squares = np.full((2, 2), 0.5) if p == 2 else band_matrix(p) ** 2
    return squares[:, :, None]


def estimate_mu(
    fields: ArrayLike, lattice: Lattice, scales: int, per_band: bool = False
) -> tuple[np.ndarray, ...]:
    """mu_2, ..., mu_L by moment matching on a data set (appendix G): A~ x_l = lambda mu_l z_l.

    Args:
        fields: Data set `(n, *field_shape)` at the finest scale.
        lattice: Its lattice.
        scales: Number of scales L.
        per_band: One number per band and channel, instead of the paper's one per scale.
    """
    x = lattice.check("fields", fields)
    if x.ndim != len(lattice.field_shape) + 1:
        raise ValueError(f"fields must have shape (n, {lattice.field_shape}), got {x.shape}")
    mu = []
    for fine in reversed(lattice.hierarchy(scales)[1:]):
        window = fine.factors
        blocks = bands(to_blocks(x.reshape(*x.shape[:1], *fine.shape, -1), window), window)
        square = np.mean(
            np.asarray(blocks[..., 1:, :], np.float64) ** 2, tuple(range(fine.ndim + 1))
        )
        mu.append(np.sqrt((square if per_band else square.mean()) * math.prod(window)))
        x = fine.pool(x)
    return tuple(reversed(mu))
