"""Problems that the paper does not have, small enough to try an idea on; each with its exact J.

Ring and four modes depend on two whitened coordinates of the field, so that the exact posterior is
a density on a plane, known by quadrature. Signal, linear and heat have linear forward maps and
Gaussian posteriors. The paper's synthetic problem brings its own reference. Of the elliptic one no
exact posterior is known.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

import msign
from msign.diagnostics.reference import jeffreys_against
from msign.noise import generator, normal


@dataclasses.dataclass(frozen=True, eq=False)
class CoordinateMap:
    """A forward map that sees a field by a few of its whitened coordinates.

    Attributes:
        index: Which ones.
        weights: Fields w_i such that <w_i, x> is the coordinate `index[i]` of x.
        forward: From these coordinates `(n, count)` to observations, in JAX.
    """

    index: np.ndarray
    weights: np.ndarray
    forward: Callable

    def __call__(self, x):
        c = jnp.einsum("nij,kij->nk", x, jnp.asarray(self.weights, x.dtype))
        return self.forward(c)


def _leading_coordinates(prior: msign.LaplacePrior, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Index of the prior's first eigenvectors, and fields w_i that give their coordinates."""
    d = prior.lattice.dim
    index = np.argsort(-np.asarray(prior.std).reshape(-1), kind="stable")[:count]
    units = np.zeros((count, d))
    units[np.arange(count), index] = 1.0
    fields = np.asarray(prior.unwhiten(jnp.asarray(units)), np.float64)
    std = np.asarray(prior.std, np.float64).reshape(-1)[index]
    return index, fields / std.reshape(-1, *[1] * (fields.ndim - 1)) ** 2


def few_coordinates(
    name: str,
    size: int,
    count: int,
    forward: Callable,
    data: list[float],
    noise: float,
    scales: int | None = None,
) -> msign.InverseProblem:
    """A problem on size x size cells whose forward map sees `count` whitened coordinates."""
    prior = msign.LaplacePrior((size, size), alpha=0.1, beta=2.0)
    observe = CoordinateMap(*_leading_coordinates(prior, count), forward)
    return msign.InverseProblem(prior, observe, data, noise, name=name, scales=scales)


def ring(size: int = 16, scales: int | None = None) -> msign.InverseProblem:
    """F = a^2 + b^2, data 2, noise 0.25, 16 x 16: a ring."""

    def forward(c):
        return (c**2).sum(1, keepdims=True)

    return few_coordinates("ring", size, 2, forward, [2.0], 0.25, scales)


def four_modes(size: int = 32, scales: int | None = None) -> msign.InverseProblem:
    """Four uneven modes of two coordinates on 32 x 32 cells."""

    def forward(c):
        a, b = c[:, 0], c[:, 1]
        return jnp.stack([a**2 + 0.1 * a, b**2 - 0.15 * b], 1)

    return few_coordinates("four modes", size, 2, forward, [1.0, 1.0], 0.2, scales)


def thin_ring() -> msign.InverseProblem:
    """The ring with a noise of 0.03."""

    def forward(c):
        return (c**2).sum(1, keepdims=True)

    return few_coordinates("thin ring", 16, 2, forward, [2.0], 0.03)


def banana() -> msign.InverseProblem:
    """A thin parabola."""

    def forward(c):
        return (c[:, 1] - c[:, 0] ** 2 + 1)[:, None]

    return few_coordinates("banana", 16, 2, forward, [0.0], 0.1)


def snake() -> msign.InverseProblem:
    """A thin sine wave: no polynomial, and three values of one variable given the other."""

    def forward(c):
        return (jnp.sin(2 * c[:, 0]) + c[:, 1] - 0.5)[:, None]

    return few_coordinates("snake", 16, 2, forward, [0.0], 0.1)


def many_modes() -> msign.InverseProblem:
    """More than twenty modes, of which more the further out one variable is."""

    def forward(c):
        a, b = c[:, 0], c[:, 1]
        return jnp.stack([jnp.sin(3 * a), jnp.sin(2 * b) * jnp.exp(0.3 * a)], 1)

    return few_coordinates("many modes", 16, 2, forward, [0.5, 0.5], 0.2)


def far_mode() -> msign.InverseProblem:
    """One narrow mode at three and more standard deviations of the prior."""

    def forward(c):
        return jnp.stack([jnp.exp(c[:, 0]), c[:, 0] * c[:, 1]], 1)

    return few_coordinates("far mode", 16, 2, forward, [20.0, 9.0], 0.3)


def two_modes(size: int = 8) -> msign.InverseProblem:
    """The synthetic problem of the paper on a small lattice."""
    return msign.problems.synthetic(size)


