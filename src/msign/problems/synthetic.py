"""The paper's synthetic problem (section 6.1.1): a quadratic measurement, two symmetric modes.

F(x) = t^2 with t = 4 * integral of phi x, phi = sin(pi s1) sin(2 pi s2), normalised so that
t = 1 for x = phi. The data are y = 1. phi is an eigenvector of the prior at every scale, so the
posterior factorises there: one coordinate u* with density proportional to
N(u*) exp(-(F(tau_l u*) - y)^2 / 2 gamma^2), all others standard normal.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import ArrayLike, PRNGKeyArray

from msign import checks
from msign.noise import generator, normal
from msign.priors import LaplacePrior, Prior, SpectralPrior
from msign.problems.inverse import InverseProblem

GRID = 200_001
SHOWN = 600  # values of an exact density that are shown,
NEGLIGIBLE = 1e-6  # where it is above this part of its maximum


class SyntheticReference:
    """Exact samples, evidence and moments of the synthetic posterior, for evaluation only.

    Args:
        priors: Of all scales, coarse to fine.
        phi: The measured function on the finest lattice.
        gamma: Standard deviation of the noise.
        tilt: F(x) = t^2 + tilt * t.
    """

    def __init__(self, priors: Sequence[Prior], phi: np.ndarray, gamma: float, tilt: float):
        self.priors = tuple(priors)
        self.gamma = gamma
        self.tilt = tilt
        self._phi = phi
        self._lines: dict[int, tuple[int, float, np.ndarray, np.ndarray, float]] = {}

    def _line(self, scale: int) -> tuple[int, float, np.ndarray, np.ndarray, float]:
        """Index of u*, tau_l, a grid on it, the normalised density there, log evidence."""
        if scale not in self._lines:
            prior = self.priors[scale - 1]
            assert isinstance(prior, SpectralPrior)
            phi = jnp.asarray(self._phi)
            for finer in reversed(self.priors[scale:]):
                phi = finer.lattice.pool(phi)
            cells = prior.lattice.dim
            # t = (4 / cells) <phi_l, x>, and phi_l is an eigenvector: one coordinate matters.
            std = np.asarray(prior.std, np.float64).reshape(-1)
            slopes = 4 / cells * np.asarray(prior.whiten(phi), np.float64) * std**2
            index = int(np.argmax(np.abs(slopes)))
            tau = slopes[index]
            grid = np.linspace(-12, 12, GRID)
            log_q = self._log_likelihood(tau * grid) - 0.5 * grid**2 - 0.5 * np.log(2 * np.pi)
            density = np.exp(log_q)
            evidence = density.sum() * (grid[1] - grid[0])
            self._lines[scale] = (index, tau, grid, density / evidence, float(np.log(evidence)))
        return self._lines[scale]

    def _log_likelihood(self, t: np.ndarray) -> np.ndarray:
        return -0.5 * ((t**2 + self.tilt * t - 1) / self.gamma) ** 2

    def log_evidence(self, scale: int | None = None) -> float:
        """Log of the integral of prior times exp(-|residual|^2 / 2)."""
        return self._line(scale or len(self.priors))[4]

    def critical_index(self, scale: int | None = None) -> int:
        """Which whitened coordinate is not standard normal."""
        return self._line(scale or len(self.priors))[0]

    def critical_values(self, u: ArrayLike, scale: int | None = None) -> np.ndarray:
        """T of fields in whitened coordinates."""
        index, tau, *_ = self._line(scale or len(self.priors))
        return tau * np.asarray(u)[..., index]

    def critical_density(self, t: np.ndarray, scale: int | None = None) -> np.ndarray:
        """Exact posterior density of t."""
        _, tau, grid, density, _ = self._line(scale or len(self.priors))
        return np.interp(np.asarray(t) / tau, grid, density) / abs(tau)

    def marginal(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights of t as a functional of the field, values of t and the exact density of each."""
        _, tau, grid, density, _ = self._line(len(self.priors))
        heavy = np.flatnonzero(density > NEGLIGIBLE * density.max())
        ends = tau * grid[[heavy[0], heavy[-1]]]
        t = np.linspace(ends.min(), ends.max(), SHOWN)
        return 4 / self._phi.size * self._phi, t, self.critical_density(t)

    def mode_fractions(self, scale: int | None = None) -> tuple[float, float]:
        """Mass of t < 0 and of t > 0 beside the trough between the modes."""
        _, tau, grid, density, _ = self._line(scale or len(self.priors))
        trough = -0.5 * self.tilt
        mass = density[(tau * grid) > trough].sum() * (grid[1] - grid[0])
        return 1 - float(mass), float(mass)

    def moments(self, scale: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Exact mean and standard deviation of every whitened coordinate."""
        scale = scale or len(self.priors)
        index, _, grid, density, _ = self._line(scale)
        h = grid[1] - grid[0]
        mean = np.zeros(self.priors[scale - 1].lattice.dim)
        std = np.ones_like(mean)
        mean[index] = (grid * density).sum() * h
        std[index] = np.sqrt(((grid - mean[index]) ** 2 * density).sum() * h)
        return mean, std

    def prior_jeffreys(self, scale: int | None = None) -> float:
        """Jeffreys divergence between prior and posterior, by quadrature."""
        scale = scale or len(self.priors)
        _, tau, grid, density, _ = self._line(scale)
        normal = np.exp(-0.5 * grid**2) / np.sqrt(2 * np.pi)
        ratio = self._log_likelihood(tau * grid)  # log posterior / prior, up to a constant
        return float(((density - normal) * ratio).sum() * (grid[1] - grid[0]))

    def proposal_jeffreys(self, scale: int | None = None) -> float:
        """Jeffreys divergence between q~_l, refined from the exact q_{l-1}, and q_l.

        Both differ from the prior through one coordinate each, that of the coarse and that of the
        fine critical mode; under the prior these two are normal with a known correlation.
        """
        scale = scale or len(self.priors)
        if scale == 1:
            return self.prior_jeffreys(1)
        coarse, fine = self._line(scale - 1), self._line(scale)
        prior = self.priors[scale - 1]
        unit = jnp.zeros(prior.lattice.dim).at[coarse[0]].set(1.0)
        correlation = float(prior.rotation().transform(unit)[fine[0]])
        points, weights = np.polynomial.hermite_e.hermegauss(64)
        weights = weights / weights.sum()
        spread = np.sqrt(max(0.0, 1 - correlation**2))

        def divergence(own: tuple[int, float, np.ndarray, np.ndarray, float]) -> float:
            """Mean of the log-ratio of one side to the other under the one side."""
            _, tau, grid, density, _ = own
            other = fine if own is coarse else coarse
            given = correlation * grid[::10, None] + spread * points
            mean = self._log_likelihood(tau * grid[::10])
            mean = mean - self._log_likelihood(other[1] * given) @ weights
            return float((density[::10] * mean).sum() * 10 * (grid[1] - grid[0]))

        return divergence(coarse) + divergence(fine)

    def sample(self, key: PRNGKeyArray, n: int, scale: int | None = None) -> np.ndarray:
        """Exact posterior samples in whitened coordinates `(n, d_l)`."""
        scale = scale or len(self.priors)
        index, _, grid, density, _ = self._line(scale)
        cdf = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
        cdf /= cdf[-1]
        u = normal(jr.fold_in(key, 0), (n, self.priors[scale - 1].lattice.dim))
        u[:, index] = np.interp(generator(jr.fold_in(key, 1)).uniform(size=n), cdf, grid)
        return u


def synthetic(
    size: int = 64,
    gamma: float = 0.2,
    tilt: float = 0.0,
    alpha: float = 0.1,
    beta: float = 2.0,
    black_box: bool = False,
    inflate: int | None = None,
) -> InverseProblem:
    """The synthetic problem on size x size cells; its `reference` is exact.

    Args:
        size: Cells per side, a power of two.
        gamma: Standard deviation of the noise.
        tilt: F(x) = t^2 + tilt * t; zero in the paper, other values make the modes unequal.
        alpha: Smoothness of the prior.
        beta: Amplitude of the prior.
        black_box: Hand the forward map over as a NumPy function without derivative.
        inflate: Of `InverseProblem`; with 0 every stage learns the posterior that the paper has at
            its scale, and is compared with it.
    """
    if checks.integer("size", size, 2) & (size - 1):
        raise ValueError(f"size must be a power of two, got {size}")
    prior = LaplacePrior((size, size), alpha, beta)
    s = (np.arange(size) + 0.5) / size
    phi = np.sin(np.pi * s)[:, None] * np.sin(2 * np.pi * s)
    weights = 4 / size**2 * phi

    def forward(x: ArrayLike) -> ArrayLike:
        t = jnp.einsum("nij,ij->n", x, jnp.asarray(weights, jnp.asarray(x).dtype))
        return (t**2 + tilt * t)[:, None]

    def numpy_forward(x: ArrayLike) -> np.ndarray:
        t = np.einsum("nij,ij->n", np.asarray(x), weights)
        return (t**2 + tilt * t)[:, None]

    scales = int(size).bit_length() - 1
    return InverseProblem(
        prior,
        numpy_forward if black_box else forward,
        data=[1.0],
        noise_std=checks.positive("gamma", gamma),
        scales=scales,
        inflate=inflate,
        name="synthetic",
        reference=SyntheticReference(prior.hierarchy(scales), phi, gamma, tilt),
        symmetry=negative if tilt == 0 else None,
    )


def negative(x: ArrayLike) -> np.ndarray:
    """The field with its sign changed, under which the posterior does not change."""
    return -np.asarray(x)
