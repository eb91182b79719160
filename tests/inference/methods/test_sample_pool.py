"""The pool of simulated fields: mixture densities of its proposals, targets, evidence, chances."""

import numpy as np
import pytest
from flowjax.bijections import Chain
from scipy.stats import norm

from helpers import seeded
from msign.bijections import TriangularMap
from msign.inference.methods.sample_pool import SamplePool
from msign.inference.target import Tempered
from msign.variables import Variables, log_ratio
from msign.weights import lost_evidence, weight_report


def gaussian(mean: float, std: float) -> Variables:
    """One normal variable."""
    flow = Chain([TriangularMap.from_matrix(np.array([[std]]), np.array([mean]))])
    return Variables(flow, None, 1)


PROPOSALS = [gaussian(0.0, 1.0), gaussian(1.0, 0.5)]
POINTS = np.linspace(-2, 3, 20)[:, None]
OTHERS = np.linspace(-1, 2, 20)[:, None]
S = np.concatenate([POINTS, OTHERS])[:, 0]


def log_likelihood(s):
    return -0.5 * ((s[:, 0] - 2) / 0.1) ** 2


def added(pool, s, log_likelihood, proposals):
    """The pool with fields of the last proposal."""
    return pool.add(s, log_likelihood(s), log_ratio(proposals[-1], s), proposals)


@pytest.fixture(scope="module")
def pool():
    first = added(SamplePool.empty(1), POINTS, log_likelihood, PROPOSALS[:1])
    return added(first, OTHERS, log_likelihood, PROPOSALS)


def test_mixture_is_that_of_all_proposals_by_their_counts(pool):
    density = 0.5 * norm.pdf(S) + 0.5 * norm.pdf(S, 1.0, 0.5)
    mixture = pool.mixture()
    np.testing.assert_allclose(mixture, np.log(density) - norm.logpdf(S), atol=1e-10)
    assert pool.size == 40


def test_adding_leaves_the_old_pool_as_it_was(pool):
    before = pool.s.copy(), pool.counts.copy()
    larger = added(pool, POINTS, log_likelihood, [*PROPOSALS, PROPOSALS[0]])
    assert larger.size == 60 and pool.size == 40
    np.testing.assert_array_equal(pool.s, before[0])
    np.testing.assert_array_equal(pool.counts, before[1])


def test_targets_run_from_the_first_proposal_to_the_posterior(pool):
    """As weights of a sample of the mixture, up to a constant."""
    ends = (np.zeros(40), log_likelihood(S[:, None]))  # the first proposal is the prior
    for t, end in zip((0.0, 1.0), ends, strict=True):
        np.testing.assert_allclose(pool.weights(Tempered(t)), end - pool.mixture())


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_the_target_has_unit_integral_on_the_pool(pool, temperature):
    target = pool.normalised(Tempered(temperature))
    assert np.mean(np.exp(target - pool.mixture())) == pytest.approx(1.0)
    constant = target - pool.mixture() - pool.weights(Tempered(temperature))
    assert np.ptp(constant) < 1e-9


def test_the_highest_temperature_has_the_effective_size_asked_for(pool):
    def effective(t):
        a = pool.weights(t)
        w = np.exp(a - a.max())
        return w.sum() ** 2 / (w**2).sum()

    target = pool.raised(Tempered(0.0), 10.0)
    assert 0 < target.temperature < 1
    assert effective(target) == pytest.approx(10.0, rel=1e-3)
    assert pool.raised(Tempered(0.0), 1.0).temperature == 1.0
    assert pool.raised(target, 39.9).temperature == target.temperature  # never falls


def test_fields_where_the_latest_proposal_is_far_off_are_drawn_more_often(pool):
    """The target is at 2, the latest proposal at 1: it has too little at 2 and too much at 1."""
    picked = 0.1
    chances = pool.chances(pool.normalised(Tempered(1.0)), picked)
    assert chances.sum() == pytest.approx(1.0)
    assert chances.shape == (40,)
    assert np.all(chances >= (1 - picked) / 40 - 1e-12)
    far = S < -1  # where neither has any mass
    assert chances[np.abs(S - 2) < 0.1].min() > 1.1 * chances[far].max()
    exact = pool.chances(pool.log_ratio[1], picked)  # a target that the latest proposal is
    np.testing.assert_allclose(exact, 1 / 40, atol=1e-12)


def test_evidence_of_the_pool_knows_a_mode_that_the_last_proposal_has_lost():
    """Two equal modes at -1 and 1; the last proposal is the right one alone, exactly."""

    def two_modes(s):
        return np.log(norm.pdf(s[:, 0], -1, 0.2) + norm.pdf(s[:, 0], 1, 0.2)) - norm.logpdf(s[:, 0])

    rng = np.random.default_rng(seeded(0))
    right = gaussian(1.0, 0.2)
    wide, narrow = rng.normal(size=(3000, 1)), 1 + 0.2 * rng.normal(size=(3000, 1))
    both = added(SamplePool.empty(1), wide, two_modes, PROPOSALS[:1])
    both = added(both, narrow, two_modes, [PROPOSALS[0], right])
    value, stderr = both.log_evidence()
    assert abs(value - np.log(2)) < 5 * stderr < 0.4
    report = weight_report(two_modes(narrow) - log_ratio(right, narrow))
    assert report.ess_fraction > 0.99
    assert lost_evidence(report, value, stderr) == pytest.approx(np.log(2), abs=5 * stderr)
