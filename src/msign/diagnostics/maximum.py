"""Maxima of a posterior: where they are, how many, and what lies between two of them."""

from typing import NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from scipy.optimize import minimize

from msign import checks
from msign.problems import InverseProblem, Simulator


class Maximum(NamedTuple):
    """A maximum of the posterior density of whitened coordinates.

    Attributes:
        u: Its whitened coordinates.
        field: The field.
        value: Negative log posterior |residual|^2 / 2 + |u|^2 / 2.
        searches: How many searches ended there.
    """

    u: np.ndarray
    field: np.ndarray
    value: float
    searches: int


def negative_log_posterior(problem: InverseProblem, u: np.ndarray, scale: int) -> np.ndarray:
    """Of fields in whitened coordinates `(n, d)`, up to the evidence."""
    values = Simulator(problem).evaluate(u, scale).log_likelihood
    return 0.5 * np.sum(np.asarray(u, np.float64) ** 2, 1) - values


def find_maxima(
    problem: InverseProblem,
    scale: int,
    starts: int = 12,
    seed: int = 0,
    spread: float = 1.0,
    same: float = 0.1,
    simulator: Simulator | None = None,
) -> list[Maximum]:
    """Local maxima of the posterior by L-BFGS from prior draws, the highest first.

    Args:
        problem: With a derivative.
        scale: Of the fields.
        starts: Number of searches.
        seed: Of the starts.
        spread: Starts are prior draws times this.
        same: End points closer than this fraction of their norm count as one.
        simulator: Of the problem, to count simulations; default one of its own.
    """
    checks.integer("starts", starts, 1)
    simulator = Simulator(problem) if simulator is None else simulator
    prior = problem.priors[scale - 1]
    d = prior.lattice.dim
    begin = np.asarray(jr.normal(jr.fold_in(jr.key(seed), scale), (starts, d)), np.float64)

    def value_and_slope(u: np.ndarray) -> tuple[float, np.ndarray]:
        found = simulator.evaluate(u[None].astype(jnp.result_type(float)), scale, gradient=True)
        assert found.gradient is not None
        slope = u - np.asarray(found.gradient[0], np.float64)
        return float(0.5 * u @ u - found.log_likelihood[0]), slope

    options = {"maxiter": 500, "maxcor": 20, "ftol": 1e-9, "gtol": 1e-3}
    ends = []
    for u in spread * begin:
        result = minimize(value_and_slope, u, jac=True, method="L-BFGS-B", options=options)
        ends.append((float(result.fun), result.x))
    maxima: list[Maximum] = []
    for value, u in sorted(ends, key=lambda end: end[0]):
        for i, known in enumerate(maxima):
            if np.linalg.norm(u - known.u) < same * np.linalg.norm(known.u):
                maxima[i] = known._replace(searches=known.searches + 1)
                break
        else:
            field = np.asarray(prior.unwhiten(jnp.asarray(u[None], float)), np.float64)[0]
            maxima.append(Maximum(u, field, value, 1))
    return maxima


def profile(
    problem: InverseProblem, scale: int, a: np.ndarray, b: np.ndarray, n: int = 81
) -> tuple[np.ndarray, np.ndarray]:
    """Negative log posterior on the line through a (at 0) and b (at 1), from -0.5 to 1.5."""
    t = np.linspace(-0.5, 1.5, n)
    u = (a + t[:, None] * (b - a)).astype(jnp.result_type(float))
    return t, negative_log_posterior(problem, u, scale)
