"""The synthetic problem's exact reference, against independent computations."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from helpers import refused, seeded
from msign.problems import Simulator, synthetic


def test_figures_of_the_design():
    reference = synthetic(64).reference
    assert reference.log_evidence() == pytest.approx(-2.9557, abs=2e-4)
    n = 4000
    t = reference.critical_values(reference.sample(jr.key(seeded(0)), n))
    mean, std = reference.moments()
    index = reference.critical_index()
    assert abs(mean[index]) < 1e-6
    assert reference.critical_values(np.eye(1, 4096, index) * std[index])[0] == pytest.approx(
        0.9407, abs=2e-4
    )
    error = np.std(t**2) / np.sqrt(n)  # the mean is zero
    assert abs(np.mean(t**2) - 0.9407**2) < 5 * error
    assert reference.prior_jeffreys() == pytest.approx(8.1, abs=0.1)
    proposals = [reference.proposal_jeffreys(l) for l in range(2, 7)]
    np.testing.assert_allclose(proposals[:3], [1.4, 2.4, 0.17], rtol=0.03)
    assert proposals[3] < 0.015 and proposals[4] < 0.001
    tilted = synthetic(64, tilt=0.3).reference
    assert tilted.mode_fractions()[1] == pytest.approx(0.785, abs=1e-3)


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_evidence_and_moments_by_importance_sampling(scale):
    problem = synthetic(8, gamma=0.4, inflate=0)
    reference = problem.reference
    d = problem.priors[scale - 1].lattice.dim
    u = jr.normal(jr.key(seeded(scale)), (200_000, d))
    w = np.exp(Simulator(problem).evaluate(u, scale).log_likelihood)
    error = w.std() / np.sqrt(len(w))
    assert abs(w.mean() - np.exp(reference.log_evidence(scale))) < 5 * error
    mean, std = reference.moments(scale)
    squares, w = np.asarray(u)[:, reference.critical_index(scale)] ** 2, w / w.sum()
    second, exact = w @ squares, (std**2 + mean**2)[reference.critical_index(scale)]
    assert abs(second - exact) < 5 * np.sqrt(w**2 @ (squares - second) ** 2)


def test_exact_samples_have_the_exact_density():
    reference, n = synthetic(8).reference, 20_000
    t = reference.critical_values(reference.sample(jr.key(seeded(5)), n))
    edges = np.linspace(-1.5, 1.5, 31)
    counts, _ = np.histogram(t, edges)
    grid = np.linspace(-1.5, 1.5, 30 * 200 + 1)
    density = reference.critical_density(grid)
    cdf = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])]) * (grid[1] - grid[0]) / 2
    expected = n * np.diff(cdf[::200])
    keep = expected > 20
    assert np.all(np.abs(counts - expected)[keep] < 5 * np.sqrt(expected[keep]))


def test_black_box_has_no_derivative_but_the_same_values():
    a, b = synthetic(8), synthetic(8, black_box=True)
    x = a.prior.sample(jr.key(6), 9)
    np.testing.assert_allclose(a.log_likelihood(x), b.log_likelihood(x), rtol=1e-6)
    assert a.differentiable and not b.differentiable


def test_the_symmetry_is_that_of_the_likelihood():
    problem = synthetic(8)
    x = np.asarray(problem.prior.sample(jr.key(7), 5))
    values = problem.log_likelihood(x)
    np.testing.assert_allclose(problem.log_likelihood(problem.symmetry(x)), values, rtol=1e-12)
    assert synthetic(8, tilt=0.1).symmetry is None


def test_bad_size():
    with refused("size must be a power of two, got 12"):
        synthetic(12)


def test_divergences_of_prior_and_proposal_by_sampling():
    problem = synthetic(8, gamma=0.5, tilt=0.2)
    reference, n, scale = problem.reference, 100_000, 3
    exact, simulator = reference.sample(jr.key(seeded(0)), n), Simulator(problem)
    ratio = lambda u, l: simulator.evaluate(u, l).log_likelihood - reference.log_evidence(l)  # noqa: E731
    forward, reverse = ratio(exact, 3), -ratio(jr.normal(jr.key(seeded(1)), exact.shape), 3)
    error = np.sqrt((forward.var() + reverse.var()) / n)
    assert abs(reference.prior_jeffreys() - forward.mean() - reverse.mean()) < 5 * error

    rotation = problem.priors[scale - 1].rotation()
    coarse = reference.sample(jr.key(seeded(2)), n, scale - 1)
    d = coarse.shape[1]
    noise = jr.normal(jr.key(seeded(3)), (n, exact.shape[1] - d))
    refined = jax.vmap(rotation.transform)(jnp.concatenate([coarse, noise], 1))
    pooled = jax.vmap(rotation.inverse)(exact)[:, :d]
    reverse = ratio(coarse, scale - 1) - ratio(refined, scale)
    forward = ratio(exact, scale) - ratio(pooled, scale - 1)
    error = np.sqrt((forward.var() + reverse.var()) / n)
    assert abs(reference.proposal_jeffreys() - forward.mean() - reverse.mean()) < 5 * error
