"""Updates of a model on the pool of all fields that its stage has simulated."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from msign.inference.config import FitConfig
from msign.inference.models import Core, combine, split_trainable
from msign.inference.objectives import pool_divergence, pool_variance
from msign.inference.optimise import descend, optimiser
from msign.inference.simulate import Simulated
from msign.inference.state import Plan, StageState

FLAT = 0.5  # of the pool that flattened weights are worth
SETTLING = 0.8  # factor on the step size for each round on the pool after the bridge's end


def learn_from_pool(
    state: StageState, config: FitConfig, key: PRNGKeyArray
) -> tuple[StageState, float]:
    """The state after gradient steps on its pool, and the loss.

    A model that has reached the tolerance, but has heavy tails of its weights left, minimises the
    variance of its log-ratio under flattened weights: what is wrong by then is wrong where fields
    are rare.
    """
    pool = state.pool
    refine = state.temperature == 1 and state.best_jeffreys < config.tolerance
    target = pool.target(state.temperature)
    if refine:
        chances, measure = pool.uniform(), pool.flattened(FLAT * pool.size)
    else:
        chances, measure = pool.chances(target), pool.mixture()
        measure[: pool.size] += np.log(pool.size * chances[: pool.size])
    core, loss = fit_pool(
        state.core,
        jnp.asarray(pool.s),
        jnp.asarray(target, float),
        jnp.asarray(measure, float),
        jnp.asarray(chances, float),
        jr.fold_in(key, 1),
        config,
        settling(state),
        pool_variance if refine else pool_divergence,
    )
    return settle(state, core), float(loss)


def with_fields(state: StageState, drawn: Simulated, config: FitConfig, plan: Plan) -> StageState:
    """The state with fields just simulated in its pool, and the bridge as far as they carry."""
    proposals = state.proposals if state.round == 0 else [*state.proposals, state.core]
    values = drawn.log_likelihood
    floor = values[np.isfinite(values)].max(initial=0.0) - 1e4
    pool = state.pool.add(drawn.s, np.maximum(values, floor), proposals, drawn.residual)
    temperature = pool.highest_temperature(config.bridge_ess * plan.round_size, state.temperature)
    where = lambda t: (t.proposals, t.pool, t.temperature)  # noqa: E731
    return eqx.tree_at(where, state, (proposals, pool, temperature))


def settling(state: StageState) -> float:
    """Factor on the step size of a round."""
    return max(0.1, SETTLING**state.settled)


def settle(state: StageState, core: Core) -> StageState:
    """The state after a round, with what it has learned."""
    settled = state.settled + (state.temperature == 1.0)
    return eqx.tree_at(lambda t: (t.core, t.settled), state, (core, settled))


def fit_pool(
    core: Core,
    s: Array,
    target: Array,
    measure: Array,
    chances: Array,
    key: PRNGKeyArray,
    config: FitConfig,
    rate: float = 1.0,
    divergence: Callable[[Array, Array, Array], Array] = pool_divergence,
) -> tuple[Core, Array]:
    """Minimise a divergence on a pool by Adam with a step size that falls to zero.

    It starts at `rate` times the configured one. `chances` are those of each field to be drawn for
    a minibatch. `divergence` is `pool_divergence`, whose `measure` is the log-density of these
    draws, or `pool_variance`, with log-weights.
    """
    trainable, rest = split_trainable(core, config.train == "last")
    adam = optimiser(config, core)
    how = (
        config.pool_steps(core.size, len(s)),
        config.pool_batch(core.size, len(s)),
        config.averaging,
    )
    trained, loss = _pool_steps(
        trainable,
        rest,
        s,
        target,
        measure,
        jnp.cumsum(chances),
        jnp.asarray(rate),
        key,
        adam,
        divergence,
        *how,
    )
    return combine(trained, rest), loss


@eqx.filter_jit
def _pool_steps(
    trainable: PyTree,
    rest: PyTree,
    s: Array,
    target: Array,
    measure: Array,
    cumulative: Array,
    rate: Array,
    key: PRNGKeyArray,
    adam: Any,
    divergence: Callable[[Array, Array, Array], Array],
    steps: int,
    batch: int,
    averaging: float,
) -> tuple[PyTree, Array]:
    def loss(params: PyTree, key: PRNGKeyArray) -> Array:
        i = jnp.searchsorted(cumulative, jr.uniform(key, (batch,), maxval=cumulative[-1]), "right")
        excess = jax.vmap(lambda s: combine(params, rest).backward(s)[1])(s[i])
        return divergence(excess, target[i], measure[i])

    return descend(loss, trainable, adam, rate, key, steps, averaging)
