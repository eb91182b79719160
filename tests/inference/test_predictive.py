"""What a run keeps of its certificate's simulations."""

import numpy as np
import pytest

from helpers import seeded
from msign import LaplacePrior, likelihoods, problems
from msign.inference.known import Known
from msign.inference.predictive import Predictive
from msign.inference.simulate import Simulated
from msign.problems.data_likelihood import Layout
from msign.problems.inverse import InverseProblem

N, FEWER = 40_000, 2000
PREDICTED = np.array([0.3, -0.5, 1.2])
CORRELATED = np.array([[0.5, 0.2, 0.0], [0.2, 0.4, 0.1], [0.0, 0.1, 0.3]])
# Each likelihood with the mean of its data, and the variance of residuals.
FAMILIES = {
    "std": (likelihoods.Gaussian(0.3), PREDICTED, 1.0),
    "cov": (likelihoods.Gaussian(cov=CORRELATED), PREDICTED, 1.0),
    "student": (likelihoods.StudentT(0.2, 12.0), PREDICTED, 12 / 10),
    "laplace": (likelihoods.Laplace(0.2), PREDICTED, 2.0),
    "poisson": (likelihoods.Poisson(), np.exp(PREDICTED), 1.0),
    "binomial": (likelihoods.Binomial(7), 7 / (1 + np.exp(-PREDICTED)), 1.0),
    "negative": (likelihoods.NegativeBinomial(0.4), np.exp(PREDICTED), 1.0),
}


def problem_of(likelihood, data):
    return InverseProblem(LaplacePrior((3,), 1.0, 1.0), lambda x: x, data, likelihood=likelihood)


@pytest.mark.parametrize("name", FAMILIES)
def test_new_data_have_the_mean_and_the_residuals_of_the_likelihood(name):
    family, mean, variance = FAMILIES[name]
    given = problem_of(family, np.ones(3)).likelihood
    features = given.features(np.tile(PREDICTED, (N, 1)))
    np.testing.assert_allclose(given.predicted(features)[0], PREDICTED, rtol=1e-12)
    data = given.replicated(features, np.random.default_rng(seeded(1)))
    error = data.std(0) / np.sqrt(N)
    assert np.all(np.abs(data.mean(0) - mean) < 5 * error)
    family = family.restricted(Layout((3,)))
    left = np.stack([_residuals(family.given(y)) for y in data[:FEWER]])
    squares = left**2
    assert np.all(np.abs(squares.mean(0) - variance) < 5 * squares.std(0) / np.sqrt(FEWER))
    assert np.all(np.abs(left.mean(0)) < 5 * left.std(0) / np.sqrt(FEWER))


def _residuals(given):
    return given.residuals(given.features(PREDICTED[None]))[0]


def test_rejected_simulations_are_left_out_and_files_give_the_same_back(tmp_path):
    problem = problem_of(likelihoods.Poisson(), [1, 2, 3])
    features = np.random.default_rng(0).normal(size=(6, 3))
    features[2] = np.nan
    weights = np.array([0.1, 0.2, -np.inf, 0.4, 0.5, 0.6])
    zero = np.zeros(6)
    kept = Predictive.of(problem, Simulated(np.zeros((6, 1)), zero, weights, features), 0)
    assert kept.predicted.shape == kept.replicated.shape == (5, 3)
    assert np.isfinite(kept.residuals).all() and np.array_equal(kept.data, [1, 2, 3])
    kept.save(tmp_path / "predictive.npz")
    again = Predictive.load(tmp_path / "predictive.npz")
    for name in Predictive._fields:
        np.testing.assert_array_equal(getattr(again, name), getattr(kept, name))
    assert Predictive.load(tmp_path / "missing.npz") is None


def test_a_log_likelihood_alone_predicts_nothing():
    problem = InverseProblem(LaplacePrior((4,), 1.0, 1.0), log_likelihood=lambda x: -(x**2).sum(1))
    drawn = Simulated(np.zeros((2, 1)), np.zeros(2), np.zeros(2), np.zeros((2, 1)))
    assert Predictive.of(problem, drawn, 0) is None


def test_the_exact_marginal_of_the_synthetic_problem_is_one_of_a_functional(tmp_path):
    problem = problems.synthetic(size=4, tilt=0.3)
    known = Known.of(problem)
    step = known.values[1] - known.values[0]
    assert known.density.sum() * step == pytest.approx(1, abs=1e-3)
    fields = np.asarray(problem.prior.unwhiten(np.random.default_rng(1).normal(size=(5, 16))))
    t = np.tensordot(fields, known.weights, 2)
    expected = problem.reference.critical_values(np.asarray(problem.prior.whiten(fields)))
    np.testing.assert_allclose(t, expected, atol=1e-8)
    known.save(tmp_path / "known.npz")
    again = Known.load(tmp_path / "known.npz", (4, 4))
    np.testing.assert_array_equal(again.weights, known.weights)
    assert again.truth.size == 0


def test_a_reference_need_not_know_a_marginal():
    given = {"noise_std": 1.0, "reference": object(), "truth": np.zeros(3)}
    problem = InverseProblem(LaplacePrior((3,), 1.0, 1.0), lambda x: x, np.ones(3), **given)
    known = Known.of(problem)
    assert known.weights.size == 0 and known.truth.shape == (3,)
