"""Stein variational gradient descent, plain and projected, in whitened coordinates.

BlackJAX has the plain one, but forms arrays of particles x particles x dimension: 100 GB for 2500
fields of 4096 cells. The direction is two products of matrices.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from msign import checks
from msign.noise import normal
from msign.problems import InverseProblem, Simulator
from msign.samplers.base import Drawn, Sampler, require, require_derivative

ADAM = optax.scale_by_adam()
LAST_RATE = 0.1  # of the first
LARGEST_RATE = 0.3  # prior standard deviations in one step
MEDIAN_OF = 512  # particles whose distances give the median


@jax.jit
def stein_direction(u: jax.Array, score: jax.Array) -> jax.Array:
    """Where particles `(n, d)` go: phi of Liu and Wang (2016), by scores `(n, d)`.

    The kernel is exp(-|u - v|^2 / h), h the median of squared distances over log n.
    """
    n = len(u)
    squares = jnp.sum(u**2, 1)
    distances = jnp.maximum(squares[:, None] + squares - 2 * u @ u.T, 0.0)
    some = distances[:MEDIAN_OF, :MEDIAN_OF][jnp.tril_indices(min(n, MEDIAN_OF), -1)]
    width = jnp.maximum(jnp.median(some) / jnp.log(n + 1.0), 1e-12)
    kernel = jnp.exp(-distances / width)
    repulsion = 2 / width * (u * kernel.sum(1, keepdims=True) - kernel @ u)
    return (kernel @ score + repulsion) / n


class Ascent:
    """Adam along Stein directions, with a rate that falls to a tenth.

    Args:
        travel: Sum of the rates, about.
        steps: Number of steps.
    """

    def __init__(self, travel: float, steps: int):
        first = min(LARGEST_RATE, 2 * travel / (1 + LAST_RATE) / max(steps, 1))
        self._rates = optax.cosine_decay_schedule(first, max(steps, 1), LAST_RATE)
        self._done, self._state = 0, None

    def step(self, u: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, float]:
        """Particles after a step, and the root mean square of the direction."""
        places = jnp.asarray(u)
        state = ADAM.init(places) if self._state is None else self._state
        rate = self._rates(self._done)
        new, self._state, size = _moved(places, jnp.asarray(score), state, rate)
        self._done += 1
        return np.asarray(new), float(size)

    def forget(self) -> None:
        """Begin anew with the means of gradients: coordinates have changed."""
        self._state = None


@jax.jit
def _moved(u: jax.Array, score: jax.Array, state: Any, rate: Any) -> tuple[jax.Array, Any, Any]:
    phi = stein_direction(u, score)
    change, state = ADAM.update(phi, state)
    return u + rate * change, state, jnp.sqrt(jnp.mean(phi**2))


def _gradient(simulator: Simulator, u: np.ndarray, scale: int) -> np.ndarray:
    found = simulator.evaluate(u, scale, gradient=True)
    assert found.gradient is not None
    return found.gradient.astype(u.dtype)


@dataclasses.dataclass(frozen=True)
class SVGD(Sampler):
    """Stein variational gradient descent (Liu and Wang 2016) with the median heuristic.

    Attributes:
        travel: How far a particle may go in all, in prior standard deviations: steps of Adam are
            as long as their number allows, and fall to a tenth.
    """

    travel: float = 8.0

    def __post_init__(self) -> None:
        checks.positive("travel", self.travel)

    def check(self, problem: InverseProblem) -> None:
        require_derivative(problem, "SVGD")

    def draw(self, simulator: Simulator, scale: int, n: int, key: PRNGKeyArray) -> Drawn:
        require(simulator, 2 * n, f"SVGD with {n} particles")
        dim, steps = simulator.problem.priors[scale - 1].lattice.dim, simulator.left // (2 * n)
        u = normal(key, (n, dim))
        ascent, sizes = Ascent(self.travel, steps), list[float]()
        for _ in range(steps):
            u, size = ascent.step(u, _gradient(simulator, u, scale) - u)
            sizes.append(size)
        return Drawn(u, {"steps": steps, "direction": [sizes[0], sizes[-1]]})


@dataclasses.dataclass(frozen=True)
class ProjectedSVGD(Sampler):
    """Projected SVGD (Chen and Ghattas 2020): particles move in the span that data inform.

    Its directions are the leading eigenvectors of the mean of g g^T, g gradients of the
    log-likelihood at the particles; what is orthogonal to them stays as the prior drew it.

    Attributes:
        travel: As of `SVGD`.
        rank: Most directions.
        worth: Eigenvalue below which a direction is left to the prior.
        every: Steps after which directions are found anew.
    """

    travel: float = 8.0
    rank: int = 50
    worth: float = 0.01
    every: int = 10

    def __post_init__(self) -> None:
        for name in ("travel", "worth"):
            checks.positive(name, getattr(self, name))
        for name in ("rank", "every"):
            checks.integer(name, getattr(self, name), 1)

    def check(self, problem: InverseProblem) -> None:
        require_derivative(problem, "projected SVGD")

    def draw(self, simulator: Simulator, scale: int, n: int, key: PRNGKeyArray) -> Drawn:
        require(simulator, 2 * n, f"projected SVGD with {n} particles")
        dim, steps = simulator.problem.priors[scale - 1].lattice.dim, simulator.left // (2 * n)
        u, ranks, sizes = normal(key, (n, dim)), list[int](), list[float]()
        ascent = Ascent(self.travel, steps)
        for k in range(steps):
            gradient = _gradient(simulator, u, scale)
            if k % self.every == 0:
                basis = leading_directions(gradient, self.rank, self.worth)
                ascent.forget()
                ranks.append(basis.shape[1])
            inner = u @ basis
            moved, size = ascent.step(inner, gradient @ basis - inner)
            u = u + (moved - inner) @ basis.T
            sizes.append(size)
        return Drawn(u, {"steps": steps, "ranks": ranks, "direction": [sizes[0], sizes[-1]]})


def leading_directions(gradients: np.ndarray, rank: int, worth: float) -> np.ndarray:
    """Leading eigenvectors `(d, r)` of the mean of g g^T, of `(n, d)` gradients; at least one."""
    n, d = gradients.shape
    g = gradients.astype(np.float64)
    if d <= n:
        values, vectors = np.linalg.eigh(g.T @ g / n)
    else:
        values, left = np.linalg.eigh(g @ g.T / n)
        vectors = g.T @ left / np.sqrt(np.maximum(n * values, 1e-300))
    kept = np.flatnonzero(values > worth)[::-1][:rank]
    kept = kept if len(kept) else np.array([len(values) - 1])
    return vectors[:, kept].astype(gradients.dtype)
