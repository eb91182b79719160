"""Updates of a model with fresh fields at every gradient step."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from msign.inference.config import FitConfig
from msign.inference.models import Core, combine, draw, split_trainable
from msign.inference.objectives import Batch, Objective
from msign.inference.optimise import optimiser, running_average
from msign.inference.state import Plan, StageState
from msign.problems.inverse import InverseProblem
from msign.weights import highest_power


def learn_from_fresh(
    problem: InverseProblem,
    state: StageState,
    config: FitConfig,
    plan: Plan,
    objective: Objective,
    key: PRNGKeyArray,
) -> tuple[StageState, float]:
    """The state after `config.fresh_steps` gradient steps, and their mean loss."""
    core, adam_state, temperature = state.core, state.optimiser, state.temperature
    adam = optimiser(config, core)
    n = config.fresh_batch
    cost = n * (2 if objective.uses_gradient else 1) + (n if objective.uses_proposal else 0)
    average, losses = core, []
    for i in range(config.fresh_steps):
        if problem.nfs + cost + plan.round_size > plan.limit:
            break
        step_key = jr.fold_in(key, 2 + i)
        batch, temperature = _fresh_batch(
            problem, core, objective, plan, config, temperature, step_key
        )
        decay = jnp.asarray(_decay(problem.nfs, plan))
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
    return combine(running_average(a, c, decay), rest)


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
    u, s, excess = draw(model.with_core(core), eta)
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
        pu, ps, pe = draw(model, jr.normal(jr.fold_in(key, 1), (n, model.dim)))
        pv = problem.evaluate(pu, plan.scale).log_likelihood
        pt = jnp.asarray(t * np.maximum(pv, -1e6), s.dtype) + (1 - t) * pe
        proposal = (ps, pt, pe)
    target = t * values + (1 - t) * start_excess
    return Batch(model.noise(eta), s, target, slope, *proposal), temperature


@eqx.filter_jit
def _start_terms(start: Core, s: Array) -> tuple[Array, Array]:
    return jax.vmap(jax.value_and_grad(lambda s: start.backward(s)[1]))(s)


def bridge_temperature(values: Array, start_excess: Array, excess: Array, ess: float) -> float:
    """The largest T whose weights (1 - T) start + T posterior have this ESS fraction."""
    v, a, b = (np.asarray(x, np.float64) for x in (values, start_excess, excess))
    return highest_power(lambda t: t * v + (1 - t) * a - b, ess * len(v), 0.0)


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
