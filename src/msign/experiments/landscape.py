"""Appendix B: divergences between two-mode Gaussian mixtures as functions of the model's centres.

p_theta and q are equal mixtures of N(theta_1, sigma^2), N(theta_2, sigma^2) and of
N(mu, sigma^2), N(-mu, sigma^2). A grid on the line is a pool whose proposal is uniform, so the
training objective itself, `pool_jeffreys`, gives KL(p||q), KL(q||p) and their sum.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from msign.inference.methods.objectives import pool_jeffreys


class Landscape(NamedTuple):
    """Divergences `(n, n)` on a grid of centres `(n,)` for both axes."""

    centres: np.ndarray
    reverse_kl: np.ndarray
    forward_kl: np.ndarray
    jeffreys: np.ndarray


def landscape(mu: float = 1.5, sigma: float = 0.25, limit: float = 2.5, n: int = 101) -> Landscape:
    """The three divergences over (theta_1, theta_2) in [-limit, limit]^2."""
    centres = np.linspace(-limit, limit, n)
    line = jnp.linspace(-limit - 6 * sigma, limit + 6 * sigma, 2001)

    def log_mixture(a: Array, b: Array) -> Array:
        return jnp.logaddexp(-0.5 * ((line - a) / sigma) ** 2, -0.5 * ((line - b) / sigma) ** 2)

    target = log_mixture(jnp.asarray(mu), jnp.asarray(-mu))
    uniform = jnp.zeros_like(line)

    def divergence(a: Array, b: Array, reverse: float, forward: float) -> Array:
        return pool_jeffreys(log_mixture(a, b), target, uniform, reverse, forward, clip=1e4)

    grid = jnp.asarray(centres)
    surfaces = []
    for reverse, forward in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
        row = jax.vmap(lambda a, b, r=reverse, f=forward: divergence(a, b, r, f), (None, 0))
        surfaces.append(np.asarray(jax.lax.map(lambda a, row=row: row(a, grid), grid)))
    return Landscape(centres, *surfaces)


def local_minima(surface: np.ndarray, centres: np.ndarray) -> list[tuple[float, float]]:
    """Interior grid points lower than their eight neighbours, as (theta_1, theta_2)."""
    inner = surface[1:-1, 1:-1]
    lowest = np.ones_like(inner, bool)
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            if (i, j) != (0, 0):
                n = len(surface)
                lowest &= inner < surface[1 + i : n - 1 + i, 1 + j : n - 1 + j]
    return [(float(centres[a + 1]), float(centres[b + 1])) for a, b in np.argwhere(lowest)]