def uneven_modes(size: int = 16) -> msign.InverseProblem:
    """Two narrow modes of one variable, a third and two thirds of the mass."""
    return _one_coordinate("uneven modes", size, lambda a: a**2 + 0.3 * a, 2.0)


def six_modes(size: int = 16) -> msign.InverseProblem:
    """Six narrow modes of one variable, of 0.5 to 41 percent."""
    return _one_coordinate("six modes", size, lambda a: jnp.sin(3 * a), 0.5)


def skewed(size: int = 16) -> msign.InverseProblem:
    """One mode of one variable."""
    return _one_coordinate("skewed", size, jnp.exp, 3.0)


def _one_coordinate(
    name: str, size: int, forward: Callable[[Any], Any], data: float
) -> msign.InverseProblem:
    return few_coordinates(name, size, 1, lambda c: forward(c[:, :1]), [data], 0.1)


def linear() -> msign.InverseProblem:
    """24 x 40 cells, 60 random averages: the posterior is Gaussian."""
    prior = msign.LaplacePrior((24, 40), alpha=0.5, beta=3.0)
    rng = np.random.default_rng(0)
    weights = rng.uniform(size=(60, 24, 40)) ** 8
    weights /= weights.sum((1, 2), keepdims=True)
    data = 0.2 * rng.normal(size=60)

    def forward(x):
        return jnp.einsum("nij,mij->nm", x, jnp.asarray(weights, x.dtype))

    return msign.InverseProblem(prior, forward, data, 0.02, name="linear")


def signal() -> msign.InverseProblem:
    """The tutorial's blurred signal: 32 cells, 5 observations."""
    cells = (np.arange(32) + 0.5) / 32
    blur = np.exp(-0.5 * ((cells - np.linspace(0.1, 0.9, 5)[:, None]) / 0.08) ** 2)
    blur /= blur.sum(axis=1, keepdims=True)
    truth = np.where((cells > 0.3) & (cells < 0.6), 1.0, 0.0)
    data = blur @ truth + 0.05 * np.random.default_rng(0).normal(size=5)
    prior = msign.LaplacePrior((32,), alpha=0.5, beta=4.0)
    return msign.InverseProblem(
        prior, lambda x: x @ jnp.asarray(blur.T, x.dtype), data, 0.05, name="signal"
    )


def heat() -> msign.InverseProblem:
    """1-D heat equation: the initial condition on 64 cells from 8 sensors, NumPy, no derivative."""
    n, steps, dt = 64, 200, 1e-5
    laplacian = n**2 * (np.eye(n, k=1) + np.eye(n, k=-1) - 2 * np.eye(n))
    march = np.linalg.matrix_power(np.linalg.inv(np.eye(n) - dt * laplacian), steps)
    sensors = march[4::8]
    rng = np.random.default_rng(3)
    cells = (np.arange(n) + 0.5) / n
    data = sensors @ np.sin(2 * np.pi * cells) + 0.02 * rng.normal(size=8)

    def forward(x):
        return np.asarray(x) @ sensors.T

    prior = msign.LaplacePrior((n,), alpha=0.5, beta=4.0)
    return msign.InverseProblem(prior, forward, data, 0.02, name="heat")


PROBLEMS: dict[str, tuple[Callable[[], msign.InverseProblem], int]] = {
    "signal": (signal, 5000),
    "linear": (linear, 50_000),
    "ring": (ring, 100_000),
    "four modes": (four_modes, 200_000),
    "two modes": (two_modes, 50_000),
    "heat": (heat, 10_000),
    "synthetic 64": (lambda: msign.problems.synthetic(64), 800_000),
    "synthetic 256": (lambda: msign.problems.synthetic(256), 800_000),
    "elliptic 16": (lambda: msign.problems.elliptic(16), 200_000),
    "elliptic 64": (lambda: msign.problems.elliptic(64), 500_000),
}


class Reference(Protocol):
    """An exact posterior in whitened coordinates of the finest scale."""

    def log_evidence(self) -> float:
        """Log of the integral of prior times exp(-|residual|^2 / 2)."""

    def sample(self, key: PRNGKeyArray, n: int) -> Any:
        """N independent fields `(n, d)`."""

    def axes(self) -> np.ndarray:
        """Unit vectors `(k, d)` along which it is not standard normal."""


