"""Learning from fresh fields: what each step costs, and how steps shrink."""

import jax.random as jr
import numpy as np
import pytest

from conformance import SMALL_GLOW
from helpers import identical, seeded
from inference.small import ring_problem, stage_of, start_at
from msign import FitConfig, Simulator
from msign.inference import Fresh
from msign.inference.files import prior_network
from msign.inference.methods import fresh
from msign.inference.methods.objectives import CentredJeffreys, PathwiseJeffreys, ScoreJeffreys
from msign.variables import log_ratio_and_score

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def stage():
    problem = ring_problem()
    network = prior_network(problem, FitConfig(flow=SMALL_GLOW))
    network = start_at(network, 1, SMALL_GLOW, problem)
    return stage_of(network.variables(1), Simulator(problem), limit=0)


@pytest.mark.parametrize(
    ("objective", "cost"), [(CentredJeffreys(), 1), (PathwiseJeffreys(), 2), (ScoreJeffreys(), 2)]
)
def test_steps_are_as_many_as_the_share_of_the_budget_allows(stage, monkeypatch, objective, cost):
    """Each costs its fields, its derivatives or its proposals; a round's fields are kept back."""
    method, seen = Fresh(steps=12, batch=20, objective=objective), []
    take_step = fresh._take_step

    def watched(*arguments):
        seen.append((stage.simulator.nfs, float(arguments[4])))
        return take_step(*arguments)

    monkeypatch.setattr(fresh, "_take_step", watched)
    begin, room = stage.simulator.nfs, 7 * 20 * cost + 19
    given = stage._replace(limit=begin + stage.round_size + room)
    state, _, _ = method.update(given, method.init(given), stage.start, 0.5, jr.key(seeded(1)))
    used, rate = np.array(seen).T
    np.testing.assert_array_equal(used, begin + 20 * cost * np.arange(1, 8))
    # Learning rates go up to that of the stage, times the factor of the round, and down.
    assert rate.max() == pytest.approx(0.5 * stage.learning_rate, rel=1e-6)
    assert rate[-1] < 0.2 * rate.max()
    assert 0 < state.target.temperature <= 1


def test_without_means_nothing_is_done(stage):
    method = Fresh(steps=12, batch=20)
    given = stage._replace(limit=stage.simulator.nfs + stage.round_size)
    used = stage.simulator.nfs
    _, model, loss = method.update(given, method.init(given), stage.start, 1.0, jr.key(seeded(1)))
    assert stage.simulator.nfs == used and np.isnan(loss)
    assert identical(model, stage.start)


def test_where_the_posterior_is_the_target_its_start_is_not_evaluated(stage, monkeypatch):
    """A third of a step's time would go into densities that a temperature of 1 leaves out."""
    asked = []
    monkeypatch.setattr(
        fresh, "log_ratio_and_score", lambda *given: asked.append(1) or log_ratio_and_score(*given)
    )
    for tempered, times in ((True, 1), (False, 0)):
        method = Fresh(steps=1, batch=20, tempered=tempered)
        method.update(stage_with_room(stage), method.init(stage), stage.start, 1.0, jr.key(1))
        assert len(asked) == times
        asked.clear()


def stage_with_room(stage):
    return stage._replace(limit=stage.simulator.nfs + stage.round_size + 1000)
