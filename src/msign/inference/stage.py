"""One stage of Algorithm 1: from a starting model of scale l to a trained one.

A stage is a sequence of rounds. Each round draws fields from the model as it is, simulates them,
which at once is a held-out estimate of the model's quality, and then updates the model, either on
the pool of all fields so far or with fresh fields at every gradient step. What the stage returns
is the best model by these held-out estimates, never one worse than the start.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax.random as jr
import numpy as np

from msign.inference.config import FitConfig
from msign.inference.models import split_trainable
from msign.inference.objectives import (
    CentredJeffreys,
    Objective,
    PathwiseJeffreys,
    ScoreJeffreys,
    SteinObjective,
    forward_kl,
    reverse_kl,
)
from msign.inference.on_emulator import learn_from_emulator
from msign.inference.on_fresh import learn_from_fresh
from msign.inference.on_pool import learn_from_pool, with_fields
from msign.inference.optimise import optimiser
from msign.inference.pool import Pool
from msign.inference.simulate import Simulated, simulate
from msign.inference.state import Plan, StageState
from msign.problems.inverse import InverseProblem
from msign.weights import WeightReport, lost_evidence, weight_report

MAX_KHAT = 0.5  # what the finest scale should reach before it stops early
SPOILED = 3.0  # times the lowest divergence so far, and a nat: a model that bad is given up
SETBACK = 3  # rounds' worth of smaller steps after that
SHOWN = 32  # trained variables that are kept of fields drawn, to look for modes
MIN_SCALE_OF_STEPS = 3  # from this scale on Glow trains on fresh samples by default
MAX_POOLED = 2  # informed flows of more variables train on an emulator by default,
MAX_EMULATED = 512  # but not for more observations than these

# How a stage learns: on the pool, on an emulator fitted to it, or on fresh fields at every step.
Method = Literal["pool", "emulator"] | Objective


def choose_method(config: FitConfig, problem: InverseProblem, scale: int, size: int) -> Method:
    """How a stage with so many trained variables learns."""
    name = config.objective
    gradient = problem.differentiable
    if name == "auto" and config.flow == "informed":
        many = size > MAX_POOLED and len(problem.data) <= MAX_EMULATED
        name = "emulator" if many else "pool"
    elif name == "auto":
        name = "pool" if scale < MIN_SCALE_OF_STEPS else "pathwise" if gradient else "centred"
    if name in ("pathwise", "stein") and not gradient:
        raise ValueError(f"objective must not be {name!r}: the forward map has no derivative")
    made: dict[str, Callable[[], Method]] = {
        "pool": lambda: "pool",
        "emulator": lambda: "emulator",
        "pathwise": PathwiseJeffreys,
        "centred": CentredJeffreys,
        "score": ScoreJeffreys,
        "reverse_kl": lambda: reverse_kl(gradient),
        "forward_kl": forward_kl,
        "stein": SteinObjective,
    }
    return made[name]()


def initial_state(
    problem: InverseProblem, config: FitConfig, plan: Plan, method: Method
) -> StageState:
    """A stage before its first round."""
    core, pooled = plan.model.core, isinstance(method, str)
    capacity = plan.round_size * config.rounds if pooled else 0
    observations = len(problem.data) if method == "emulator" else 0
    pool = Pool.empty(capacity, core.size, config.rounds, observations)
    trainable, _ = split_trainable(core, config.train == "last")
    state = () if pooled else optimiser(config, core).init(trainable)
    shown = np.zeros((plan.round_size, min(core.size, SHOWN)))
    weights = np.zeros(plan.round_size)
    return StageState(
        core, core, [core], pool, state, shown, weights, 0.0, 0, np.inf, 0, 0, np.inf, 0.0
    )


def run_stage(
    problem: InverseProblem,
    state: StageState,
    config: FitConfig,
    plan: Plan,
    method: Method,
    after_round: Callable[[StageState, dict[str, Any]], None],
) -> StageState:
    """Rounds until nothing is left to gain, or the stage's share of the budget is used up."""
    while not _finished(problem, state, config, plan):
        state, record = _round(problem, state, config, plan, method)
        after_round(state, record)
    return state


