"""One stage of Algorithm 1: from a starting model of scale l to a trained one.

A stage is a sequence of rounds. Each round draws fields from the model as it is, simulates them,
which at once is a held-out estimate of the model's quality, and then updates the model, either on
the pool of all fields so far or with fresh fields at every gradient step. What the stage returns
is the best model by these held-out estimates, never one worse than the start.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.random as jr
import numpy as np

from msign.diagnostics.weights import WeightReport, weight_report
from msign.inference.config import FitConfig
from msign.inference.models import draw, split_trainable
from msign.inference.objectives import (
    CentredJeffreys,
    Objective,
    PathwiseJeffreys,
    ScoreJeffreys,
    SteinObjective,
    forward_kl,
    reverse_kl,
)
from msign.inference.on_fresh import learn_from_fresh
from msign.inference.on_pool import learn_from_pool
from msign.inference.optimise import optimiser
from msign.inference.pool import Pool
from msign.inference.state import Plan, StageState
from msign.problems.inverse import InverseProblem

MAX_KHAT = 0.5  # what the finest scale should reach before it stops early
MIN_SCALE_OF_STEPS = 3  # from this scale on Glow trains on fresh samples by default


def choose_objective(config: FitConfig, problem: InverseProblem, scale: int) -> Objective | None:
    """The objective of a stage; None is the pool."""
    name = config.objective
    gradient = problem.differentiable
    if name == "auto":
        pooled = config.flow == "informed" or scale < MIN_SCALE_OF_STEPS
        name = "pool" if pooled else "pathwise" if gradient else "centred"
    if name in ("pathwise", "stein") and not gradient:
        raise ValueError(f"objective must not be {name!r}: the forward map has no derivative")
    made: dict[str, Callable[[], Objective | None]] = {
        "pool": lambda: None,
        "pathwise": PathwiseJeffreys,
        "centred": CentredJeffreys,
        "score": ScoreJeffreys,
        "reverse_kl": lambda: reverse_kl(gradient),
        "forward_kl": forward_kl,
        "stein": SteinObjective,
    }
    return made[name]()


def initial_state(config: FitConfig, plan: Plan, objective: Objective | None) -> StageState:
    """A stage before its first round."""
    core, pooled = plan.model.core, objective is None
    pool = Pool.empty(plan.round_size * config.rounds if pooled else 0, core.size, config.rounds)
    trainable, _ = split_trainable(core, config.train == "last")
    state = () if pooled else optimiser(config, core.size).init(trainable)
    return StageState(core, core, [core], pool, state, 0.0, 0, np.inf, 0, 0, np.inf)


def run_stage(
    problem: InverseProblem,
    state: StageState,
    config: FitConfig,
    plan: Plan,
    objective: Objective | None,
    after_round: Callable[[StageState, dict[str, Any]], None],
) -> StageState:
    """Rounds until nothing is left to gain, or the stage's share of the budget is used up."""
    while not _finished(problem, state, config, plan):
        state, record = _round(problem, state, config, plan, objective)
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
    close = state.best_jeffreys < config.tolerance
    return close and (plan.scale < problem.scales or state.khat < MAX_KHAT)


def _round(
    problem: InverseProblem,
    state: StageState,
    config: FitConfig,
    plan: Plan,
    objective: Objective | None,
) -> tuple[StageState, dict[str, Any]]:
    key = jr.fold_in(plan.key, state.round)
    eta = jr.normal(jr.fold_in(key, 0), (plan.round_size, plan.model.dim))
    u, s, excess = draw(plan.model.with_core(state.core), eta)
    values = problem.evaluate(u, plan.scale).log_likelihood
    report = weight_report(values - np.asarray(excess, np.float64))
    state = _remember_best(state, report)
    last = (
        _good_enough(problem, state, config, plan)
        or state.round + 1 >= config.rounds
        or problem.nfs + plan.round_size > plan.limit
    )
    loss = np.nan
    if not last:
        if objective is None:
            state, loss = learn_from_pool(state, s, values, config, plan, key)
        else:
            state, loss = learn_from_fresh(problem, state, config, plan, objective, key)
    record = {
        "scale": plan.scale,
        "round": state.round,
        "nfs": problem.nfs,
        "jeffreys": report.jeffreys,
        "jeffreys_stderr": report.jeffreys_stderr,
        "ess_fraction": report.ess_fraction,
        "khat": report.khat,
        "log_evidence": report.log_evidence,
        "temperature": state.temperature,
        "loss": float(loss),
    }
    return eqx.tree_at(lambda t: t.round, state, state.round + 1), record


def _remember_best(state: StageState, report: WeightReport) -> StageState:
    better = report.jeffreys < state.best_jeffreys
    where = lambda t: (t.best, t.best_jeffreys, t.khat, t.stale)  # noqa: E731
    gain = state.best_jeffreys - report.jeffreys
    progress = better and gain > 0.1 * state.best_jeffreys if np.isfinite(gain) else better
    progress = progress or state.temperature < 1
    new, old = (
        (state.core, report.jeffreys, report.khat),
        (state.best, state.best_jeffreys, state.khat),
    )
    return eqx.tree_at(
        where, state, (*(new if better else old), 0 if progress else state.stale + 1)
    )