class PlanePosterior:
    """The posterior of a problem whose forward map is a `CoordinateMap` of two coordinates.

    Its density is tabulated on squares of side h; a sample is uniform in its square, which adds
    h^2 / 12 to variances. Log-evidence by the midpoint rule.
    """

    REACH, CELLS = 6.0, 2400  # prior standard deviations to each side; squares per side

    def __init__(self, problem: msign.InverseProblem):
        self.dim, self.index = problem.dim, problem.forward.index
        h = 2 * self.REACH / self.CELLS
        self.line = -self.REACH + h * (np.arange(self.CELLS) + 0.5)
        mass = np.empty((self.CELLS, self.CELLS))
        for row, a in zip(mass, self.line, strict=True):
            c = np.stack([np.full_like(self.line, a), self.line], 1)
            residual = problem.likelihood.features(
                np.asarray(problem.forward.forward(c), np.float64)
            )
            row[:] = np.exp(-0.5 * (residual**2).sum(1) - 0.5 * (c**2).sum(1)) * h**2
        mass /= 2 * np.pi
        self.sums = np.cumsum(mass.reshape(-1))

    def log_evidence(self) -> float:
        return float(np.log(self.sums[-1]))

    def sample(self, key: PRNGKeyArray, n: int) -> np.ndarray:
        rng, u = generator(jr.fold_in(key, 1)), normal(jr.fold_in(key, 0), (n, self.dim))
        squares = np.searchsorted(self.sums, self.sums[-1] * rng.uniform(size=n))
        corners = np.stack(np.unravel_index(squares, (self.CELLS, self.CELLS)), 1)
        h = self.line[1] - self.line[0]
        u[:, self.index] = self.line[corners] + h * (rng.uniform(size=(n, 2)) - 0.5)
        return u

    def axes(self) -> np.ndarray:
        return np.eye(self.dim)[self.index]


class GaussianPosterior:
    """The posterior of a linear forward map, in closed form."""

    def __init__(self, problem: msign.InverseProblem):
        d, whiten = problem.dim, problem.likelihood.whiten
        fields = np.asarray(problem.prior.unwhiten(jnp.eye(d)))
        slope = whiten @ np.asarray(problem.forward(fields), np.float64).T
        y = whiten @ problem.likelihood.target
        gram = np.eye(len(y)) + slope @ slope.T
        self._log_z = float(-0.5 * y @ np.linalg.solve(gram, y) - 0.5 * np.linalg.slogdet(gram)[1])
        self.root = np.linalg.cholesky(np.linalg.inv(np.eye(d) + slope.T @ slope))
        self.mean = self.root @ (self.root.T @ (slope.T @ y))
        self._axes = np.linalg.svd(slope, full_matrices=False)[2]

    def log_evidence(self) -> float:
        return self._log_z

    def sample(self, key: PRNGKeyArray, n: int) -> np.ndarray:
        z = generator(key).normal(size=(n, len(self.mean)))
        return (self.mean + z @ self.root.T).astype(normal(key, (0,)).dtype)

    def axes(self) -> np.ndarray:
        return self._axes


class LinePosterior:
    """The reference that the paper's synthetic problem brings."""

    def __init__(self, problem: msign.InverseProblem):
        self.dim, self.own = problem.dim, problem.reference

    def log_evidence(self) -> float:
        return self.own.log_evidence()

    def sample(self, key: PRNGKeyArray, n: int) -> Any:
        return self.own.sample(key, n)

    def axes(self) -> np.ndarray:
        unit = np.zeros((1, self.dim))
        unit[0, self.own.critical_index()] = 1.0
        return unit


EXACT: dict[str, Callable[[msign.InverseProblem], Reference]] = {
    "signal": GaussianPosterior,
    "linear": GaussianPosterior,
    "heat": GaussianPosterior,
    "ring": PlanePosterior,
    "four modes": PlanePosterior,
    "synthetic": LinePosterior,
}
VALUES_AT_ONCE = 2**24  # of fields compared at a time


def exact_posterior(problem: msign.InverseProblem) -> Reference | None:
    """The exact posterior of a problem of this file, by its name; None where none is known."""
    return EXACT[problem.name](problem) if problem.name in EXACT else None


def exact_jeffreys(
    posterior: msign.Posterior, exact: Reference, n: int = 10_000, seed: int = 1
) -> dict[str, float]:
    """J = E_p[log p/q] + E_q[log q/p] from n samples of each side, with its standard error.

    The keys are those of `jeffreys_against`. The 2 n simulations count for no one.
    """
    simulator, scale = msign.Simulator(posterior.problem), posterior.problem.scales
    log_z, key = exact.log_evidence(), jr.key(seed)
    size = max(1, VALUES_AT_ONCE // posterior.problem.dim)
    at_own, at_exact = [], []
    for part, start in enumerate(range(0, n, size)):
        count = min(size, n - start)
        own, ratio = posterior.whitened_samples(count, seed + 1000 * part)
        at_own.append(ratio - simulator.evaluate(own, scale).log_likelihood + log_z)
        there = np.asarray(exact.sample(jr.fold_in(key, part), count))
        log_q = simulator.evaluate(there, scale).log_likelihood - log_z
        at_exact.append(log_q - posterior.log_ratio(there))
    return jeffreys_against(np.concatenate(at_own), np.concatenate(at_exact))
