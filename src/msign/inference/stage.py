"""One stage of Algorithm 1: from a starting model of scale l to a trained one.

A stage is a sequence of rounds. Each round draws fields from the model as it is, simulates them,
which at once is a held-out estimate of the model's quality, and then updates the model, either on
the pool of all fields so far or with fresh fields at every gradient step. What the stage returns
is the best model by these held-out estimates, never one worse than the start.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from msign.diagnostics.weights import WeightReport, weight_report
from msign.inference.config import FitConfig
from msign.inference.models import (
    Core,
    StageModel,
    combine,
    draw,
    forward_all,
    split_trainable,
)
from msign.inference.objectives import (
    Batch,
    CentredJeffreys,
    Objective,
    PathwiseJeffreys,
    ScoreJeffreys,
    SteinObjective,
    forward_kl,
    pool_jeffreys,
    reverse_kl,
)
from msign.inference.pool import Pool
from msign.problems.inverse import InverseProblem

MAX_KHAT = 0.5  # what the finest scale should reach before it stops early
SETTLING = 0.8  # factor on the step size for each round on the pool after the bridge's end
MIN_SCALE_OF_STEPS = 3  # from this scale on Glow trains on fresh samples by default


class StageState(eqx.Module):
    """All that changes while a stage runs; what a checkpoint holds.

    Attributes:
        core: Of the model as it is now.
        best: The core with the lowest held-out Jeffreys estimate so far.
        proposals: Cores that drew the pool, the first being the start of the stage.
        pool: Evaluated fields (a pool of no capacity where none is used).
        optimiser: State of Adam between rounds (fresh-sample objectives).
        temperature: Of the bridge.
        round: Rounds done.
        best_jeffreys: Held-out estimate of `best`.
        stale: Rounds since the last improvement.
        settled: Rounds since the target is the posterior itself (the bridge's end).
        khat: Pareto shape of the weights of `best`.
    """

    core: Core
    best: Core
    proposals: list[Core]
    pool: Pool
    optimiser: PyTree
    temperature: float
    round: int
    best_jeffreys: float
    stale: int
    settled: int
    khat: float


class Plan(NamedTuple):
    """A stage's means.

    Attributes:
        model: With which the stage starts; its directions are those of the whole stage.
        scale: l.
        begin: The count of forward simulations at its start.
        limit: The count of forward simulations that must not be exceeded.
        round_size: Fields drawn per round.
        key: Random key of the stage.
    """

    model: StageModel
    scale: int
    begin: int
    limit: int
    round_size: int
    key: PRNGKeyArray


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
    u, s, excess = _draw(plan.model, state.core, jr.fold_in(key, 0), plan.round_size)
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
            state, loss = _learn_from_pool(state, s, values, config, plan, key)
        else:
            state, loss = _learn_from_steps(problem, state, config, plan, objective, key)
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


# --- updates on the pool -------------------------------------------------------------------------


def _learn_from_pool(
    state: StageState,
    s: Array,
    values: np.ndarray,
    config: FitConfig,
    plan: Plan,
    key: PRNGKeyArray,
) -> tuple[StageState, float]:
    proposals = state.proposals if state.round == 0 else [*state.proposals, state.core]
    floor = values[np.isfinite(values)].max(initial=0.0) - 1e4
    pool = state.pool.add(s, np.maximum(values, floor), proposals)
    temperature = pool.highest_temperature(config.bridge_ess * plan.round_size, state.temperature)
    core, loss = fit_pool(
        state.core,
        jnp.asarray(pool.s),
        jnp.asarray(pool.bridged(temperature), float),
        jnp.asarray(pool.mixture(), float),
        pool.size,
        jr.fold_in(key, 1),
        config,
        max(0.1, SETTLING**state.settled),
    )
    settled = state.settled + (temperature == 1.0)
    where = lambda t: (t.core, t.proposals, t.pool, t.temperature, t.settled)  # noqa: E731
    return eqx.tree_at(where, state, (core, proposals, pool, temperature, settled)), float(loss)


def fit_pool(
    core: Core,
    s: Array,
    target: Array,
    mixture: Array,
    size: int,
    key: PRNGKeyArray,
    config: FitConfig,
    rate: float = 1.0,
) -> tuple[Core, Array]:
    """Minimise the Jeffreys divergence on a pool by Adam with a step size that falls to zero.

    It starts at `rate` times the configured one.
    """
    trainable, rest = split_trainable(core, config.train == "last")
    adam = optimiser(config, core.size)
    how = (config.steps, config.pool_batch(core.size), config.averaging)
    trained, loss = _pool_steps(
        trainable, rest, s, target, mixture, jnp.asarray(size), jnp.asarray(rate), key, adam, *how
    )
    return combine(trained, rest), loss


@eqx.filter_jit
def _pool_steps(
    trainable: PyTree,
    rest: PyTree,
    s: Array,
    target: Array,
    mixture: Array,
    size: Array,
    rate: Array,
    key: PRNGKeyArray,
    adam: Any,
    steps: int,
    batch: int,
    averaging: float,
) -> tuple[PyTree, Array]:
    def loss(params: PyTree, i: Array) -> Array:
        excess = jax.vmap(lambda s: combine(params, rest).backward(s)[1])(s[i])
        return pool_jeffreys(excess, target[i], mixture[i])

    def step(carry: tuple[Any, ...], key: PRNGKeyArray) -> tuple[tuple[Any, ...], Array]:
        params, average, state, k = carry
        i = jr.randint(key, (batch,), 0, size)
        value, gradient = jax.value_and_grad(loss)(params, i)
        change, state = adam.update(gradient, state, params)
        decay = 0.5 * rate * (1 + jnp.cos(jnp.pi * k / steps))
        params = eqx.apply_updates(params, jax.tree.map(lambda c: decay * c, change))
        return (params, _average(average, params, averaging), state, k + 1), value

    start = (trainable, trainable, adam.init(trainable), 0)
    (_, average, _, _), values = jax.lax.scan(step, start, jr.split(key, steps))
    return average, values[-max(1, steps // 10) :].mean()


def _average(average: PyTree, params: PyTree, decay: float) -> PyTree:
    """Running average of weights; the weights themselves for a decay of zero."""
    return jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)


# --- updates on fresh samples -------------------------------------------------------------------


def _learn_from_steps(
    problem: InverseProblem,
    state: StageState,
    config: FitConfig,
    plan: Plan,
    objective: Objective,
    key: PRNGKeyArray,
) -> tuple[StageState, float]:
    core, adam_state, temperature = state.core, state.optimiser, state.temperature
    adam = optimiser(config, core.size)
    n = config.fresh_batch
    cost = n * (2 if objective.uses_gradient else 1) + (n if objective.uses_proposal else 0)
    decay = jnp.asarray(_decay(problem.nfs, plan))
    average, losses = core, []
    for i in range(config.steps):
        if problem.nfs + cost + plan.round_size > plan.limit:
            break
        step_key = jr.fold_in(key, 2 + i)
        batch, temperature = _fresh_batch(
            problem, core, objective, plan, config, temperature, step_key
        )
        core, adam_state, loss = _take_step(
            core, adam_state, batch, decay, objective, adam, config.train == "last"
        )
        average = _average_cores(average, core, config.averaging)
        losses.append(float(loss))
    where = lambda t: (t.core, t.optimiser, t.temperature)  # noqa: E731
    mean = float(np.mean(losses)) if losses else np.nan
    return eqx.tree_at(where, state, (average, adam_state, temperature)), mean


@eqx.filter_jit
def _average_cores(average: Core, core: Core, decay: float) -> Core:
    a, _ = split_trainable(average)
    c, rest = split_trainable(core)
    return combine(_average(a, c, decay), rest)


def _decay(nfs: int, plan: Plan) -> float:
    """Step size factor: from one down to a tenth as the stage's share is used up."""
    used = (nfs - plan.begin) / max(plan.limit - plan.begin, 1)
    return 1 - 0.9 * min(1.0, max(0.0, used))


def _fresh_batch(
    problem: InverseProblem,
    core: Core,
    objective: Objective,
    plan: Plan,
    config: FitConfig,
    temperature: float,
    key: PRNGKeyArray,
) -> tuple[Batch, float]:
    n, model, start = config.fresh_batch, plan.model, plan.model.core
    eta = jr.normal(jr.fold_in(key, 0), (n, model.dim))
    u, s, excess = draw(eqx.tree_at(lambda m: m.core, model, core), eta)
    out = problem.evaluate(u, plan.scale, objective.uses_gradient)
    values = jnp.asarray(np.maximum(out.log_likelihood, -1e6), s.dtype)
    start_excess, start_slope = _start_terms(start, s)
    if temperature < 1:
        found = bridge_temperature(values, start_excess, excess, config.bridge_ess)
        temperature = max(temperature, found)
    t = temperature
    slope = None
    if objective.uses_gradient:
        slope = t * model.reduce(jnp.asarray(out.gradient, s.dtype)) + (1 - t) * start_slope
    proposal: tuple[Any, Any, Any] = (None, None, None)
    if objective.uses_proposal:
        pu, ps, pe = _draw(model, start, jr.fold_in(key, 1), n)
        pv = problem.evaluate(pu, plan.scale).log_likelihood
        pt = jnp.asarray(t * np.maximum(pv, -1e6), s.dtype) + (1 - t) * pe
        proposal = (ps, pt, pe)
    target = t * values + (1 - t) * start_excess
    return Batch(model.noise(eta), s, target, slope, *proposal), temperature


def _draw(model: StageModel, core: Core, key: PRNGKeyArray, n: int) -> tuple[Array, Array, Array]:
    """Whitened coordinates, trained variables and excess of n fresh fields."""
    eta = jr.normal(key, (n, model.dim))
    s, excess = forward_all(core, model.noise(eta))
    return model.lift(s, eta), s, excess


@eqx.filter_jit
def _start_terms(start: Core, s: Array) -> tuple[Array, Array]:
    return jax.vmap(jax.value_and_grad(lambda s: start.backward(s)[1]))(s)


def bridge_temperature(values: Array, start_excess: Array, excess: Array, ess: float) -> float:
    """The largest T whose weights (1 - T) start + T posterior have this ESS fraction."""
    v, a, b = (np.asarray(x, np.float64) for x in (values, start_excess, excess))

    def enough(t: float) -> bool:
        log_w = t * v + (1 - t) * a - b
        w = np.exp(log_w - log_w.max())
        return w.sum() ** 2 / (w**2).sum() >= ess * len(w)

    if enough(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


@eqx.filter_jit
def _take_step(
    core: Core,
    state: PyTree,
    batch: Batch,
    decay: Array,
    objective: Objective,
    adam: Any,
    last_only: bool,
) -> tuple[Core, PyTree, Array]:
    trainable, rest = split_trainable(core, last_only)
    loss, gradient = jax.value_and_grad(lambda p: objective(combine(p, rest), batch))(trainable)
    change, state = adam.update(gradient, state, trainable)
    trainable = eqx.apply_updates(trainable, jax.tree.map(lambda c: decay * c, change))
    return combine(trainable, rest), state, loss


def optimiser(config: FitConfig, size: int) -> optax.GradientTransformation:
    """Adam with clipped gradients; a step that is not finite is skipped."""
    rate = config.learning_rate or (5e-3 if size <= 4 else 2e-3)
    return _optimiser(rate, config.clip_norm)


@functools.cache
def _optimiser(rate: float, clip_norm: float) -> optax.GradientTransformation:
    adam = optax.chain(optax.clip_by_global_norm(clip_norm), optax.adam(rate))
    return optax.apply_if_finite(adam, max_consecutive_errors=1000)
