"""T, I and F of marginals whose faults are known."""

import numpy as np
import pytest

from msign.diagnostics.judge import Marginal, Thresholds, deepest_valley, judge

N = 2000


@pytest.fixture(scope="module")
def truth():
    return Marginal.of(two_peaks(20_000, 0.5))


def two_peaks(n: int, share: float, shift: float = 0.0, width: float = 0.2, seed: int = 0):
    rng = np.random.default_rng(seed)
    sign = np.where(rng.uniform(size=n) < share, 1.0, -1.0)
    return sign * (1 + shift) + width * rng.normal(size=n)


def test_the_truth_has_two_modes_apart_at_zero(truth):
    assert abs(truth.trough) < 0.3 and truth.depth < 0.01
    assert abs(truth.shares[1] - 0.5) < 6 * 0.5 / np.sqrt(20_000)


@pytest.mark.parametrize(
    "letter, values",
    [
        ("T", two_peaks(N, 0.5, seed=1)),
        ("T", two_peaks(N, 0.45, seed=1)),
        ("I", two_peaks(N, 0.2, seed=1)),  # not balanced
        ("I", two_peaks(N, 0.5, shift=0.2, seed=1)),  # biased by a standard deviation
        ("I", two_peaks(N, 0.5, width=0.8, seed=1)),  # not separated
        ("I", two_peaks(N, 0.5, width=0.02, seed=1)),  # collapsed within the modes
        ("F", two_peaks(N, 1.0, seed=1)),
        ("F", np.full(N, 0.9)),
    ],
)
def test_letters(letter, values, truth):
    assert judge(values, truth).letter == letter


def test_one_mode_is_judged_by_its_bias():
    values = np.random.default_rng(0).normal(size=N)
    truth = Marginal.of(values)
    assert truth.trough is None and truth.shares == (1.0,)
    assert judge(-values, truth).letter == "T"
    assert judge(values + 1, truth).letter == "I"


def test_halves_of_a_symmetric_posterior_are_modes_however_shallow_the_valley():
    values = two_peaks(N, 0.5, width=1.0)
    assert Marginal.of(values).trough is None
    truth = Marginal.of(values, middle=0.0)
    assert truth.trough == 0.0 and len(truth.shares) == 2
    assert judge(two_peaks(N, 0.5, width=1.0, seed=1), truth).letter == "T"
    assert judge(np.abs(values), truth).letter == "F"


def test_a_valley_is_found_where_it_is():
    place, depth = deepest_valley(3 + two_peaks(N, 0.3))
    assert abs(place - 3) < 0.5 and depth < 0.1
    assert deepest_valley(np.random.default_rng(1).normal(size=N))[1] > Thresholds().depth
