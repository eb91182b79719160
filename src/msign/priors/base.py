"""The contract of a prior, and prior conditioning (paper, section 3 and Theorem 3.1).

A Gaussian prior is an affine change of coordinates, `whiten`, that makes it standard normal. In
these coordinates conditioning on the pooled field is an orthogonal map: the coarse field's own
whitened coordinates and fresh noise, rotated (the matrix Omega of the paper's appendix A). All
else follows from the two, so that a new prior writes `whiten`, `unwhiten`, `coarsen`, `rotation`
and `marginal_std`, and nothing else.
"""

import math
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import paramax
from flowjax.bijections import AbstractBijection
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from msign import checks
from msign.lattice import Lattice, from_blocks, haar, to_blocks


class Prior(eqx.Module):
    """A distribution of fields that knows its coarse marginal and its conditional given it.

    Methods accept any number of leading batch axes. Whitened coordinates are flat vectors of
    length d in an order of the prior's own choosing.
    """

    lattice: eqx.AbstractVar[Lattice]
    mean: eqx.AbstractVar[Array]
    log_det: eqx.AbstractVar[Array]  # log-determinant of `whiten`, a constant

    @abstractmethod
    def whiten(self, x: Array) -> Array:
        """Coordinates `(..., d)` of fields `(..., *field_shape)`, standard normal under the prior."""

    @abstractmethod
    def unwhiten(self, u: Array) -> Array:
        """Inverse of `whiten`."""

    @abstractmethod
    def coarsen(self) -> "Prior":
        """The distribution of the pooled field: push-forward under A (appendix D)."""

    @abstractmethod
    def rotation(self) -> AbstractBijection:
        """Prior conditioning in whitened coordinates.

        The orthogonal map, of shape `(d,)`, from `coarsen()`'s coordinates followed by d - d_c
        noise variables to this prior's coordinates.
        """

    @abstractmethod
    def marginal_std(self, window: tuple[int, ...]) -> np.ndarray:
        """Standard deviation of each variable of `to_blocks(field, window)`.

        Windows of two cells are taken in the Haar basis, others as they are.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """`kind` and arguments as plain JSON values; with `arrays()` enough to build it again."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Array arguments of the constructor that `describe` leaves out."""
        return {}

    def log_prob(self, x: ArrayLike) -> Array:
        """Log-density of fields, normalised."""
        u = self.whiten(self.lattice.check("x", x))
        return (
            self.log_det - 0.5 * jnp.sum(u**2, -1) - 0.5 * self.lattice.dim * math.log(2 * math.pi)
        )

    def sample(self, key: PRNGKeyArray, n: int) -> Array:
        """Draw n independent fields."""
        return self.unwhiten(jr.normal(key, (checks.integer("n", n, 0), self.lattice.dim)))

    def conditioning(self) -> "PriorConditioning":
        """The layer PC of Theorem 3.1: (coarse field, noise) to the fine field, as one flat vector."""
        return PriorConditioning(self.coarsen(), self, self.rotation())

    def hierarchy(self, scales: int) -> tuple["Prior", ...]:
        """Priors of scales 1 (coarsest) to `scales` (this one)."""
        checks.integer("scales", scales, 1)
        priors: list[Prior] = [self]
        for _ in range(scales - 1):
            priors.append(priors[-1].coarsen())
        return tuple(reversed(priors))


class Conditioning(AbstractBijection):
    """A layer from a coarse field and noise to a fine field, `concatenate([x_c, z]) -> x`, flat."""

    def upsample(self, coarse: ArrayLike, noise: ArrayLike) -> Array:
        """Fine field from one coarse field and d - d_c noise variables."""
        joined = jnp.concatenate([jnp.ravel(jnp.asarray(coarse)), jnp.asarray(noise)])
        return self.transform(joined).reshape(self.fine_lattice.field_shape)

    def split(self, x: ArrayLike) -> tuple[Array, Array]:
        """Coarse field and noise of one fine field."""
        flat = self.inverse(jnp.ravel(jnp.asarray(x)))
        coarse = self.fine_lattice.coarsen()
        return flat[: coarse.dim].reshape(coarse.field_shape), flat[coarse.dim :]

    @property
    @abstractmethod
    def fine_lattice(self) -> Lattice:
        """The lattice of the output."""


