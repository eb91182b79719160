"""What groups of samples are worth."""

import numpy as np
import pytest

from msign.samplers.effective import effective_samples, worth_of_groups


def test_independent_samples_are_worth_their_number():
    values = np.random.default_rng(2).normal(size=(100, 20))
    worth = worth_of_groups(values.reshape(-1), np.repeat(np.arange(100), 20))
    assert 1000 < worth <= 2000  # a chi-square of 99 degrees: 2000 (1 +- 0.14), cut at 2000
    same = np.repeat(values[:, :1], 20, 1)
    assert worth_of_groups(same.reshape(-1), np.repeat(np.arange(100), 20)) == pytest.approx(99)


def test_chains_that_never_change_their_mode_are_worth_their_number():
    chains = np.repeat(np.arange(10), 50)
    values = np.where(chains % 2, 1.0, -1.0) + 0.01 * np.random.default_rng(3).normal(size=500)
    assert effective_samples(values, 0.0, chains) == pytest.approx(9, rel=0.1)
    assert effective_samples(np.abs(values), 0.0, chains) == 1.0  # all in one mode
    assert effective_samples(values, 0.0) is None
    assert effective_samples(values, 0.0, log_weights=np.zeros(500)) == pytest.approx(500)
