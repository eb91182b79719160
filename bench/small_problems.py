"""Problems that the paper does not have, small enough to try an idea on; each with its exact J.

All but the heat equation depend on one or two whitened coordinates of the field, so that the exact
posterior is a density on a line or a plane, known by quadrature.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

import msign


def _directions(prior: msign.LaplacePrior, count: int) -> np.ndarray:
    """Fields w_i with <w_i, x> standard normal under the prior, of its first eigenvectors."""
    d = prior.lattice.dim
    order = np.argsort(-np.asarray(prior.std).reshape(-1), kind="stable")[:count]
    units = np.zeros((count, d))
    units[np.arange(count), order] = 1.0
    fields = np.asarray(prior.unwhiten(jnp.asarray(units)), np.float64)
    std = np.asarray(prior.std, np.float64).reshape(-1)[order]
    return fields / std.reshape(-1, *[1] * (fields.ndim - 1)) ** 2


def few_coordinates(
    name: str, size: int, count: int, forward: Callable, data: list[float], noise: float
) -> msign.InverseProblem:
    """A problem on size x size cells whose forward map sees `count` whitened coordinates."""
    prior = msign.LaplacePrior((size, size), alpha=0.1, beta=2.0)
    weights = _directions(prior, count)

    def observe(x):
        c = jnp.einsum("nij,kij->nk", x, jnp.asarray(weights, x.dtype))
        return forward(c)

    return msign.InverseProblem(prior, observe, data, noise, name=name)


def ring() -> msign.InverseProblem:
    """F = a^2 + b^2, data 2, noise 0.25, 16 x 16: a ring."""
    return few_coordinates("ring", 16, 2, lambda c: (c**2).sum(1, keepdims=True), [2.0], 0.25)


def four_modes() -> msign.InverseProblem:
    """Four uneven modes of two coordinates on 32 x 32 cells."""

    def forward(c):
        a, b = c[:, 0], c[:, 1]
        return jnp.stack([a**2 + 0.1 * a, b**2 - 0.15 * b], 1)

    return few_coordinates("four modes", 32, 2, forward, [1.0, 1.0], 0.2)


def two_modes(size: int = 8) -> msign.InverseProblem:
    """The synthetic problem of the paper on a small lattice."""
    return msign.problems.synthetic(size)


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
