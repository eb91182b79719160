"""Flows for data in every cell: a Gaussian of any rank, then a monotone map of each cell's value.

Where each datum sees few cells, a posterior is a Gaussian field whose values are bent, each on its
own: skewed where the data bound them from one side only. A full covariance and four numbers for
each cell describe that, and the numbers are learned from few fields.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import paramax
import scipy.linalg
from flowjax.bijections import AbstractBijection
from jaxtyping import Array, ArrayLike

from msign.bijections.channels import bounded
from msign.bijections.modes import GaussianModes
from msign.noise import on_device
from msign.priors import Prior

MAX_LOG = 3.0  # of scale and tail of a cell: factors up to 20
MAX_SKEW = 3.0  # in units of the inverse hyperbolic sine


class GaussianMap(AbstractBijection):
    """y = A x + b with a given matrix; it is not trained.

    Args:
        matrix: A, of shape `(d, d)`, invertible.
        shift: b.
    """

    shape: tuple[int, ...]
    cond_shape: None
    matrix: Array
    inverted: Array
    shift: Array
    log_det: Array

    def __init__(self, matrix: ArrayLike, shift: ArrayLike):
        matrix, shift = np.asarray(matrix, np.float64), np.asarray(shift, np.float64)
        if shift.ndim != 1 or matrix.shape != 2 * shift.shape:
            raise ValueError(
                f"matrix must have shape (d, d) for a shift of shape (d,), got {matrix.shape} and "
                f"{shift.shape}"
            )
        self.shape = shift.shape
        self.cond_shape = None
        factors, pivots = scipy.linalg.lu_factor(matrix)
        log_det = np.log(np.abs(np.diag(factors))).sum()
        arrays = matrix, scipy.linalg.lapack.dgetri(factors, pivots)[0], shift, log_det
        fixed = (paramax.non_trainable(on_device(a)) for a in arrays)
        self.matrix, self.inverted, self.shift, self.log_det = fixed

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        return _product(self.matrix, x) + self.shift, self.log_det

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        return _product(self.inverted, y - self.shift), -self.log_det

    @property
    def shares(self) -> np.ndarray:
        """Mass of each Gaussian."""
        return np.ones(1)

    @property
    def modes(self) -> int:
        """Number of Gaussians: one, where `GaussianModes` has several."""
        return 1

    def gaussians(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Its mean b and its matrix A, in double precision."""
        matrix, shift = (
            np.asarray(paramax.unwrap(a), np.float64) for a in (self.matrix, self.shift)
        )
        return [(shift, matrix)]

    def local(self, z: Array) -> tuple[Array, Array, Array]:
        """The mode that noise leads to, its noise there, and the derivative of this noise."""
        return jnp.zeros((), int), z, jnp.ones((), z.dtype)

    def opposite(self, z: Array) -> Array:
        """Noise that leads to the other side of the mean."""
        return -z


