"""One stage of Algorithm 1: from a starting model of scale l to a trained one.

A stage is a sequence of rounds. Each round draws fields from the model as it is and simulates them,
which at once is a held-out estimate of the model's divergence from the posterior, and then trains
the model by the stage's method. What the stage returns is the best model by these held-out
estimates, never one worse than the start.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from msign.inference.advice import seen_from_prior
from msign.inference.certificate import SHOWN
from msign.inference.config import FitConfig
from msign.inference.methods import Method, MethodState, Stage
from msign.inference.simulate import Simulated, simulate
from msign.variables import Variables
from msign.weights import WeightReport, lost_evidence, weight_report

PROGRESS = 0.1  # of the divergence, and more than its standard error, that counts as progress


class StageState(eqx.Module):
    """All that changes while a stage runs; what a checkpoint holds.

    Attributes:
        model: As it is now.
        best: The model with the lowest held-out divergence so far.
        memory: What the method remembers.
        shown: A few variables of the fields by which `best` was chosen.
        log_weights: Of these fields.
        divergence: Held-out estimate of `best`.
        khat: Pareto shape of the weights of `best`.
        round: Rounds done.
        progress: Divergence at the last progress, from which further progress counts.
        stale: Rounds since then.
        rate: Factor on the learning rate: 1, 1/2, 1/3, ... after rounds without progress.
        done: Whether nothing is left to do.
    """

    model: Variables
    best: Variables
    memory: MethodState
    shown: np.ndarray
    log_weights: np.ndarray
    divergence: float
    khat: float
    round: int
    progress: float
    stale: int
    rate: float
    done: bool


def initial_state(stage: Stage, method: Method, assessed: int = 0) -> StageState:
    """A stage before its first round, with room for the fields by which its best is `assessed`."""
    return StageState(
        model=stage.start,
        best=stage.start,
        memory=method.init(stage),
        shown=np.zeros((assessed, min(stage.start.size, SHOWN))),
        log_weights=np.zeros(assessed),
        divergence=np.inf,
        khat=np.inf,
        round=0,
        progress=np.inf,
        stale=0,
        rate=1.0,
        done=False,
    )


def train_stage(
    stage: Stage,
    state: StageState,
    method: Method,
    config: FitConfig,
    after_round: Callable[[StageState, dict[str, Any]], None],
    doing: Callable[[str], None] = lambda _: None,
) -> StageState:
    """Rounds until nothing is left to gain, or the stage's share of the budget is used up.

    `doing` is told what begins.
    """
    while not state.done:
        key = jr.fold_in(stage.key, state.round)
        doing("simulating")
        drawn = _drawn(stage, state, key)
        bridging = bool(state.memory.target.temperature < 1)
        memory = method.observe(stage, state.memory, state.model, drawn)
        report = _reported(drawn, memory)
        state = _assess(stage, _with(state, memory=memory), drawn, report, config, bridging)
        worse = config.go_back and _is_worse(state, report, drawn.log_weights)
        if worse:
            state = _with(state, model=state.best)
        if worse or state.stale:
            state = _with(state, rate=state.rate / (1 + state.rate))
        loss = np.nan
        if not state.done:
            doing("training")
            memory, model, loss = method.update(
                stage, state.memory, state.model, state.rate, jr.fold_in(key, 1)
            )
            state = _with(state, memory=memory, model=model)
        state = _with(state, round=state.round + 1)
        record = _record(stage, state, report, worse, loss)
        after_round(state, {**record, **seen_from_prior(drawn, stage.simulator.problem)})
    return state


def _drawn(stage: Stage, state: StageState, key: PRNGKeyArray) -> Simulated:
    """Fields of the model, simulated: few at first, a whole round where it seems good enough."""
    few = stage.fields_of_round(state.round)
    given = stage.simulator, state.model, stage.scale
    drawn, rest = simulate(*given, jr.fold_in(key, 0), few), stage.round_size - few
    if rest and _is_good(stage, weight_report(drawn.log_weights)):
        drawn = drawn.joined(simulate(*given, jr.fold_in(key, 2), rest))
    return drawn


def _reported(drawn: Simulated, memory: MethodState) -> WeightReport:
    """Quality of the model that drew the fields, with the evidence that it lacks.

    Rejected simulations make KL(p||q) infinite, by which models could not be compared. They count
    by what they add to KL(q||p): minus the log of the mass that p has elsewhere.
    """
    good = np.isfinite(drawn.log_weights)
    report, known = weight_report(drawn.log_weights), memory.log_evidence()
    if good.any() and not good.all():
        elsewhere = weight_report(drawn.log_weights[good])
        jeffreys = elsewhere.jeffreys - float(np.log(good.mean()))
        stderr = elsewhere.jeffreys_stderr
        report = dataclasses.replace(report, jeffreys=jeffreys, jeffreys_stderr=stderr)
    if known is None:
        return report
    return dataclasses.replace(report, lost=lost_evidence(report, *known))


def _assess(
    stage: Stage,
    state: StageState,
    drawn: Simulated,
    report: WeightReport,
    config: FitConfig,
    bridging: bool,
) -> StageState:
    """The state with its best model, that of the lowest divergence, and whether it is done."""
    new = float(np.nan_to_num(report.divergence, nan=np.inf))
    gain = state.progress - new if np.isfinite(state.progress) else np.inf
    if gain > max(PROGRESS * new, report.jeffreys_stderr):
        state = _with(state, progress=new, stale=0)
    else:
        state = _with(state, stale=0 if bridging else state.stale + 1)
    if new < state.divergence or state.round == 0:
        state = _with(
            state,
            best=state.model,
            divergence=new,
            khat=report.khat,
            shown=drawn.s[:, :SHOWN].astype(np.float64),
            log_weights=drawn.log_weights,
        )
    return _with(state, done=_is_good(stage, report) or _is_spent(stage, state, config))


def _is_good(stage: Stage, report: WeightReport) -> bool:
    """Whether a model is good enough, as far as its fields can tell."""
    return report.divergence < stage.tolerance


def _is_spent(stage: Stage, state: StageState, config: FitConfig) -> bool:
    """Whether no means are left to make the model better."""
    return state.stale > config.patience or stage.is_over(state.round + 1)


def _is_worse(state: StageState, report: WeightReport, log_weights: np.ndarray) -> bool:
    """Whether the last update made the model worse than the best one.

    Both by its divergence, beyond the error of the estimate, and by its evidence bound, which
    rises on any way towards the posterior: poor weights see too little of KL(q||p), so that by the
    divergence alone a better model can seem to be further away.
    """
    worse = report.divergence > state.divergence + report.jeffreys_stderr
    return bool(worse and _evidence_bound(log_weights) < _evidence_bound(state.log_weights))


def _evidence_bound(log_weights: np.ndarray) -> float:
    """Mean log-weight of the fields that could be simulated: log evidence - KL(p||q)."""
    finite = np.isfinite(log_weights)
    return float(log_weights[finite].mean()) if finite.any() else -np.inf


def _record(
    stage: Stage, state: StageState, report: WeightReport, worse: bool, loss: float
) -> dict[str, Any]:
    """One line of the log."""
    return {
        "scale": stage.scale,
        "round": state.round - 1,
        "nfs": stage.simulator.nfs,
        "jeffreys": report.divergence,
        "jeffreys_stderr": report.jeffreys_stderr,
        "ess_fraction": report.ess_fraction,
        "khat": report.khat,
        "log_evidence": report.log_evidence,
        "lost_evidence": report.lost,
        "temperature": float(state.memory.target.temperature),
        "went_back": worse,
        "loss": float(loss),
    }


def _with(state: StageState, **changes: Any) -> StageState:
    return dataclasses.replace(state, **changes)
