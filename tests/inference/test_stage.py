"""The rules of a stage: how it learns, which model it keeps, when it ends."""

import dataclasses

import equinox as eqx
import jax.random as jr
import numpy as np
import pytest

from helpers import moved
from msign import FitConfig, InformedConfig, LaplacePrior
from msign.inference.models import FlowCore, StageModel, informed_flow
from msign.inference.objectives import CentredJeffreys, PathwiseJeffreys, ScoreJeffreys
from msign.inference.on_pool import settling
from msign.inference.simulate import Simulated
from msign.inference.stage import (
    _back_to_best,
    _finished,
    _is_spoiled,
    _remember_best,
    choose_method,
    initial_state,
)
from msign.inference.state import Plan, StageState
from msign.problems import synthetic
from msign.problems.inverse import InverseProblem
from msign.weights import weight_report

TOLERANCE = 1e-3
PROBLEM = synthetic(8)
BLACK_BOX = InverseProblem(
    LaplacePrior((4,), alpha=0.5, beta=1.0),
    lambda x: np.asarray(x)[:, :2],
    [0.0, 0.0],
    1.0,
)


def fresh(scale: int = 3, limit: int = 10_000):
    core = FlowCore(informed_flow(jr.key(0), (1,), InformedConfig(blocks=2, knots=4)), (1,))
    dim = PROBLEM.priors[scale - 1].lattice.dim
    plan = Plan(StageModel(core, np.eye(dim)[:, :1], dim), scale, 0, limit, 100, jr.key(0))
    return initial_state(PROBLEM, FitConfig(), plan, "pool"), plan


def judged(state: StageState, jeffreys: float, khat: float, finest=True, bridging=False, lost=0.0):
    """The state after a round whose held-out estimates were these."""
    n = 100
    drawn = Simulated(np.full((n, 1), jeffreys), np.zeros(n), np.zeros(n), np.zeros((n, 0)))
    report = dataclasses.replace(
        weight_report(np.zeros(n)), jeffreys=jeffreys, khat=khat, lost=lost
    )
    return _remember_best(state, drawn, report, TOLERANCE, finest, bridging)


@pytest.mark.parametrize(
    ("options", "problem", "scale", "size", "method"),
    [
        ({}, PROBLEM, 3, 1, "pool"),
        ({}, PROBLEM, 3, 2, "pool"),
        ({}, PROBLEM, 3, 3, "emulator"),
        ({"flow": "glow"}, PROBLEM, 2, 16, "pool"),
        ({"flow": "glow"}, PROBLEM, 3, 64, PathwiseJeffreys),
        ({"flow": "glow"}, BLACK_BOX, 3, 4, CentredJeffreys),
        ({"flow": "glow", "objective": "score"}, BLACK_BOX, 3, 4, ScoreJeffreys),
        ({"objective": "pool"}, PROBLEM, 3, 9, "pool"),
    ],
)
def test_how_a_stage_learns(options, problem, scale, size, method):
    chosen = choose_method(FitConfig(**options), problem, scale, size)
    assert chosen == method if isinstance(method, str) else isinstance(chosen, method)


@pytest.mark.parametrize("objective", ["pathwise", "stein"])
def test_objectives_that_need_a_derivative_say_so(objective):
    with pytest.raises(ValueError, match=f"objective must not be '{objective}'"):
        choose_method(FitConfig(objective=objective, flow="glow"), BLACK_BOX, 1, 4)


def test_the_model_of_the_lowest_divergence_is_kept():
    state, _ = fresh()
    for jeffreys in (0.5, 0.2, 0.3):
        state = judged(state, jeffreys, 0.1)
    assert state.best_jeffreys == 0.2
    assert state.shown[0, 0] == 0.2
    assert state.stale == 1


def test_below_the_tolerance_the_finest_scale_keeps_the_lightest_tail():
    state, _ = fresh()
    for jeffreys, khat in ((5e-4, 0.8), (9e-4, 0.3), (1e-4, 0.6)):
        state = judged(state, jeffreys, khat)
    assert state.khat == 0.3
    coarse, _ = fresh()
    for jeffreys, khat in ((5e-4, 0.8), (9e-4, 0.3), (1e-4, 0.6)):
        coarse = judged(coarse, jeffreys, khat, finest=False)
    assert coarse.best_jeffreys == 1e-4


def test_lost_evidence_counts_as_divergence():
    state = judged(judged(fresh()[0], 0.2, 0.1), 0.01, 0.1, lost=0.7)
    assert state.best_jeffreys == 0.2


def test_a_bridge_is_never_stale():
    state, _ = fresh()
    for _ in range(4):
        state = judged(state, 3.0, 0.9, bridging=True)
    assert state.stale == 0
    for expected in (1, 2):
        state = judged(state, 3.0, 0.9)
        assert state.stale == expected


def test_small_gains_do_not_keep_a_stage_going():
    state = judged(judged(fresh()[0], 0.200, 0.9), 0.195, 0.9)
    assert state.best_jeffreys == 0.195
    assert state.stale == 1


@pytest.mark.parametrize(
    ("change", "ends"),
    [
        ({"best_jeffreys": 5e-4, "khat": 0.2}, True),
        ({"best_jeffreys": 5e-4, "khat": 0.6}, False),
        ({"best_jeffreys": 5e-2, "khat": 0.2}, False),
        ({"stale": 4}, True),
        ({"round": 16}, True),
    ],
)
def test_when_the_finest_stage_ends(change, ends):
    state, plan = fresh()
    for name, value in change.items():
        state = eqx.tree_at(lambda t, name=name: getattr(t, name), state, value)
    assert _finished(PROBLEM, state, FitConfig(), plan) == ends


def test_a_stage_ends_before_its_budget_does():
    state, plan = fresh(limit=PROBLEM.nfs + 99)  # a round is 100 fields
    assert _finished(PROBLEM, state, FitConfig(), plan)


def test_coarse_stages_are_stepping_stones():
    state, plan = fresh(scale=2)
    state = eqx.tree_at(lambda t: (t.best_jeffreys, t.khat), state, (5e-4, 0.9))
    assert _finished(PROBLEM, state, FitConfig(), plan)


@pytest.mark.parametrize(
    ("jeffreys", "lost", "spoiled"),
    [
        (0.6, 0.0, False),
        (1.5, 0.0, False),
        (1.7, 0.0, True),
        (0.6, 1.2, True),
        (np.inf, 0.0, False),
    ],
)
def test_a_model_gone_wrong_is_given_up(jeffreys, lost, spoiled):
    state = judged(fresh()[0], 0.2, 0.1)
    report = dataclasses.replace(weight_report(np.zeros(100)), jeffreys=jeffreys, lost=lost)
    assert _is_spoiled(state, report) == spoiled


def test_a_stage_goes_back_to_its_best_model_with_smaller_steps():
    state, _ = fresh()
    wrong = eqx.tree_at(lambda t: t.core, state, moved(state.core, 5.0))
    back = _back_to_best(wrong)
    assert eqx.tree_equal(back.core, state.best)
    assert settling(back) < 0.6 * settling(state)


def test_nothing_is_given_up_before_anything_was_judged():
    report = dataclasses.replace(weight_report(np.zeros(100)), jeffreys=1e9)
    assert not _is_spoiled(fresh()[0], report)
