"""Maxima of posteriors against closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest

from msign import InverseProblem, LaplacePrior
from msign.diagnostics.maximum import find_maxima, profile
from msign.problems import synthetic


def test_a_linear_gaussian_posterior_has_one_maximum_at_its_mean():
    prior = LaplacePrior((8,), 0.5, 2.0)
    weights = np.stack([np.arange(8.0), np.ones(8)]) / 8
    data, noise = np.array([0.4, -0.1]), 0.1
    problem = InverseProblem(prior, lambda x: x @ jnp.asarray(weights.T), data, noise, scales=1)
    slope = weights @ np.asarray(prior.unwhiten(jnp.eye(8))).T / noise
    mean = np.linalg.solve(np.eye(8) + slope.T @ slope, slope.T @ data / noise)
    (found,) = find_maxima(problem, 1, starts=4)
    assert found.searches == 4
    np.testing.assert_allclose(found.u, mean, atol=1e-3)


def test_the_two_modes_of_the_synthetic_problem_and_the_barrier_between():
    problem = synthetic(4)
    a, b = find_maxima(problem, problem.scales, starts=10)
    assert a.searches + b.searches == 10
    assert a.value == pytest.approx(b.value, abs=1e-4)
    np.testing.assert_allclose(a.field, -b.field, atol=1e-3)
    t, values = profile(problem, problem.scales, a.u, b.u)
    assert t[values.argmin()] in (pytest.approx(0.0), pytest.approx(1.0))
    barrier = values[(t >= 0) & (t <= 1)].max() - a.value
    middle = 0.5 / 0.2**2  # of -log likelihood at t = 0
    assert barrier == pytest.approx(middle - a.value, rel=1e-3)
