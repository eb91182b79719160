"""The pool: mixture densities of its proposals, bridged targets, temperatures."""

import jax.random as jr
import numpy as np
import pytest
from scipy.stats import norm

from msign.bijections import InformedConfig
from msign.bijections.subspace import TriangularMap
from msign.diagnostics import lost_evidence, weight_report
from msign.inference.models import FlowCore, excess_all, informed_flow
from msign.inference.pool import PICKED, Pool

SMALL = InformedConfig(blocks=2, hidden=4, knots=4)


def gaussian(mean: float, std: float) -> FlowCore:
    """A core whose distribution is normal."""
    flow = informed_flow(jr.key(0), (1,), SMALL)
    affine = TriangularMap.from_matrix(np.array([[std]]), np.array([mean]))
    return FlowCore(type(flow)([*flow.bijections[:-1], affine]), (1,))


PROPOSALS = [gaussian(0.0, 1.0), gaussian(1.0, 0.5)]
POINTS = np.linspace(-2, 3, 20)[:, None]
OTHERS = np.linspace(-1, 2, 20)[:, None]


def log_likelihood(s):
    return -0.5 * ((s[:, 0] - 2) / 0.1) ** 2


@pytest.fixture
def pool():
    first = Pool.empty(60, 1, 3).add(POINTS, log_likelihood(POINTS), PROPOSALS[:1])
    return first.add(OTHERS, log_likelihood(OTHERS), PROPOSALS)


def test_mixture_is_that_of_all_proposals_by_their_counts(pool):
    s = np.concatenate([POINTS, OTHERS])[:, 0]
    density = 0.5 * norm.pdf(s) + 0.5 * norm.pdf(s, 1.0, 0.5)
    mixture = pool.mixture()
    np.testing.assert_allclose(mixture[:40], np.log(density) - norm.logpdf(s), atol=1e-10)
    assert np.all(mixture[40:] == np.inf)
    assert pool.size == 40


def test_bridge_runs_from_the_first_proposal_to_the_posterior(pool):
    np.testing.assert_allclose(pool.bridged(0.0)[:40], pool.excess[0, :40])
    np.testing.assert_allclose(pool.bridged(1.0)[:40], pool.log_likelihood[:40])
    middle = 0.5 * (pool.bridged(0.0) + pool.bridged(1.0))
    np.testing.assert_allclose(pool.bridged(0.5), middle)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_target_is_the_bridge_with_unit_integral_on_the_pool(pool, temperature):
    target = pool.target(temperature)[:40]
    assert np.mean(np.exp(target - pool.mixture()[:40])) == pytest.approx(1.0)
    assert np.ptp(target - pool.bridged(temperature)[:40]) < 1e-9


def test_highest_temperature_has_the_effective_size_asked_for(pool):
    def effective(t):
        a = pool.bridged(t)[:40] - pool.mixture()[:40]
        w = np.exp(a - a.max())
        return w.sum() ** 2 / (w**2).sum()

    t = pool.highest_temperature(10.0, 0.0)
    assert 0 < t < 1
    assert effective(t) == pytest.approx(10.0, rel=1e-3)
    assert pool.highest_temperature(1.0, 0.0) == 1.0
    assert pool.highest_temperature(39.9, t) == t  # never falls


def test_fields_where_the_latest_proposal_is_far_off_are_drawn_more_often(pool):
    """The target is at 2, the latest proposal at 1: it has too little at 2 and too much at 1."""
    chances = pool.chances(pool.target(1.0))
    assert chances.sum() == pytest.approx(1.0)
    assert np.all(chances[40:] == 0)
    assert np.all(chances[:40] >= (1 - PICKED) / 40 - 1e-12)
    s = np.concatenate([POINTS, OTHERS])[:, 0]
    far = s < -1  # where neither has any mass
    assert chances[:40][np.abs(s - 2) < 0.1].min() > 1.1 * chances[:40][far].max()
    exact = pool.chances(pool.excess[1])  # a target that the latest proposal is
    np.testing.assert_allclose(exact, pool.uniform(), atol=1e-12)


def test_evidence_of_the_pool_knows_a_mode_that_the_last_proposal_has_lost():
    """Two equal modes at -1 and 1; the last proposal is the right one alone, exactly."""

    def two_modes(s):
        return np.log(norm.pdf(s[:, 0], -1, 0.2) + norm.pdf(s[:, 0], 1, 0.2)) - norm.logpdf(s[:, 0])

    rng = np.random.default_rng(0)
    right = gaussian(1.0, 0.2)
    wide, narrow = rng.normal(size=(3000, 1)), 1 + 0.2 * rng.normal(size=(3000, 1))
    both = Pool.empty(6000, 1, 2).add(wide, two_modes(wide), PROPOSALS[:1])
    both = both.add(narrow, two_modes(narrow), [PROPOSALS[0], right])
    value, stderr = both.log_evidence()
    assert abs(value - np.log(2)) < 4 * stderr < 0.3
    report = weight_report(two_modes(narrow) - excess_all(right, narrow))
    assert report.ess_fraction > 0.999
    assert lost_evidence(report, value, stderr) == pytest.approx(np.log(2), abs=4 * stderr)


def test_flattened_weights_are_of_a_power_of_the_posterior_worth_what_is_asked():
    s = norm.ppf((np.arange(40) + 0.5) / 40)[:, None]  # a sample of the proposal, near the target
    pool = Pool.empty(60, 1, 1).add(s, 0.1 * s[:, 0], PROPOSALS[:1])
    weights = pool.flattened(20.0)
    assert np.all(weights[40:] == -np.inf)
    w = np.exp(weights[:40])
    assert w.sum() ** 2 / (w**2).sum() == pytest.approx(20.0, rel=1e-4)
    posterior, proposal = 0.1 * s[:, 0] + norm.logpdf(s[:, 0]), norm.logpdf(s[:, 0])
    line = np.polyfit(posterior, weights[:40] + proposal, 1)
    assert 0 < line[0] < 1
    np.testing.assert_allclose(weights[:40] + proposal, np.polyval(line, posterior), atol=1e-8)
