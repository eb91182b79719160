"""Numbers to try, and the sentence that has them."""

import dataclasses
import math

import numpy as np
import pytest

from helpers import seeded
from msign.inference.remedies import factor_needed, next_step, remedies, rounded_up
from msign.weights import weight_report


def records(divergences, temperatures=None):
    temperatures = temperatures or [1.0] * len(divergences)
    return [
        {"jeffreys": j, "temperature": t} for j, t in zip(divergences, temperatures, strict=True)
    ]


def told(report, budget=12_345):
    """Numbers and sentence after a divergence of two nats, and seed 3."""
    numbers = remedies(report, records([3.0, 2.0]), budget, 3)
    return numbers, next_step(report, numbers)


def normal_weights(deviation, n=2000):
    return deviation * np.random.default_rng(seeded(0)).normal(size=n)


def test_how_much_longer():
    assert factor_needed(records([1.0, 1e-4]), 1e-3) is None
    # A factor of e a round: five more of the same are wanted after three rounds.
    falling = [math.exp(5 - i) for i in range(3)]
    assert factor_needed(records(falling), math.exp(-2)) == pytest.approx(1 + 5 / 3)
    assert factor_needed(records([1.0, 1.0, 1.0]), 1e-3) == 10  # no progress: the most
    # Temperatures that double: 0.1, 0.2, 0.4, 0.8 and then one.
    bridging = records([9.0, 9.0], [0.1, 0.2])
    assert factor_needed(bridging, 1e-3) == pytest.approx(1 + 3 / 2)


def test_nothing_to_try_after_a_good_certificate():
    good = weight_report(normal_weights(0.1))
    assert good.grade == "GOOD" and told(good)[1] == ""
    same = weight_report(np.full(7, 0.1))  # whose effective sample size rounding makes exceed 7
    assert told(same)[0].draws >= 1000 and told(same)[1] == ""


def test_a_poor_model_is_refined_or_trained_with_more_than_it_was_allowed():
    bad = weight_report(normal_weights(5))
    numbers, text = told(bad)
    assert bad.grade == "NOT RELIABLE" and numbers.fit_budget >= 2 * 12_345
    refine = f"refine(1000, budget={numbers.refine_budget})"
    assert text == f"Try `{refine}`, or fit again with budget={numbers.fit_budget}."


def test_a_rough_model_is_refined_or_resampled():
    weights = np.zeros(2000)
    weights[0] = -40
    rough = weight_report(weights)
    assert rough.grade == "ROUGH" and "`resample(1000, draws=1100)`" in told(rough)[1]


def test_a_lost_mode_is_looked_for_with_another_seed():
    lost = dataclasses.replace(weight_report(normal_weights(0.1)), lost=0.7)
    assert told(lost)[1] == "Fit again with budget=25000 and seed=4."


def test_the_further_off_the_more_a_refinement_is_given():
    budgets = [told(weight_report(normal_weights(v)))[0].refine_budget for v in (1, 3, 10)]
    assert budgets == sorted(set(budgets))


def test_rejected_simulations_leave_numbers_to_try():
    few = weight_report(np.where(np.arange(2000) < 1995, -np.inf, 0.0))
    numbers, text = told(few)
    assert "refine(1000" in text and numbers.draws == 400_000  # one in 400 counts
    with np.errstate(invalid="ignore", divide="ignore"):
        none = weight_report(np.full(2000, -np.inf))
    assert "on_failure='raise'" in told(none)[1] and "refine" not in told(none)[1]


def test_rounding_up():
    assert [rounded_up(x) for x in (0, 1, 9.1, 10, 10.5, 124, 24_690)] == [
        0, 1, 10, 10, 11, 130, 25_000,
    ]  # fmt: skip
