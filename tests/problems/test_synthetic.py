"""The synthetic problem's exact reference, against independent computations."""

import itertools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from msign.problems import synthetic


def test_figures_of_the_design():
    reference = synthetic(64).reference
    assert reference.log_evidence() == pytest.approx(-2.9557, abs=2e-4)
    t = reference.critical_values(reference.sample(jr.key(0), 4000))
    mean, std = reference.moments()
    index = reference.critical_index()
    assert abs(mean[index]) < 1e-6
    assert reference.critical_values(np.eye(1, 4096, index) * std[index])[0] == pytest.approx(
        0.9407, abs=2e-4
    )
    assert np.std(t) == pytest.approx(0.9407, abs=0.02)
    assert reference.prior_jeffreys() == pytest.approx(8.1, abs=0.1)
    proposals = [reference.proposal_jeffreys(l) for l in range(2, 7)]
    np.testing.assert_allclose(proposals[:3], [1.4, 2.4, 0.17], rtol=0.03)
    assert proposals[3] < 0.015 and proposals[4] < 0.001
    tilted = synthetic(64, tilt=0.3).reference
    assert tilted.mode_fractions()[1] == pytest.approx(0.785, abs=1e-3)


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_evidence_and_moments_by_importance_sampling(scale):
    problem = synthetic(8, gamma=0.4)
    reference = problem.reference
    d = problem.priors[scale - 1].lattice.dim
    u = jr.normal(jr.key(scale), (200_000, d))
    values = problem.evaluate(u, scale).log_likelihood
    w = np.exp(values)
    error = w.std() / np.sqrt(len(w))
    assert abs(w.mean() - np.exp(reference.log_evidence(scale))) < 5 * error
    mean, std = reference.moments(scale)
    index = reference.critical_index(scale)
    second = (w * np.asarray(u)[:, index] ** 2).sum() / w.sum()
    assert second == pytest.approx(std[index] ** 2 + mean[index] ** 2, rel=0.03)


def test_exact_samples_have_the_exact_density():
    problem = synthetic(8)
    reference = problem.reference
    t = reference.critical_values(reference.sample(jr.key(5), 20_000))
    edges = np.linspace(-1.5, 1.5, 31)
    counts, _ = np.histogram(t, edges)
    grid = np.linspace(-1.5, 1.5, 3001)
    density = reference.critical_density(grid)
    expected = 20_000 * np.array(
        [density[(grid >= a) & (grid <= b)].mean() * (b - a) for a, b in itertools.pairwise(edges)]
    )
    keep = expected > 20
    assert np.all(
        np.abs(counts - expected)[keep] < 5 * np.sqrt(expected[keep]) + 0.05 * expected[keep]
    )


def test_black_box_has_no_derivative_but_the_same_values():
    a, b = synthetic(8), synthetic(8, black_box=True)
    u = np.asarray(jr.normal(jr.key(6), (9, 64)))
    np.testing.assert_allclose(
        a.evaluate(u, 3).log_likelihood, b.evaluate(u, 3).log_likelihood, rtol=1e-6
    )
    assert a.differentiable and not b.differentiable


def test_bad_size():
    with pytest.raises(ValueError, match="size must be a power of two, got 12"):
        synthetic(12)


def test_divergences_of_prior_and_proposal_by_sampling():
    problem = synthetic(8, gamma=0.5, tilt=0.2)
    reference, n, scale = problem.reference, 100_000, 3
    exact = reference.sample(jr.key(0), n)
    ratio = lambda u, l: problem.evaluate(u, l).log_likelihood - reference.log_evidence(l)  # noqa: E731
    forward, reverse = ratio(exact, 3), -ratio(jr.normal(jr.key(1), exact.shape), 3)
    error = np.sqrt((forward.var() + reverse.var()) / n)
    assert abs(reference.prior_jeffreys() - forward.mean() - reverse.mean()) < 4 * error

    rotation = problem.priors[scale - 1].rotation()
    coarse = reference.sample(jr.key(2), n, scale - 1)
    d = coarse.shape[1]
    noise = jr.normal(jr.key(3), (n, exact.shape[1] - d))
    refined = jax.vmap(rotation.transform)(jnp.concatenate([coarse, noise], 1))
    pooled = jax.vmap(rotation.inverse)(exact)[:, :d]
    reverse = ratio(coarse, scale - 1) - ratio(refined, scale)
    forward = ratio(exact, scale) - ratio(pooled, scale - 1)
    error = np.sqrt((forward.var() + reverse.var()) / n)
    assert abs(reference.proposal_jeffreys() - forward.mean() - reverse.mean()) < 4 * error
