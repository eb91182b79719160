"""fit with the paper's Glow flows: objectives, joint training, ablations."""

import functools

import jax
import numpy as np
import pytest

from conformance import SMALL_GLOW, SMALL_INFORMED
from helpers import identical, ring, seeded
from inference.small import ROW
from msign import Combined, FitConfig, Fresh, InverseProblem, Pool, fit
from msign.inference.methods.objectives import (
    CentredJeffreys,
    PathwiseJeffreys,
    ScoreJeffreys,
    SteinObjective,
)

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
    report, other = posterior.certificate(), trained("all").certificate()
    error = np.hypot(report.log_evidence_stderr, other.log_evidence_stderr)
    assert abs(report.log_evidence - other.log_evidence) < 5 * error
    assert error < 0.25  # or the line above says nothing


def test_nearest_neighbours_begin_worse_than_exact_conditioning():
    """What the ablation is for: refined fields that ignore the prior have to be repaired."""
    started = [trained(name).stages[-1]["jeffreys_start"] for name in ("nearest", "all")]
    assert started[0] > 2 * started[1]
