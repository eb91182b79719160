"""fit with the paper's Glow flows: objectives, joint training, ablations."""

import functools

import jax
import jax.random as jr
import numpy as np
import pytest

from conformance import SMALL_GLOW, SMALL_INFORMED
from helpers import identical, ring, seeded
from inference.small import ROW
from msign import Combined, FitConfig, Fresh, InverseProblem, Pool, Simulator, fit
from msign.inference.files import prior_network
from msign.inference.methods.objectives import (
    CentredJeffreys,
    PathwiseJeffreys,
    ScoreJeffreys,
    SteinObjective,
)
from msign.weights import weight_report

pytestmark = pytest.mark.usefixtures("quick_compilation")

ONE = InverseProblem(ROW, lambda x: 0.3 * ring(x), [0.8, 0.1], 0.6, scales=1)
TWO = InverseProblem(ROW, lambda x: 0.3 * ring(x), [0.8, 0.1], 0.6, scales=2)


@pytest.mark.parametrize(
    "objective",
    [CentredJeffreys(), PathwiseJeffreys(), ScoreJeffreys(), SteinObjective()],
    ids=lambda o: type(o).__name__,
)
def test_every_objective_improves_a_flow(objective):
    """By fresh fields: those of the certificate."""
    config = FitConfig(
        flow=SMALL_GLOW,
        method=Fresh(steps=60, batch=100, objective=objective),
        rounds=3,
        round_size=500,
        certificate=4000,
    )
    posterior = fit(ONE, 45_000, seed=seeded(1), config=config)
    (stage,) = posterior.stages
    report = posterior.certificate()
    assert report.jeffreys + 3 * report.jeffreys_stderr < stage["jeffreys_start"]


OPTIONS = {
    "all": {},
    "last": {"train": "last"},
    "nearest": {"conditioning": "nearest"},
    "single stage": {"single_stage": True},
    "combined": {"flow": Combined((SMALL_INFORMED, SMALL_GLOW))},
}


@functools.cache
def trained(name: str):
    options = {"flow": SMALL_GLOW, **OPTIONS[name]}
    method = Pool(steps=40, batch=256)
    config = FitConfig(method=method, rounds=3, round_size=500, tolerance=1e-9, **options)
    return fit(TWO, 6000, seed=seeded(2), config=config)


def test_joint_training_changes_the_coarser_flows():
    posterior = trained("all")
    assert not identical(posterior.networks[1].flows[0], posterior.network.flows[0])
    refined = posterior.sample(50, scale=1)
    assert np.abs(refined - posterior.stage(1).sample(50)).max() > 1e-4


def test_training_the_last_flow_leaves_the_others_alone():
    posterior = trained("last")
    assert identical(posterior.networks[1].flows[0], posterior.network.flows[0])
    np.testing.assert_array_equal(posterior.sample(50, scale=1), posterior.stage(1).sample(50))
    last = jax.tree.leaves(posterior.network.flows[1])
    start = trained("all").network.flows[1]
    assert not identical(posterior.network.flows[1], start) and len(last) > 0


@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_learned_is_certified(name):
    """Densities are exact whatever was trained: the evidence is the same for all of them."""
    posterior = trained(name)
    assert posterior.scales == ([2] if name == "single stage" else [1, 2])
    assert posterior.network.conditioning == OPTIONS[name].get("conditioning", "exact")
    x, log_p = posterior.sample_and_log_prob(10)
    np.testing.assert_allclose(posterior.log_prob(x), log_p, rtol=0, atol=1e-8)
    report, (exact, error) = posterior.certificate(), evidence_by_brute_force()
    error = np.hypot(report.log_evidence_stderr, error)
    assert abs(report.log_evidence - exact) < 5 * error


@functools.cache
def evidence_by_brute_force(n: int = 100_000) -> tuple[float, float]:
    """Log evidence by draws of the prior, and its standard error."""
    u = np.random.default_rng(seeded(3)).normal(size=(n, TWO.dim))
    report = weight_report(Simulator(TWO).evaluate(u, 2).log_likelihood)
    return report.log_evidence, report.log_evidence_stderr


def test_nearest_neighbours_begin_worse_than_exact_conditioning():
    """What the ablation is for: refined fields that ignore the prior have to be repaired."""
    for conditioning in ("exact", "nearest"):
        network = prior_network(TWO, FitConfig(flow=SMALL_GLOW, conditioning=conditioning))
        excess = np.asarray(network.log_ratio(network.sample(jr.key(seeded(4)), 500)))
        if conditioning == "exact":
            np.testing.assert_allclose(excess, 0, rtol=0, atol=1e-9)
        else:  # KL(p||prior), in nats
            assert excess.mean() > 0.1 + 5 * excess.std() / np.sqrt(len(excess))