def _finished(problem: InverseProblem, state: StageState, config: FitConfig, plan: Plan) -> bool:
    return (
        _good_enough(problem, state, config, plan)
        or state.stale > config.patience
        or state.round >= config.rounds
        or problem.nfs + plan.round_size > plan.limit
    )


def _good_enough(problem: InverseProblem, state: StageState, config: FitConfig, plan: Plan) -> bool:
    """Nothing left to gain. Coarse stages are stepping stones; the last needs light tails too."""
    if plan.scale < problem.scales:
        return state.best_jeffreys < config.tolerance * plan.model.core.size
    return state.best_jeffreys < config.tolerance and state.khat < MAX_KHAT


def _round(
    problem: InverseProblem,
    state: StageState,
    config: FitConfig,
    plan: Plan,
    method: Method,
) -> tuple[StageState, dict[str, Any]]:
    key = jr.fold_in(plan.key, state.round)
    model = plan.model.with_core(state.core)
    drawn = simulate(problem, model, plan.scale, jr.fold_in(key, 0), plan.round_size)
    report = weight_report(drawn.log_weights)
    bridging = state.temperature < 1
    if isinstance(method, str):
        state = with_fields(state, drawn, config, plan)
        lost = lost_evidence(report, *state.pool.log_evidence())
        state = eqx.tree_at(lambda t: t.lost, state, max(lost, state.lost))
        report = dataclasses.replace(report, lost=lost)
    finest = plan.scale == problem.scales
    state = _remember_best(state, drawn, report, config.tolerance, finest, bridging)
    spoiled = _is_spoiled(state, report)
    if spoiled:
        state = _back_to_best(state)
    last = (
        _good_enough(problem, state, config, plan)
        or state.round + 1 >= config.rounds
        or problem.nfs + plan.round_size > plan.limit
    )
    loss = np.nan
    if not last:
        if method == "pool":
            state, loss = learn_from_pool(state, config, key)
        elif method == "emulator":
            state, loss = learn_from_emulator(state, config, plan, key)
        else:
            state, loss = learn_from_fresh(problem, state, config, plan, method, key)
    record = {
        "scale": plan.scale,
        "round": state.round,
        "nfs": problem.nfs,
        "jeffreys": report.judged,
        "jeffreys_stderr": report.jeffreys_stderr,
        "ess_fraction": report.ess_fraction,
        "khat": report.khat,
        "log_evidence": report.log_evidence,
        "lost_evidence": report.lost,
        "temperature": state.temperature,
        "given_up": spoiled,
        "loss": float(loss),
    }
    return eqx.tree_at(lambda t: t.round, state, state.round + 1), record


def _remember_best(
    state: StageState,
    drawn: Simulated,
    report: WeightReport,
    tolerance: float,
    finest: bool,
    bridging: bool,
) -> StageState:
    """The state with its best model brought up to date.

    Lower divergence is better; evidence that the model has lost adds to it. At the finest scale,
    among divergences below the tolerance, lighter tails of the weights are.
    """
    floor = tolerance if finest else -np.inf
    old, new = (max(j, floor) for j in (state.best_jeffreys, report.judged))
    lighter = new == old and report.khat < state.khat
    better = new < old or lighter
    much = not np.isfinite(old) or old - new > 0.1 * old or (lighter and report.khat < MAX_KHAT)
    progress = (better and much) or bridging
    state = eqx.tree_at(lambda t: t.stale, state, 0 if progress else state.stale + 1)
    if not better:
        return state
    shown = drawn.s[:, :SHOWN].astype(np.float64)
    best = (state.core, report.judged, report.khat, shown, drawn.log_weights)
    where = lambda t: (t.best, t.best_jeffreys, t.khat, t.shown, t.log_weights)  # noqa: E731
    return eqx.tree_at(where, state, best)


def _is_spoiled(state: StageState, report: WeightReport) -> bool:
    """Whether the last update went wrong, as gradient steps can next to a sharp fold of the model.

    Bridges make the divergence rise a little at times, and rejected simulations make it infinite:
    neither counts.
    """
    jeffreys = report.judged
    return bool(np.isfinite(jeffreys) and jeffreys > SPOILED * state.best_jeffreys + 1)


def _back_to_best(state: StageState) -> StageState:
    """The state with its best model as the current one, and smaller steps from now on."""
    return eqx.tree_at(lambda t: (t.core, t.settled), state, (state.best, state.settled + SETBACK))
