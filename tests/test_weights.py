"""Importance weights: estimates against closed forms, the certificate, resampling."""

import dataclasses

import numpy as np
import pytest
import scipy.stats

from helpers import seeded
from msign.weights import (
    ess_fraction,
    highest_power,
    lost_evidence,
    pareto_khat,
    resampled,
    weight_report,
)


def normal_quantiles(n: int) -> np.ndarray:
    """A standard normal sample without luck: its moments are exact to about log(n) / n."""
    return scipy.stats.norm.ppf((np.arange(n) + 0.5) / n)


def gaussian_log_weights(shift: float, n: int) -> np.ndarray:
    """log q/p + 2 for p = N(0, 1), q = N(shift, 1)."""
    return shift * normal_quantiles(n) - 0.5 * shift**2 + 2.0


def test_report_against_closed_forms():
    n = 20_000
    report = weight_report(gaussian_log_weights(0.5, n))
    assert report.log_evidence == pytest.approx(2.0, abs=1e-3)
    assert report.reverse_kl == pytest.approx(0.125, abs=1e-3)
    assert report.forward_kl == pytest.approx(0.125, abs=1e-3)
    assert report.jeffreys == pytest.approx(report.reverse_kl + report.forward_kl)
    assert report.ess_fraction == pytest.approx(np.exp(-0.25), abs=2e-3)
    # The weights have variance exp(shift^2) - 1.
    expected = np.sqrt((np.exp(0.25) - 1) / n)
    assert report.log_evidence_stderr == pytest.approx(expected, rel=1e-2)
    assert report.verdict.startswith("GOOD")


def test_standard_error_is_that_of_repetitions():
    rng = np.random.default_rng(seeded(1))
    reports = [weight_report(0.4 * rng.normal(size=500)) for _ in range(300)]
    spread = np.std([r.jeffreys for r in reports])
    # 300 repetitions know their spread to 4 percent; 5 of these, and 5 for skewness and bias.
    assert np.mean([r.jeffreys_stderr for r in reports]) == pytest.approx(spread, rel=0.25)


def test_certificate_says_no():
    rng = np.random.default_rng(seeded(2))
    assert weight_report(5 * rng.normal(size=2000)).verdict.startswith("NOT RELIABLE")
    single = 0.01 * rng.normal(size=2000)
    single[7] = -1000.0  # one sample far off: the ESS does not see it
    assert ess_fraction(single) > 0.99
    assert weight_report(single).verdict.startswith("ROUGH")
    rejected = 0.01 * rng.normal(size=2000)
    rejected[:3] = -np.inf
    assert not weight_report(rejected).verdict.startswith("GOOD")


def test_a_lost_mode_is_seen_in_the_evidence():
    """A model of one of two equal modes has perfect weights, and half of the evidence."""
    report = weight_report(gaussian_log_weights(0.01, 2000) - np.log(2))
    assert report.verdict.startswith("GOOD")
    lost = lost_evidence(report, 2.0, 0.05)
    assert lost == pytest.approx(np.log(2), abs=0.01)
    verdict = dataclasses.replace(report, lost=lost).verdict
    assert verdict.startswith("NOT RELIABLE") and "2 times the mass" in verdict
    assert lost_evidence(report, 2.0, 0.5) == 0  # not for certain
    assert lost_evidence(report, 1.35, 0.001) == 0  # too little to matter
    assert lost_evidence(report, 0.0, 0.01) == 0  # samples that have more are no loss


def test_resampling_keeps_to_the_weights():
    """Systematic: each draw comes its expected number of times, rounded up or down."""
    weights = np.random.default_rng(seeded(3)).gamma(0.5, size=50)
    weights[7] = 0.0
    with np.errstate(divide="ignore"):
        index = resampled(np.log(weights), 1000, start=0.3)
    counts = np.bincount(index, minlength=50)
    assert counts[7] == 0
    assert np.all(np.abs(counts - 1000 * weights / weights.sum()) < 1)


# --- k-hat ----------------------------------------------------------------------------------------

RNG = np.random.default_rng(seeded(4))
REJECTED = np.where(np.arange(1000) < 300, -np.inf, RNG.normal(size=1000))
LOG_WEIGHTS = {
    **{f"normal {sd:g}": sd * RNG.normal(size=2000) for sd in (1e-3, 1.0, 5.0, 100.0)},
    **{f"{n} points": RNG.normal(size=n) for n in (2, 10, 20, 21, 25, 60)},
    **{
        f"Pareto {k}": np.log(scipy.stats.genpareto.rvs(k, size=2000, random_state=RNG))
        for k in (-0.5, 0.3, 0.8, 3.0)
    },
    "uniform weights": np.log(RNG.uniform(size=1000)),
    "ties": np.round(RNG.normal(size=1000)),
    "two values": RNG.choice([0.0, 1.0], 1000),
    "some rejected": REJECTED,
    "most rejected": np.where(np.arange(1000) < 950, -np.inf, REJECTED),
    "far from zero": 1e4 + RNG.normal(size=1000),
}


@pytest.mark.parametrize("name", LOG_WEIGHTS)
def test_khat_is_that_of_arviz(name):
    import arviz

    a = LOG_WEIGHTS[name]
    with np.errstate(all="ignore"):
        expected = float(arviz.psislw(a - a.max())[1])
    assert pareto_khat(a) == pytest.approx(expected, rel=1e-8, abs=1e-8)
    assert pareto_khat(np.random.default_rng(seeded(5)).permutation(a)) == pareto_khat(a)


@pytest.mark.parametrize("shape", [-0.3, 0.0, 0.3, 0.7, 1.5])
def test_khat_of_generalised_pareto_samples_is_their_shape(shape):
    """A tail of such a sample has the same shape; the estimate is as precise as the likelihood's.

    Ten observations of a shape of one half are in it, by design; further bias is of the order of
    one over the size of the tail.
    """
    n, tail, repetitions = 10_000, 300, 40
    rng = np.random.default_rng(seeded(6))
    samples = scipy.stats.genpareto.rvs(shape, size=(repetitions, n), random_state=rng)
    found = np.mean([pareto_khat(np.log(sample)) for sample in samples])
    stderr = (1 + shape) / np.sqrt(tail * repetitions)
    expected = (tail * shape + 10 * 0.5) / (tail + 10)
    assert found == pytest.approx(expected, abs=5 * stderr + 3 / tail)


def test_khat_of_equal_weights_and_of_too_few():
    assert pareto_khat(np.full(100, 3.0)) == -np.inf
    assert pareto_khat(normal_quantiles(20)) == np.inf


@pytest.mark.parametrize("sd", [300.0, 500.0, 1e4])
@pytest.mark.filterwarnings("error")
def test_khat_of_weights_beyond_the_range_of_floating_point_numbers(sd):
    """No number that could be taken for a light tail, and no NaN, however few weights are left."""
    rng = np.random.default_rng(seeded(7))
    for n in (30, 100, 1000):
        for log_weights in sd * rng.normal(size=(100, n)):
            assert pareto_khat(log_weights) > 1


def test_highest_power():
    """Weights exp(T a) of a standard normal a are worth exp(-T^2) of their number."""
    a = normal_quantiles(100_000)
    found = highest_power(lambda t: t * a, 0.5 * len(a), 0.0)
    assert found == pytest.approx(np.sqrt(np.log(2)), rel=1e-3)
    assert highest_power(lambda t: t * a, 0.3 * len(a), 0.0) == 1.0
    assert highest_power(lambda t: 5 * a, 0.5 * len(a), 0.2) == pytest.approx(0.2)
