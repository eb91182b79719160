"""The paper's algorithm and its ablations as options of fit."""

import dataclasses
import json

import numpy as np
import pytest

from conformance import SMALL_GLOW
from helpers import refused, seeded
from inference.small import ring_problem, stage_of
from msign import FitConfig, Fresh, InverseProblem, LaplacePrior, Simulator, fit
from msign.inference.files import prior_network
from msign.inference.flows import SplitGlow
from msign.inference.methods.objectives import ScoreJeffreys
from msign.inference.presets import ablations
from msign.problems import synthetic

pytestmark = pytest.mark.usefixtures("quick_compilation")
CHAINED = Fresh(steps=5, batch=20, objective=ScoreJeffreys(), tempered=False, chain=0.5)


@pytest.mark.parametrize(
    ("name", "blocks", "hidden"), [("synthetic", 16, 32), ("elliptic", 32, 64)]
)
def test_the_papers_numbers_are_written_and_read_again(name, blocks, hidden):
    for config in ablations(FitConfig.paper(name)).values():
        assert FitConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
        assert (config.flow.config.blocks, config.flow.config.hidden) == (blocks, hidden)
        assert config.method.batch == 100 and not config.method.tempered


def test_bad_input():
    with refused("problem must be one of 'synthetic', 'elliptic', got 'linear'"):
        FitConfig.paper("linear")
    with refused("base must have Glow flows"):
        ablations(FitConfig())
    with refused("chain must be in [0, 1), got 1.0"):
        Fresh(chain=1.0)
    hidden = InverseProblem(LaplacePrior((4,), 0.5, 1.0), lambda x: np.asarray(x)[:, :2], [0, 0], 1)
    with refused("the forward map has no derivative"):
        FitConfig(flow=SMALL_GLOW, method=CHAINED).method_for(hidden, 4)
    with refused("lattice of two axes"):
        fit(ring_problem(), 5000, config=FitConfig(flow=SplitGlow()))


def test_each_variant_is_the_base_without_one_part():
    base = FitConfig.paper("synthetic")
    found = ablations(base)
    assert found["msign"] == base
    assert dataclasses.replace(found["msign-snn"], conditioning="exact") == base
    for name in ("kl", "as"):
        several, single = found[f"msign-{name}"], found[f"msign-{name}-s"]
        assert dataclasses.replace(single, single_stage=False) == several
        assert not several.method.objective.uses_proposal
    assert found["glow"].kind.needs_one_stage


def test_chains_stand_for_the_first_posterior_and_are_paid_for():
    problem, simulator = ring_problem(), Simulator(ring_problem(), 8000)
    config = FitConfig(flow=SMALL_GLOW, method=CHAINED)
    start = prior_network(problem, config).variables(1)
    stage = stage_of(start, simulator, limit=8000, round_size=100)
    state = CHAINED.init(stage)
    assert len(state.chain) and not state.sampled and state.target.temperature == 1
    state = CHAINED._with_chains(stage, state, stage.key)
    assert state.sampled and 0.5 * 3950 < simulator.nfs <= 3950
    # Fields of q_1 fit the data better than those of the prior do.
    of_prior = simulator.evaluate(np.random.default_rng(seeded(0)).normal(size=(500, 4)), 1)
    of_chain = simulator.evaluate(state.chain[:: len(state.chain) // 500], 1)
    assert np.median(of_chain.log_likelihood) > np.median(of_prior.log_likelihood) + 1
    assert not len(CHAINED.init(stage._replace(scale=2)).chain)


@pytest.mark.parametrize("variant", ["glow", "msign"])
def test_a_small_run_stays_within_its_budget_and_is_read_again(variant, tmp_path):
    base = FitConfig(flow=SMALL_GLOW, method=CHAINED, round_size=200, rounds=2, certificate=200)
    config = ablations(base)[variant]
    posterior = fit(synthetic(4, inflate=0), 5000, out=tmp_path, config=config, report=False)
    assert posterior.nfs <= 5000
    assert posterior.scales == ([2] if variant == "glow" else [1, 2])
    x, log_p = posterior.sample_and_log_prob(5)
    np.testing.assert_allclose(posterior.log_prob(x), log_p, rtol=0, atol=1e-6)
    again = type(posterior).load(tmp_path)
    np.testing.assert_array_equal(again.sample(5), posterior.sample(5))
