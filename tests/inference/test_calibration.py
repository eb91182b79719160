"""Calibration: over data drawn from the prior predictive the truth is a draw of the posterior."""

import dataclasses
import functools

import numpy as np
import pytest
from scipy import stats

from conformance import SMALL_INFORMED
from helpers import seeded
from inference.small import linear_problem, with_data
from msign import FitConfig, InverseProblem, LaplacePrior, fit, likelihoods

pytestmark = pytest.mark.usefixtures("quick_compilation")

SETS, DRAWS, NOISE = 60, 19, 0.1
CONFIG = FitConfig(flow=SMALL_INFORMED, round_size=16, certificate=16)
LEVEL = 1e-4


# A problem whose posteriors are not Gaussian has to be trained: few cells, one scale. How far that
# gets is not for this test: draws are corrected by their weights.
CANDIDATES = 500
TRAINED = dataclasses.replace(CONFIG, round_size=100, steps=50, rounds=2)
LIKELIHOODS = {
    "Bernoulli": likelihoods.Bernoulli(),
    "StudentT": likelihoods.StudentT(NOISE, 3),
}


LINEAR = ("Gaussian", "missing")  # the posterior is Gaussian: nothing is trained or corrected


def with_likelihood(name: str) -> InverseProblem:
    """Linear functionals of a field, of which answers or measurements with outliers are known."""
    if name in LINEAR:
        whole = linear_problem(LaplacePrior((8,), 0.3, 2.0), 3, NOISE, scales=2)
        if name == "Gaussian":
            return whole
        holes = [0.0, np.nan, 0.0]
        return InverseProblem(whole.prior, whole.forward, holes, NOISE, missing="drop", scales=2)
    linear = linear_problem(LaplacePrior((4,), 0.3, 2.0), 2, NOISE, scales=1)
    slope = 5.0 if name == "Bernoulli" else 1.0
    return InverseProblem(
        linear.prior,
        lambda x: slope * linear.forward(x),
        np.zeros(2),
        likelihood=LIKELIHOODS[name],
        scales=1,
    )


def observed(name: str, predicted: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Data drawn given what is predicted for them."""
    if name == "Bernoulli":
        return (rng.logistic(size=predicted.shape) < predicted).astype(float)
    noise = rng.normal(size=predicted.shape)
    if name == "StudentT":
        noise /= np.sqrt(rng.chisquare(3, size=predicted.shape) / 3)
    return predicted + NOISE * noise


@functools.cache
def data_sets(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Truths, posterior draws, and the noise of each truth under its posterior's network."""
    problem = with_likelihood(name)
    config = CONFIG if name in LINEAR else TRAINED
    rng = np.random.default_rng(seeded(1))
    truths = np.asarray(problem.prior.unwhiten(rng.normal(size=(SETS, problem.dim))))
    data = problem.layout.flat(observed(name, np.asarray(problem.forward(truths)), rng))
    drawn, encoded = [], []
    for i in range(SETS):
        posterior = fit(with_data(problem, data[i]), 600, seed=seeded(i), config=config)
        if name in LINEAR:
            drawn.append(posterior.sample(DRAWS, seed=seeded(i)))
        else:
            drawn.append(posterior.resample(DRAWS, seeded(i), CANDIDATES).fields)
        encoded.append(np.concatenate(posterior.network.encode(truths[i : i + 1]), 1)[0])
    return truths, np.stack(drawn), np.stack(encoded)


def uniformity(truths: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The p-value, for each cell, that the truth's rank among the draws is uniform."""
    ranks = np.sum(drawn < truths[:, None], 1)  # (sets, cells), from 0 to DRAWS
    counts = np.stack([np.histogram(r, bins=5, range=(0, DRAWS + 1))[0] for r in ranks.T])
    return stats.chisquare(counts, axis=1).pvalue


@pytest.mark.parametrize("name", [*LINEAR, *LIKELIHOODS])
def test_ranks_of_the_truth_are_uniform(name):
    truths, drawn, _ = data_sets(name)
    level = LEVEL / truths.shape[1]  # one test for each cell
    assert uniformity(truths, drawn).min() > level
    # The same ranks find posteriors that are too narrow or too wide. (Of exact posteriors on four
    # cells, a factor of 0.4 would be missed in four data sets of a hundred, 0.3 in none of 400.)
    for factor in (0.3, 2.5):
        mean = drawn.mean(1, keepdims=True)
        assert uniformity(truths, mean + factor * (drawn - mean)).min() < level


def test_the_noise_of_the_truth_is_standard_normal():
    """The network is invertible: what it makes of the truth tests all dimensions at once."""
    _, _, encoded = data_sets("Gaussian")
    assert encoded.shape == (SETS, 8)
    assert stats.kstest(encoded.ravel(), "norm").pvalue > LEVEL
    assert stats.kstest(2.0 * encoded.ravel(), "norm").pvalue < LEVEL
    # Its coordinates are independent of each other: squares of their sums have the right size.
    assert stats.kstest(np.sum(encoded**2, 1), "chi2", args=(8,)).pvalue > LEVEL
