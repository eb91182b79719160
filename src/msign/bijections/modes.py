"""Several Gaussians in one invertible map: one coordinate says which, the others follow it.

Far from the prior a posterior has a Gaussian around each of its maxima. Their mixture is not the
image of noise under any smooth map that could be written down, but where the Gaussians lie apart
along a line it nearly is: cut between the modes, the coordinate along the line is that of one
Gaussian after the other, and all others are Gaussian given it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import paramax
from flowjax.bijections import AbstractBijection
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, ArrayLike
from scipy import special

from msign.noise import on_device

MOST = 0.75  # of a mode's mass: a quantile is taken from the side on which less lies


class GaussianModes(AbstractBijection):
    """K Gaussians with means m_k and covariances C_k, told apart by the coordinate along a line.

    With H the reflection that turns the line's direction a into the first axis, H C_k H = L_k L_k^T
    and H y = (t, v), the k-th mode has the noise z_1 between the quantiles of the masses of modes
    below it, and takes up all t between two cuts:

        t = a m_k + |a L_k| w,   v = (H m_k + L_k (w, z_2, ..., z_d))_2..d,

    w normal between the cuts and increasing in z_1. So y has the density of the k-th Gaussian, made
    one between its cuts, times its mass. It is not trained.

    Args:
        axis: a, a unit vector `(d,)` whose first entry is not positive.
        cuts: Between the modes, rising `(K - 1,)`.
        means: H m_k `(K, d)`, in the order in which they lie along a.
        roots: L_k `(K, d, d)`, lower triangular with positive diagonals.
        shares: Mass of each `(K,)`, of sum one.

    Attributes:
        modes: K.
    """

    shape: tuple[int, ...]
    cond_shape: None
    mirror: Array
    cuts: Array
    quantiles: Array
    below: Array
    means: Array
    roots: Array
    inverses: Array
    shares: Array
    modes: int = eqx.field(static=True)

    def __init__(
        self,
        axis: ArrayLike,
        cuts: ArrayLike,
        means: ArrayLike,
        roots: ArrayLike,
        shares: ArrayLike,
    ):
        axis, cuts, means, roots, shares = (
            np.asarray(a, np.float64) for a in (axis, cuts, means, roots, shares)
        )
        self.modes, d = means.shape
        shapes = axis.shape, cuts.shape, roots.shape
        wanted = (d,), (self.modes - 1,), (self.modes, d, d)
        if shapes != wanted:
            raise ValueError(
                f"axis, cuts and roots of {self.modes} modes in {d} dimensions must have shapes "
                f"{wanted}, got {shapes}"
            )
        if axis[0] > 0:
            raise ValueError(f"axis must not begin with a positive number, got {axis[0]:g}")
        self.shape = (d,)
        self.cond_shape = None
        ends = np.concatenate([[-np.inf], cuts, [np.inf]])
        low, high = ((e - means[:, 0]) / roots[:, 0, 0] for e in (ends[:-1], ends[1:]))
        # What each mode leaves out on the left and on the right, and the mass of modes there.
        outside = special.ndtr(np.stack([low, -high]))
        beside = np.stack([np.cumsum(shares) - shares, np.cumsum(shares[::-1])[::-1] - shares])
        inverses = np.stack([np.linalg.inv(root[1:, 1:]) for root in roots])
        mirror = axis - np.eye(1, d)[0]
        mirror /= np.linalg.norm(mirror)
        quantiles, below = special.ndtri(beside[0, 1:]), np.stack([outside, beside], 1)
        arrays = mirror, cuts, quantiles, below, means, roots, inverses, shares
        fixed = [paramax.non_trainable(on_device(a)) for a in arrays]
        self.mirror, self.cuts, self.quantiles, self.below, *fixed = fixed
        self.means, self.roots, self.inverses, self.shares = fixed

    @property
    def axis(self) -> np.ndarray:
        """The line's direction a."""
        mirror = np.asarray(paramax.unwrap(self.mirror), np.float64)
        return np.eye(1, len(mirror))[0] - 2 * mirror[0] * mirror

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        chosen = self._chosen(x[:1], self.quantiles)
        w, stretched = self._own(chosen, x[:1])
        first = chosen @ (self.means[:, :1] + self.roots[:, 0, :1] * w)
        v = self._centre(chosen, w) + chosen @ _products(self.roots[:, 1:, 1:], x[1:])
        return self._mirrored(jnp.concatenate([first, v])), stretched + self._log_det(chosen)

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        t, v = jnp.split(self._mirrored(y), [1])
        chosen = self._chosen(t, self.cuts)
        w = (t - chosen @ self.means[:, :1]) / (chosen @ self.roots[:, 0, :1])
        first, stretched = self._common(chosen, w)
        z = chosen @ _products(self.inverses, v - self._centre(chosen, w))
        return jnp.concatenate([first, z]), -stretched - self._log_det(chosen)

    def gaussians(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Mean and a matrix A with A A^T the covariance, of each mode, in double precision."""
        means, roots, mirror = (
            np.asarray(paramax.unwrap(a), np.float64) for a in (self.means, self.roots, self.mirror)
        )
        turned = [a - 2 * np.multiply.outer(a @ mirror, mirror) for a in (means, roots.mT)]
        return [(m, a.T) for m, a in zip(*turned, strict=True)]

    def local(self, z: Array) -> tuple[Array, Array, Array]:
        """The mode that noise leads to, its noise in that mode, and the latter's derivative.

        The mode's own noise is that with which its Gaussian alone would give the same point; only
        its first entry differs.
        """
        chosen = self._chosen(z[:1], self.quantiles)
        w, stretched = self._own(chosen, z[:1])
        return jnp.argmax(chosen), jnp.concatenate([w, z[1:]]), jnp.exp(stretched)

    def opposite(self, z: Array) -> Array:
        """Noise that leads to the other side of the same mode's mean, if it is not cut off."""
        chosen = self._chosen(z[:1], self.quantiles)
        w, _ = self._own(chosen, z[:1])
        return jnp.concatenate([self._common(chosen, -w)[0], -z[1:]])

    def _chosen(self, value: Array, between: Array) -> Array:
        """One for the mode of a value, zero for the others `(K,)`."""
        return (jnp.arange(self.modes) == jnp.sum(value > between)).astype(value.dtype)

    def _own(self, chosen: Array, z: Array) -> tuple[Array, Array]:
        """The mode's own noise w of z_1, and its log-derivative."""
        (left, below), (right, above) = self.below @ chosen
        share, inside = chosen @ self.shares, 1 - left - right
        parts = (ndtr(z) - below) / share, (ndtr(-z) - above) / share
        w = _quantile(*(out + inside * p for out, p in zip((left, right), parts, strict=True)))
        return w, (_log_normal(z) - _log_normal(w)).sum() + jnp.log(inside / share)

    def _common(self, chosen: Array, w: Array) -> tuple[Array, Array]:
        """Inverse of `_own`, and the log-derivative of that."""
        (left, below), (right, above) = self.below @ chosen
        share, inside = chosen @ self.shares, 1 - left - right
        parts = (ndtr(w) - left) / inside, (ndtr(-w) - right) / inside
        z = _quantile(*(out + share * p for out, p in zip((below, above), parts, strict=True)))
        return z, (_log_normal(z) - _log_normal(w)).sum() + jnp.log(inside / share)

    def _centre(self, chosen: Array, w: Array) -> Array:
        """Mean of v given the mode's own noise along the line."""
        return chosen @ (self.means[:, 1:] + w * self.roots[:, 1:, 0])

    def _log_det(self, chosen: Array) -> Array:
        return chosen @ jnp.sum(jnp.log(jnp.diagonal(self.roots, axis1=1, axis2=2)), 1)

    def _mirrored(self, y: Array) -> Array:
        return y - 2 * (self.mirror @ y) * self.mirror


def _products(matrices: Array, x: Array) -> Array:
    """Each matrix times a vector `(K, d)`."""
    return jnp.einsum("kij,j->ki", matrices, x, precision=jax.lax.Precision.HIGHEST)


def _quantile(below: Array, above: Array) -> Array:
    """The standard normal number with so much mass below it and above it.

    By the smaller one, which single precision knows better.
    """
    least = jnp.finfo(below.dtype).tiny
    low, high = (ndtri(jnp.clip(p, least, MOST)) for p in (below, above))
    return jnp.where(below < above, low, -high)


def _log_normal(x: Array) -> Array:
    return -0.5 * x**2
