"""The forward map of one scale (appendix D): upsampling, noise and its inflation, derivatives."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from msign import checks
from msign.lattice import Lattice
from msign.priors import Prior

Forward = Callable[[ArrayLike], ArrayLike]
Vjp = Callable[[ArrayLike, ArrayLike], ArrayLike]
Cotangents = Callable[[np.ndarray, slice], np.ndarray]
ForwardAndVjp = Callable[[np.ndarray, Cotangents], tuple[np.ndarray, np.ndarray]]


class Inflation(NamedTuple):
    """Mean and covariance of F(x) - F(B A x) over the prior: the coarse model's own error."""

    mean: np.ndarray
    covariance: np.ndarray


class ScaleModel:
    """From whitened coordinates of one scale to whitened residuals, and back.

    Args:
        scale: l.
        prior: Of the scale.
        finer: Lattices of the scales above, through which fields are upsampled for `forward`.
        forward: The forward map.
        vjp: Its transposed derivative, if given.
        both: Forward map and transposed derivative at once, if given.
        data: Observations `(m,)`.
        noise_cov: Covariance of the noise.
        error: Of the scale's own discretisation, to be added to the noise.
        traceable: Whether `forward` is JAX code.
    """

    def __init__(
        self,
        scale: int,
        prior: Prior,
        finer: Sequence[Lattice],
        forward: Forward,
        vjp: Vjp | None,
        both: ForwardAndVjp | None,
        data: np.ndarray,
        noise_cov: np.ndarray,
        error: Inflation | None,
        traceable: bool,
    ):
        self.scale, self.prior = scale, prior
        self.forward, self.vjp, self.both = forward, vjp, both

        def lift(x: jax.Array) -> jax.Array:
            for lattice in finer:
                x = lattice.upsample(x)
            return x

        self.lift = jax.jit(lift)
        self.fields = jax.jit(lambda u: lift(self.prior.unwhiten(u)))
        covariance, self.shift = noise_cov, np.zeros(len(data))
        if error is not None:
            covariance, self.shift = covariance + error.covariance, error.mean
        self.whiten_noise = np.linalg.inv(np.linalg.cholesky(covariance))
        self.compiled: Callable[[jax.Array, bool], tuple[jax.Array, jax.Array | None]] | None = None
        if not traceable:
            self.pull = jax.jit(self._pull)
            return

        def residual(u: jax.Array) -> jax.Array:
            target = jnp.asarray(data - self.shift, u.dtype)
            whiten = jnp.asarray(self.whiten_noise, u.dtype)
            return (target - self.forward(self.fields(u))) @ whiten.T

        def residual_and_gradient(u: jax.Array) -> tuple[jax.Array, jax.Array]:
            r, pull = jax.vjp(residual, u)
            return r, pull(-r)[0]

        plain, both = jax.jit(residual), jax.jit(residual_and_gradient)
        self.compiled = lambda u, gradient: both(u) if gradient else (plain(u), None)

    def _pull(self, gradient: jax.Array) -> jax.Array:
        """Gradients in whitened coordinates from gradients with respect to lifted fields."""
        zero = jnp.zeros((len(gradient), self.prior.lattice.dim), gradient.dtype)
        return jax.vjp(self.fields, zero)[1](gradient)[0]


def noise_covariance(std: ArrayLike | None, cov: ArrayLike | None, m: int) -> np.ndarray:
    """The covariance `(m, m)` of the noise, from either of the two ways to give it."""
    if (std is None) == (cov is None):
        raise ValueError("noise_std or noise_cov must be given, and not both")
    if std is not None:
        array = checks.finite_array("noise_std", std)
        if array.shape not in ((), (m,)):
            raise ValueError(f"noise_std must be a number or have shape ({m},), got {array.shape}")
        if array.min() <= 0:
            raise ValueError(f"noise_std must be positive, got {array.min()}")
        return np.diag(np.broadcast_to(array, (m,)) ** 2)
    array = checks.finite_array("noise_cov", cov)
    if array.shape != (m, m):
        raise ValueError(f"noise_cov must have shape {(m, m)}, got {array.shape}")
    if not np.allclose(array, array.T) or np.linalg.eigvalsh(array)[0] <= 0:
        raise ValueError("noise_cov must be symmetric positive definite")
    return array