class CellMap(AbstractBijection):
    """A sinh-arcsinh map of each value of a field on its own; the identity at the start.

        t = (x - centre) / spread,
        y = centre + spread (shift + scale sinh(tail arcsinh(t) + skew)).

    Args:
        centre: Of the values that it is given, of the field's shape.
        spread: Their standard deviations.
    """

    shape: tuple[int, ...]
    cond_shape: None
    centre: Array
    spread: Array
    shift: Array
    raw_log_scale: Array
    raw_log_tail: Array
    raw_skew: Array

    def __init__(self, centre: ArrayLike, spread: ArrayLike):
        centre = np.asarray(centre)
        self.shape = centre.shape
        self.cond_shape = None
        self.centre = paramax.non_trainable(on_device(centre))
        self.spread = paramax.non_trainable(on_device(spread))
        start = [on_device(np.zeros(self.shape)) for _ in range(4)]
        self.shift, self.raw_log_scale, self.raw_log_tail, self.raw_skew = start

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        log_scale, log_tail, skew = self._parameters()
        t = (x - self.centre) / self.spread
        bent = jnp.exp(log_tail) * jnp.arcsinh(t) + skew
        y = self.centre + self.spread * (self.shift + jnp.exp(log_scale) * jnp.sinh(bent))
        return y, self._log_det(t, bent, log_scale, log_tail)

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        log_scale, log_tail, skew = self._parameters()
        moved = (y - self.centre) / self.spread - self.shift
        bent = jnp.arcsinh(moved * jnp.exp(-log_scale))
        t = jnp.sinh((bent - skew) * jnp.exp(-log_tail))
        return self.centre + self.spread * t, -self._log_det(t, bent, log_scale, log_tail)

    def _parameters(self) -> tuple[Array, Array, Array]:
        log_scale = bounded(self.raw_log_scale, MAX_LOG)
        return log_scale, bounded(self.raw_log_tail, MAX_LOG), bounded(self.raw_skew, MAX_SKEW)

    def _log_det(self, t: Array, bent: Array, log_scale: Array, log_tail: Array) -> Array:
        steep = jnp.logaddexp(bent, -bent) - np.log(2.0)  # log cosh
        return jnp.sum(log_scale + log_tail + steep - 0.5 * jnp.log1p(t**2))


class CellFlow(AbstractBijection):
    """A Gaussian in whitened coordinates, and then a map of each cell of the field.

    Args:
        prior: Of the field.
        gaussian: Map of whitened coordinates.
    """

    shape: tuple[int, ...]
    cond_shape: None
    prior: Prior
    gaussian: GaussianMap | GaussianModes
    cells: CellMap

    def __init__(self, prior: Prior, gaussian: GaussianMap | GaussianModes):
        if gaussian.shape != (prior.lattice.dim,):
            raise ValueError(
                f"gaussian must have shape {(prior.lattice.dim,)}, got {gaussian.shape}"
            )
        self.shape = gaussian.shape
        self.cond_shape = None
        self.prior = paramax.non_trainable(prior)
        self.gaussian = gaussian
        self.cells = CellMap(*_moments(prior, gaussian))

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        u, linear = self.gaussian.transform_and_log_det(x)
        field, bent = self.cells.transform_and_log_det(self.prior.unwhiten(u))
        return self.prior.whiten(field), linear + bent

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        field, bent = self.cells.inverse_and_log_det(self.prior.unwhiten(y))
        x, linear = self.gaussian.inverse_and_log_det(self.prior.whiten(field))
        return x, linear + bent

    def with_gaussian(self, gaussian: GaussianMap | GaussianModes) -> "CellFlow":
        """The flow with another map of whitened coordinates before that of the cells."""
        return eqx.tree_at(lambda f: f.gaussian, self, gaussian)


def _moments(prior: Prior, gaussian: GaussianMap | GaussianModes) -> tuple[Array, Array]:
    """Means and standard deviations of the cells of what a map makes of noise."""
    parts = [
        _moments_of_one(prior, on_device(matrix), on_device(shift))
        for shift, matrix in gaussian.gaussians()
    ]
    shares = np.asarray(paramax.unwrap(gaussian.shares))
    centre = sum(p * mean for p, (mean, _) in zip(shares, parts, strict=True))
    squares = sum(
        p * (std**2 + (mean - centre) ** 2) for p, (mean, std) in zip(shares, parts, strict=True)
    )
    return jnp.asarray(centre), jnp.sqrt(squares)


@eqx.filter_jit
def _moments_of_one(prior: Prior, matrix: Array, shift: Array) -> tuple[Array, Array]:
    """Means and standard deviations of the cells of a Gaussian field A z + b."""
    centre = prior.unwhiten(shift)
    columns = jax.vmap(lambda column: prior.unwhiten(column))(matrix.T) - prior.unwhiten(0 * shift)
    return centre, jnp.sqrt(jnp.sum(columns**2, 0))


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
