"""The forward map of one scale (appendix D): upsampling, residuals in units of noise, derivatives.

A `ScaleModel` holds the compiled functions of a scale and no state. Noise is an argument of all of
them, so that the scale's own noise and an inflated one share one compiled program.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from msign import checks
from msign.lattice import Lattice
from msign.noise import on_device
from msign.priors import Prior

Forward = Callable[[ArrayLike], ArrayLike]
Vjp = Callable[[ArrayLike, ArrayLike], ArrayLike]
Cotangents = Callable[[np.ndarray, slice], np.ndarray]
ForwardAndVjp = Callable[[np.ndarray, Cotangents], tuple[np.ndarray, np.ndarray]]


class Inflation(NamedTuple):
    """Mean and covariance of F(x) - F(B A x) over the prior: the coarse model's own error."""

    mean: np.ndarray
    covariance: np.ndarray


class Noise(NamedTuple):
    """Gaussian noise of the data.

    Attributes:
        target: Data minus the mean of the noise `(m,)`.
        whiten: Matrix `(m, m)` that makes the noise standard normal.
    """

    target: Any
    whiten: Any

    def residual(self, observed: Any) -> Any:
        """What is left of the data `(n, m)`, in units of the noise."""
        return (self.target - observed) @ self.whiten.T


class ScaleModel:
    """From whitened coordinates of one scale to whitened residuals, and back.

    Args:
        scale: l.
        prior: Of the scale.
        finer: Lattices of the scales above, through which fields are upsampled for `forward`.
        forward: The forward map.
        vjp: Its transposed derivative, if given.
        both: Forward map and transposed derivative at once, if given.
        m: Number of observations.
        traceable: Whether `forward` is JAX code.
    """

    def __init__(
        self,
        scale: int,
        prior: Prior,
        finer: Sequence[Lattice],
        forward: Forward,
        vjp: Vjp | None = None,
        both: ForwardAndVjp | None = None,
        *,
        m: int,
        traceable: bool,
    ):
        self.scale, self.prior, self.m, self.traceable = scale, prior, m, traceable
        self.forward, self.vjp, self.both = forward, vjp, both

        def lift(x: jax.Array) -> jax.Array:
            for lattice in finer:
                x = lattice.upsample(x)
            return x

        def fields(u: jax.Array) -> jax.Array:
            return lift(prior.unwhiten(u))

        def pull(gradient: jax.Array) -> jax.Array:
            zero = jnp.zeros((len(gradient), prior.lattice.dim), gradient.dtype)
            return jax.vjp(fields, zero)[1](gradient)[0]

        def residual(u: jax.Array, noise: Noise) -> jax.Array:
            own = Noise(*(a.astype(u.dtype) for a in noise))
            return own.residual(forward(fields(u)))

        def residual_and_gradient(u: jax.Array, noise: Noise) -> tuple[jax.Array, jax.Array]:
            r, pull_residual = jax.vjp(lambda v: residual(v, noise), u)
            return r, pull_residual(-r)[0]

        self.lift = jax.jit(lift)
        self.fields = jax.jit(fields)
        self.pull = jax.jit(pull)
        self.residual = jax.jit(residual)
        self.residual_and_gradient = jax.jit(residual_and_gradient)

    @property
    def differentiable(self) -> bool:
        """Whether gradients are to be had at this scale."""
        return self.traceable or self.vjp is not None

    def observe(self, x: ArrayLike) -> np.ndarray:
        """What the forward map gives for fields on the finest lattice `(n, m)`, without noise."""
        x = x if self.traceable else np.asarray(x, np.float64)
        observed, n = np.asarray(self.forward(x), np.float64), np.shape(x)[0]
        if observed.shape != (n, self.m):
            raise ValueError(
                f"forward must return shape {(n, self.m)} for {n} fields, got {observed.shape}"
            )
        return observed

    def simulate(
        self, u: np.ndarray, noise: Noise, gradient: bool, limit: int, tolerant: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Whitened residuals `(n, m)`, and gradients of the log-likelihood if asked for.

        Args:
            u: Whitened coordinates `(n, d)`.
            noise: Of the scale.
            gradient: Whether to differentiate.
            limit: At least n: batches for compiled code are padded, but not beyond this length.
            tolerant: Whether a field whose simulation raises gets a residual of NaN instead.
        """
        n = len(u)
        # Pad to few distinct sizes, so that each is compiled once.
        padding = min(limit, 1 << max(0, (n - 1).bit_length())) - n
        if self.traceable:
            return self._simulate_compiled(_padded(u, padding), noise, gradient, n)
        x = np.asarray(self.fields(_padded(u, padding)), np.float64)[:n]
        residual, slopes = self._simulate_called(x, noise, gradient, tolerant)
        if slopes is None:
            return residual, None
        pulled = self.pull(_padded(np.asarray(slopes, float), padding))
        return residual, np.asarray(pulled)[:n]

    def _simulate_compiled(
        self, u: jax.Array, noise: Noise, gradient: bool, n: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        if not gradient:
            return np.asarray(self.residual(u, noise), np.float64)[:n], None
        residual, slopes = self.residual_and_gradient(u, noise)
        return np.asarray(residual, np.float64)[:n], np.asarray(slopes)[:n]

    def _simulate_called(
        self, x: np.ndarray, noise: Noise, gradient: bool, tolerant: bool
    ) -> tuple[np.ndarray, ArrayLike | None]:
        """Residuals, and gradients with respect to the fields x on the finest lattice."""
        if gradient and self.both is not None and not tolerant:
            cotangents = lambda o, rows: noise.residual(o) @ noise.whiten  # noqa: E731
            observed, slopes = self.both(x, cotangents)
            return noise.residual(observed), slopes
        residual = noise.residual(self._observe_tolerantly(x) if tolerant else self.observe(x))
        if not gradient:
            return residual, None
        assert self.vjp is not None
        return residual, self.vjp(x, np.nan_to_num(residual @ noise.whiten))

    def _observe_tolerantly(self, x: np.ndarray) -> np.ndarray:
        """All fields at once, or one by one if that raises; NaN for those that raise alone."""
        try:
            return self.observe(x)
        except Exception:
            if len(x) == 1:
                return np.full((1, self.m), np.nan)
        return np.concatenate([self._observe_tolerantly(one[None]) for one in x])


def _padded(a: np.ndarray, padding: int) -> jax.Array:
    """The array with its first entry repeated at the end."""
    return on_device(np.concatenate([a, np.broadcast_to(a[:1], (padding, *a.shape[1:]))]))


def whitened_noise(data: np.ndarray, covariance: np.ndarray, error: Inflation | None) -> Noise:
    """The noise of a scale, to which its discretisation error is added if there is one."""
    if error is not None:
        data, covariance = data - error.mean, covariance + error.covariance
    return Noise(data, np.linalg.inv(np.linalg.cholesky(covariance)))


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
    return array.copy()
