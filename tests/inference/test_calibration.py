"""Calibration: over data drawn from the prior predictive the truth is a draw of the posterior."""

import dataclasses
import functools

import numpy as np
import pytest
from scipy import stats

from conformance import SMALL_INFORMED
from helpers import seeded
from inference.small import linear_problem, with_data
from msign import FitConfig, LaplacePrior, fit

pytestmark = pytest.mark.usefixtures("quick_compilation")

SETS, DRAWS, NOISE = 60, 19, 0.1
CONFIG = FitConfig(
    flow=dataclasses.replace(SMALL_INFORMED, samples=30), round_size=16, certificate=16
)
LEVEL = 1e-4


@functools.cache
def data_sets() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Truths, posterior draws, and the noise of each truth under its posterior's network."""
    problem = linear_problem(LaplacePrior((8,), 0.3, 2.0), 3, NOISE, scales=2)
    rng = np.random.default_rng(seeded(1))
    truths = np.asarray(problem.prior.unwhiten(rng.normal(size=(SETS, 8))))
    data = np.asarray(problem.forward(truths)) + NOISE * rng.normal(size=(SETS, 3))
    drawn, encoded = [], []
    for i in range(SETS):
        posterior = fit(with_data(problem, data[i]), 600, seed=seeded(i), config=CONFIG)
        drawn.append(posterior.sample(DRAWS, seed=seeded(i)))
        encoded.append(np.concatenate(posterior.network.encode(truths[i : i + 1]), 1)[0])
    return truths, np.stack(drawn), np.stack(encoded)


def uniformity(truths: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The p-value, for each cell, that the truth's rank among the draws is uniform."""
    ranks = np.sum(drawn < truths[:, None], 1)  # (sets, cells), from 0 to DRAWS
    counts = np.stack([np.histogram(r, bins=5, range=(0, DRAWS + 1))[0] for r in ranks.T])
    return stats.chisquare(counts, axis=1).pvalue


def test_ranks_of_the_truth_are_uniform():
    truths, drawn, _ = data_sets()
    assert uniformity(truths, drawn).min() > LEVEL / 8
    # The same ranks find posteriors of half and of twice the width.
    for factor in (0.4, 2.5):
        mean = drawn.mean(1, keepdims=True)
        assert uniformity(truths, mean + factor * (drawn - mean)).min() < LEVEL / 8


def test_the_noise_of_the_truth_is_standard_normal():
    """The network is invertible: what it makes of the truth tests all dimensions at once."""
    _, _, encoded = data_sets()
    assert encoded.shape == (SETS, 8)
    assert stats.kstest(encoded.ravel(), "norm").pvalue > LEVEL
    assert stats.kstest(2.0 * encoded.ravel(), "norm").pvalue < LEVEL
    # Its coordinates are independent of each other: squares of their sums have the right size.
    assert stats.kstest(np.sum(encoded**2, 1), "chi2", args=(8,)).pvalue > LEVEL
