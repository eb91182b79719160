"""The Haar prior of images: c_l times the identity at each scale (paper, appendix G).

x_l = B x_{l-1} + mu_l A~^T z_l, where the rows of A~ complete those of average pooling to the Haar
basis and A~ A~^T = lambda I, lambda = 2^-n. In the orthonormal Haar basis the details have
standard deviation mu_l sqrt(lambda) = sqrt(c_l).
"""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from flowjax.bijections import Identity
from jaxtyping import Array, ArrayLike

from msign import checks
from msign.lattice import Lattice, from_blocks, haar, join_bands, split_bands, to_blocks
from msign.priors.base import Prior, mean_field, pooled_mean


class ScalarPrior(Prior):
    """Independent Haar details of one size per scale, on top of white noise at the coarsest scale.

    Args:
        shape: Cells along each axis at the finest scale.
        mu: mu_2, ..., mu_L of appendix G, coarse to fine: each a positive number, or an array
            `(2^n - 1, channels)` with one number per Haar band and channel.
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
        bands = (2**self.lattice.ndim - 1, channels or 1)
        lattices = self.lattice.hierarchy(len(mu) + 1)
        log_det = -lattices[0].dim * math.log(checks.positive("std", std))
        checked = []
        for fine, m in zip(lattices[1:], mu, strict=True):
            array = checks.finite_array("mu", m)
            if array.shape not in ((), bands):
                raise ValueError(f"mu must be numbers or have shape {bands}, got {array.shape}")
            if array.min() <= 0:
                raise ValueError(f"mu must be positive, got {array.min()}")
            checked.append(jnp.asarray(array))
            details = np.broadcast_to(np.log(array * 2 ** (-self.lattice.ndim / 2)), bands)
            low = 0.5 * self.lattice.ndim * math.log(2)
            cells = math.prod(fine.shape) >> self.lattice.ndim
            log_det -= cells * (details.sum() + low * bands[1])
        self.mu = tuple(checked)
        self.std = jnp.asarray(float(std))
        self.mean = jnp.asarray(mean_field(mean, self.lattice))
        self.log_det = jnp.asarray(log_det)

    def whiten(self, x: Array) -> Array:
        return self._split(x - self.mean, self.lattice, self.mu)

    def _split(self, x: Array, lattice: Lattice, mu: tuple[Array, ...]) -> Array:
        batch = x.shape[: x.ndim - len(lattice.field_shape)]
        if not mu:
            return x.reshape(*batch, -1) / self.std
        blocks = haar(to_blocks(x.reshape(*batch, *lattice.shape, -1), (2,) * lattice.ndim))
        flat = split_bands(blocks, self._detail_std(mu[-1]), lattice.ndim)
        coarse, noise = jnp.split(flat, [lattice.dim >> lattice.ndim], -1)
        finer = lattice.coarsen()
        u = self._split(coarse.reshape(*batch, *finer.field_shape), finer, mu[:-1])
        return jnp.concatenate([u, noise], -1)

    def unwhiten(self, u: Array) -> Array:
        lattices = self.lattice.hierarchy(len(self.mu) + 1)
        x = u[..., : lattices[0].dim] * self.std
        for coarse, fine, mu in zip(lattices[:-1], lattices[1:], self.mu, strict=True):
            flat = jnp.concatenate([x, u[..., coarse.dim : fine.dim]], -1)
            blocks = join_bands(flat, fine, self._detail_std(mu))
            x = from_blocks(haar(blocks), (2,) * fine.ndim).reshape(*u.shape[:-1], -1)
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
        n = self.lattice.ndim
        c = self.lattice.channels or 1
        cells = tuple(m // w for m, w in zip(self.lattice.shape, window, strict=True))
        if self.mu and window == (2,) * n:
            low = 2**n * self.coarsen()._cell_variance()
            details = np.broadcast_to(self._detail_std(np.asarray(self.mu[-1])) ** 2, (2**n - 1, c))
            variance = np.concatenate([low[None], details])
        else:
            variance = np.broadcast_to(self._cell_variance(), (math.prod(window), c))
        return np.sqrt(np.broadcast_to(variance, (*cells, *variance.shape)))

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

    def _detail_std(self, mu: Any) -> Any:
        return mu * 2 ** (-self.lattice.ndim / 2)

    def _cell_variance(self) -> np.ndarray:
        """Variance of a single value, per channel: each level of details adds its mean variance."""
        n = self.lattice.ndim
        total = np.full(self.lattice.channels or 1, float(self.std) ** 2)
        for mu in self.mu:
            details = np.broadcast_to(self._detail_std(np.asarray(mu)) ** 2, (2**n - 1, len(total)))
            total = total + details.sum(0) / 2**n
        return total


def estimate_mu(
    fields: ArrayLike, lattice: Lattice, scales: int, per_band: bool = False
) -> tuple[np.ndarray, ...]:
    """mu_2, ..., mu_L by moment matching on a data set (appendix G): A~ x_l = lambda mu_l z_l.

    Args:
        fields: Data set `(n, *field_shape)` at the finest scale.
        lattice: Its lattice.
        scales: Number of scales L.
        per_band: One number per Haar band and channel, instead of the paper's one per scale.
    """
    x = lattice.check("fields", fields)
    if x.ndim != len(lattice.field_shape) + 1:
        raise ValueError(f"fields must have shape (n, {lattice.field_shape}), got {x.shape}")
    mu = []
    for fine in reversed(lattice.hierarchy(scales)[1:]):
        blocks = haar(to_blocks(x.reshape(*x.shape[:1], *fine.shape, -1), (2,) * fine.ndim))
        square = np.mean(
            np.asarray(blocks[..., 1:, :], np.float64) ** 2, tuple(range(fine.ndim + 1))
        )
        mu.append(np.sqrt((square if per_band else square.mean()) * 2**fine.ndim))
        x = fine.pool(x)
    return tuple(reversed(mu))
