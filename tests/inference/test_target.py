"""The tempered target: its ends, its temperature, what it makes of rejected simulations."""

import numpy as np
import pytest

from helpers import seeded
from msign.inference.target import Tempered, bounded_below
from msign.weights import ess_fraction, normalised

N = 500


def drawn(seed: int = 0, sharp: float = 200.0):
    """Log-likelihood, log p_start - log prior, and that of a proposal, at N fields."""
    rng = np.random.default_rng(seeded(seed))
    s = rng.normal(size=N)
    return -sharp * (s - 1) ** 2, 0.3 * s, 0.2 * s - 0.1 * s**2


def test_its_ends_are_the_start_and_the_posterior():
    log_likelihood, start, _ = drawn()
    np.testing.assert_array_equal(Tempered(1.0).log_ratio(log_likelihood, start), log_likelihood)
    np.testing.assert_array_equal(Tempered(0.0).log_ratio(log_likelihood, start), start)
    middle = Tempered(0.25).log_ratio((log_likelihood,), (start,))[0]
    np.testing.assert_allclose(middle, 0.25 * log_likelihood + 0.75 * start)


def test_temperature_is_the_highest_whose_weights_are_worth_what_is_asked():
    log_likelihood, start, proposal = drawn()
    target = Tempered(0.0).raised(log_likelihood, start, proposal, 0.25 * N)
    weights = target.log_ratio(log_likelihood, start) - proposal
    assert 0 < target.temperature < 1
    assert ess_fraction(weights) == pytest.approx(0.25, rel=1e-3)
    above = Tempered(1.01 * target.temperature).log_ratio(log_likelihood, start) - proposal
    assert ess_fraction(above) < 0.25


def test_the_more_is_asked_the_lower_the_temperature_and_it_never_falls():
    values = drawn()
    worth = np.linspace(0.02, 0.7, 12) * N
    temperatures = [Tempered(0.0).raised(*values, w).temperature for w in worth]
    assert np.all(np.diff(temperatures) < 0)
    assert Tempered(0.5).raised(*values, N - 1.0).temperature == 0.5
    easy = (0.001 * values[0], *values[1:])
    assert Tempered(0.0).raised(*easy, 0.25 * N).temperature == 1


def test_weights_are_worth_less_the_higher_the_temperature():
    """From the start's own samples."""
    log_likelihood, start, _ = drawn()
    worth = [
        ess_fraction(Tempered(t).log_ratio(log_likelihood, start) - start)
        for t in np.linspace(0, 1, 20)
    ]
    assert worth[0] == pytest.approx(1) and np.all(np.diff(worth) < 0)


def test_rejected_simulations_are_finite_and_have_no_weight():
    values = np.array([-0.1, -np.inf, -0.3, -np.inf])
    bounded = bounded_below(values)
    np.testing.assert_array_equal(bounded[[0, 2]], values[[0, 2]])
    assert np.all(np.isfinite(bounded)) and normalised(bounded)[[1, 3]].sum() < 1e-20
    assert np.all(np.isfinite(bounded_below(np.full(3, -np.inf))))
