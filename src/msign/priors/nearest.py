"""Upsampling that ignores the prior: the ablation MsIGN-SNN (paper, section 4.1.3)."""

import math

import equinox as eqx
import jax.numpy as jnp
import paramax
from flowjax.bijections import AbstractBijection
from jaxtyping import Array

from msign import checks
from msign.lattice import Lattice, bands, from_blocks, join_bands, split_bands, to_blocks
from msign.priors.base import Conditioning, Prior


class NearestConditioning(Conditioning):
    """Stochastic nearest-neighbour upsampling, which ignores the prior (the ablation MsIGN-SNN).

    x = B x_c + noise_std * H^T z, where the rows of H are the orthonormal details of `bands`: the
    noise has zero average in each window, so that A x = x_c here too.
    """

    shape: tuple[int, ...]
    cond_shape: None
    lattice: Lattice = eqx.field(static=True)
    noise_std: float = eqx.field(static=True)

    def __init__(self, lattice: Lattice, noise_std: float = 1.0):
        lattice.coarsen()
        self.shape = (lattice.dim,)
        self.cond_shape = None
        self.lattice = lattice
        self.noise_std = checks.positive("noise_std", noise_std)

    @property
    def coarse_lattice(self) -> Lattice:
        return self.lattice.coarsen()

    @property
    def fine_lattice(self) -> Lattice:
        return self.lattice

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        blocks = join_bands(x, self.lattice, self.noise_std)
        window = self.lattice.factors
        field = from_blocks(bands(blocks, window, inverse=True), window)
        return field.reshape(self.shape), jnp.asarray(self._log_det, x.dtype)

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        field = y.reshape(*self.lattice.shape, -1)
        window = self.lattice.factors
        blocks = bands(to_blocks(field, window), window)
        return split_bands(blocks, self.noise_std), jnp.asarray(-self._log_det, y.dtype)

    @property
    def _log_det(self) -> float:
        coarse, cells = self.lattice.coarsen().dim, math.prod(self.lattice.factors)
        noise = self.lattice.dim - coarse
        return 0.5 * math.log(cells) * coarse + math.log(self.noise_std) * noise


class WhitenedNearest(AbstractBijection):
    """`NearestConditioning` in whitened coordinates."""

    shape: tuple[int, ...]
    cond_shape: None
    coarse: Prior
    fine: Prior
    layer: NearestConditioning

    def __init__(self, coarse: Prior, fine: Prior):
        self.shape = (fine.lattice.dim,)
        self.cond_shape = None
        self.coarse = paramax.non_trainable(coarse)
        self.fine = paramax.non_trainable(fine)
        self.layer = NearestConditioning(fine.lattice)

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        u, z = jnp.split(x, [self.coarse.lattice.dim])
        joined = jnp.concatenate([self.coarse.unwhiten(u).reshape(-1), z])
        y, log_det = self.layer.transform_and_log_det(joined)
        y = self.fine.whiten(y.reshape(self.fine.lattice.field_shape))
        return y, log_det + self.fine.log_det - self.coarse.log_det

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        x, log_det = self.layer.inverse_and_log_det(self.fine.unwhiten(y).reshape(self.shape))
        coarse, z = jnp.split(x, [self.coarse.lattice.dim])
        u = self.coarse.whiten(coarse.reshape(self.coarse.lattice.field_shape))
        return jnp.concatenate([u, z]), log_det + self.coarse.log_det - self.fine.log_det
