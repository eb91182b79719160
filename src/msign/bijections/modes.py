"""Several Gaussians in one invertible map: one coordinate says which, the others follow it.

Far from the prior a posterior has a Gaussian around each of its maxima. Their mixture is not the
image of noise under any smooth map that could be written down, but where the Gaussians lie apart
along a line it nearly is: the coordinate along the line has a mixture in one dimension, which has a
map in closed form, and all others are Gaussian given it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import paramax
from flowjax.bijections import AbstractBijection
from jaxtyping import Array, ArrayLike

from msign.noise import on_device


class GaussianModes(AbstractBijection):
    """K Gaussians with means m_k and covariances C_k, told apart by the coordinate along a line.

    With H the reflection that turns the line's direction a into the first axis, H C_k H = L_k L_k^T
    and H y = (t, v),

        t = T(z_1),   k = the number of cuts below t,   v = (H m_k + L_k (w_k, z_2, ..., z_d))_2..d,

    w_k = (t - a m_k) / |a L_k|: v given t is that of the k-th Gaussian. Where T is the map of the
    mixture's coordinate along a, y has the mixture's density, but for the mass of each Gaussian on
    the wrong side of a cut. It is not trained.

    Args:
        line: T, of shape `(1,)`.
        axis: a, a unit vector `(d,)` whose first entry is not positive.
        cuts: Between the modes, rising `(K - 1,)`.
        means: H m_k `(K, d)`, in the order in which they lie along a.
        roots: L_k `(K, d, d)`, lower triangular.
        shares: Mass of each `(K,)`.

    Attributes:
        modes: K.
    """

    shape: tuple[int, ...]
    cond_shape: None
    line: AbstractBijection
    mirror: Array
    cuts: Array
    means: Array
    roots: Array
    inverses: Array
    shares: Array
    modes: int = eqx.field(static=True)

    def __init__(
        self,
        line: AbstractBijection,
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
        self.line = paramax.non_trainable(line)
        inverses = np.stack([np.linalg.inv(root[1:, 1:]) for root in roots])
        mirror = axis - np.eye(1, d)[0]
        arrays = mirror / np.linalg.norm(mirror), cuts, means, roots, inverses, shares
        fixed = (paramax.non_trainable(on_device(a)) for a in arrays)
        self.mirror, self.cuts, self.means, self.roots, self.inverses, self.shares = fixed

    @property
    def axis(self) -> np.ndarray:
        """The line's direction a."""
        mirror = np.asarray(paramax.unwrap(self.mirror), np.float64)
        return np.eye(1, len(mirror))[0] - 2 * mirror[0] * mirror

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        t, stretched = self.line.transform_and_log_det(x[:1])
        chosen = self._chosen(t)
        v = self._centre(chosen, t) + chosen @ _products(self.roots[:, 1:, 1:], x[1:])
        return self._mirrored(jnp.concatenate([t, v])), stretched + self._log_det(chosen)

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        t, v = jnp.split(self._mirrored(y), [1])
        first, stretched = self.line.inverse_and_log_det(t)
        chosen = self._chosen(t)
        z = chosen @ _products(self.inverses, v - self._centre(chosen, t))
        return jnp.concatenate([first, z]), stretched - self._log_det(chosen)

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
        its first entry differs, by the map T.
        """
        t, stretched = self.line.transform_and_log_det(z[:1])
        chosen = self._chosen(t)
        own = (t - chosen @ self.means[:, :1]) / (chosen @ self.roots[:, 0, :1])
        slope = jnp.exp(stretched) / (chosen @ self.roots[:, 0, 0])
        return jnp.argmax(chosen), jnp.concatenate([own, z[1:]]), slope

    def opposite(self, z: Array) -> Array:
        """Noise that leads to the other side of the same mode's mean."""
        t, _ = self.line.transform_and_log_det(z[:1])
        mirrored = 2 * self._chosen(t) @ self.means[:, :1] - t
        return jnp.concatenate([self.line.inverse_and_log_det(mirrored)[0], -z[1:]])

    def _chosen(self, t: Array) -> Array:
        """One for the mode of t, zero for the others `(K,)`."""
        return (jnp.arange(self.modes) == jnp.sum(t > self.cuts)).astype(t.dtype)

    def _centre(self, chosen: Array, t: Array) -> Array:
        """Mean of v given t."""
        along = (t - self.means[:, 0]) / self.roots[:, 0, 0]
        return chosen @ (self.means[:, 1:] + along[:, None] * self.roots[:, 1:, 0])

    def _log_det(self, chosen: Array) -> Array:
        return chosen @ jnp.sum(jnp.log(jnp.diagonal(self.roots, axis1=1, axis2=2)[:, 1:]), 1)

    def _mirrored(self, y: Array) -> Array:
        return y - 2 * (self.mirror @ y) * self.mirror


def _products(matrices: Array, x: Array) -> Array:
    """Each matrix times a vector `(K, d)`."""
    return jnp.einsum("kij,j->ki", matrices, x, precision=jax.lax.Precision.HIGHEST)