class PriorConditioning(Conditioning):
    """Exact prior conditioning: PC(x_c, z) is distributed as the prior given A x = x_c.

    The layer un-whitens with the fine prior what `rotation` makes of the whitened coarse field
    and the noise. Its log-determinant is a constant.
    """

    shape: tuple[int, ...]
    cond_shape: None
    coarse: Prior
    fine: Prior
    rotation: AbstractBijection

    def __init__(self, coarse: Prior, fine: Prior, rotation: AbstractBijection):
        self.shape = (fine.lattice.dim,)
        self.cond_shape = None
        self.coarse = paramax.non_trainable(coarse)
        self.fine = paramax.non_trainable(fine)
        self.rotation = rotation

    @property
    def fine_lattice(self) -> Lattice:
        return self.fine.lattice

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        coarse, noise = jnp.split(x, [self.coarse.lattice.dim])
        u = self.coarse.whiten(coarse.reshape(self.coarse.lattice.field_shape))
        u = self.rotation.transform(jnp.concatenate([u, noise]))
        return self.fine.unwhiten(u).reshape(self.shape), self.coarse.log_det - self.fine.log_det

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        u = self.rotation.inverse(self.fine.whiten(y.reshape(self.fine.lattice.field_shape)))
        u, noise = jnp.split(u, [self.coarse.lattice.dim])
        coarse = self.coarse.unwhiten(u).reshape(-1)
        log_det = self.fine.log_det - self.coarse.log_det
        return jnp.concatenate([coarse, noise]), log_det


class NearestConditioning(Conditioning):
    """Stochastic nearest-neighbour upsampling, which ignores the prior (the ablation MsIGN-SNN).

    x = B x_c + noise_std * H^T z, where the rows of H are the orthonormal Haar details: the noise
    has zero average in each window, so that A x = x_c here too.
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
    def fine_lattice(self) -> Lattice:
        return self.lattice

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        blocks = join_bands(x, self.lattice, self.noise_std)
        field = from_blocks(haar(blocks), (2,) * self.lattice.ndim)
        return field.reshape(self.shape), jnp.asarray(self._log_det, x.dtype)

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        field = y.reshape(*self.lattice.shape, -1)
        blocks = haar(to_blocks(field, (2,) * self.lattice.ndim))
        return split_bands(blocks, self.noise_std), jnp.asarray(-self._log_det, y.dtype)

    @property
    def _log_det(self) -> float:
        coarse = self.lattice.dim >> self.lattice.ndim
        noise = self.lattice.dim - coarse
        return 0.5 * self.lattice.ndim * math.log(2) * coarse + math.log(self.noise_std) * noise


def join_bands(flat: Array, lattice: Lattice, noise_std: ArrayLike) -> Array:
    """Haar blocks `(..., *coarse, 2^n, c)` from `(..., d)`: coarse field, then standardised details."""
    n = lattice.ndim
    batch = flat.shape[:-1]
    sides = lattice.coarsen().shape
    coarse, noise = jnp.split(flat, [lattice.dim >> n], axis=-1)
    low = coarse.reshape(*batch, *sides, 1, -1) * 2 ** (n / 2)
    details = noise.reshape(*batch, *sides, 2**n - 1, low.shape[-1]) * noise_std
    return jnp.concatenate([low, details], -2)


def split_bands(blocks: Array, noise_std: ArrayLike, ndim: int | None = None) -> Array:
    """Inverse of `join_bands`; `ndim` spatial axes (default: all but the last two)."""
    n = blocks.ndim - 2 if ndim is None else ndim
    batch = blocks.shape[: blocks.ndim - 2 - n]
    coarse = blocks[..., 0, :] * 2 ** (-n / 2)
    noise = blocks[..., 1:, :] / noise_std
    return jnp.concatenate([coarse.reshape(*batch, -1), noise.reshape(*batch, -1)], -1)


def mean_field(mean: ArrayLike, lattice: Lattice) -> np.ndarray:
    """A prior's mean as an array: a number, or one field."""
    array = checks.finite_array("mean", mean)
    if array.shape not in ((), lattice.field_shape):
        raise ValueError(
            f"mean must be a number or have shape {lattice.field_shape}, got {array.shape}"
        )
    return array


def pooled_mean(mean: Array, lattice: Lattice) -> Array:
    """The mean of the pooled field."""
    return mean if jnp.ndim(mean) == 0 else lattice.pool(mean)
