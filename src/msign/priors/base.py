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
from msign.lattice import Lattice


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
        """Coordinates `(..., d)`, standard normal under the prior, of `(..., *field_shape)`."""

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

        In the Haar basis where no side of the window exceeds two, otherwise (a window that is the
        whole lattice) of the cells as they are.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """`kind` and arguments as plain JSON values; with `arrays()` enough to build it again."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Array arguments of the constructor that `describe` leaves out."""
        return {}

    def log_prob(self, x: ArrayLike) -> Array:
        """Log-density of fields, normalised."""
        return self._log_prob(self.lattice.check("x", x))

    @eqx.filter_jit
    def _log_prob(self, x: Array) -> Array:
        u = self.whiten(x)
        return (
            self.log_det - 0.5 * jnp.sum(u**2, -1) - 0.5 * self.lattice.dim * math.log(2 * math.pi)
        )

    def sample(self, key: PRNGKeyArray, n: int) -> Array:
        """Draw n independent fields."""
        return self.unwhiten(jr.normal(key, (checks.integer("n", n, 0), self.lattice.dim)))

    def conditioning(self) -> "PriorConditioning":
        """The layer PC of Theorem 3.1, from (coarse field, noise) to the fine field, both flat."""
        return PriorConditioning(self.coarsen(), self, self.rotation())

    @property
    def max_scales(self) -> int:
        """How many scales `hierarchy` can have."""
        return self.lattice.max_scales

    def hierarchy(self, scales: int) -> tuple["Prior", ...]:
        """Priors of scales 1 (coarsest) to `scales` (this one)."""
        if checks.integer("scales", scales, 1) > self.max_scales:
            bound = self.max_scales == self.lattice.max_scales
            remedy = self.lattice.remedy(scales) if bound else ""
            raise ValueError(
                f"scales must be at most {self.max_scales} for this prior on shape "
                f"{self.lattice.shape}, got {scales}{remedy}"
            )
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
        coarse = self.coarse_lattice
        return flat[: coarse.dim].reshape(coarse.field_shape), flat[coarse.dim :]

    @property
    @abstractmethod
    def coarse_lattice(self) -> Lattice:
        """The lattice of the coarse field."""

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
    def coarse_lattice(self) -> Lattice:
        return self.coarse.lattice

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
