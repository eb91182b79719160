"""Updates of a model on an emulator of the forward map, fitted to all that its stage simulated."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from msign.inference.config import FitConfig
from msign.inference.emulator import Emulator, fit_emulator
from msign.inference.models import Core, combine, split_trainable
from msign.inference.objectives import Batch, PathwiseJeffreys
from msign.inference.on_pool import settle, settling, with_fields
from msign.inference.optimise import optimiser, running_average
from msign.inference.simulate import Simulated
from msign.inference.state import Plan, StageState


def learn_from_emulator(
    state: StageState,
    drawn: Simulated,
    config: FitConfig,
    plan: Plan,
    key: PRNGKeyArray,
) -> tuple[StageState, float]:
    """The state after many gradient steps on the emulated target, and their last loss."""
    state = with_fields(state, drawn, config, plan)
    pool, n, t = state.pool, state.pool.size, state.temperature
    good = np.all(np.isfinite(pool.residual[:n]), axis=1)
    log_weights = pool.bridged(t)[:n] - pool.mixture()[:n]
    emulator = fit_emulator(pool.s[:n][good], pool.residual[:n][good], log_weights[good])
    trainable, rest = split_trainable(state.core, config.train == "last")
    trained, loss = _emulated_steps(
        trainable,
        rest,
        emulator,
        plan.model.core,
        jnp.asarray(t, float),
        jnp.asarray(settling(state), float),
        jr.fold_in(key, 1),
        optimiser(config, state.core.size),
        config.emulator_steps,
        config.emulator_batch,
        config.averaging,
    )
    return settle(state, combine(trained, rest)), float(loss)


@eqx.filter_jit
def _emulated_steps(
    trainable: PyTree,
    rest: PyTree,
    emulator: Emulator,
    start: Core,
    temperature: Array,
    rate: Array,
    key: PRNGKeyArray,
    adam: Any,
    steps: int,
    batch: int,
    averaging: float,
) -> tuple[PyTree, Array]:
    """Adam on fresh samples at every step; `start` is the foot of the bridge."""
    objective = PathwiseJeffreys()

    def foot(s: Array) -> tuple[Array, Array]:
        return jax.vmap(jax.value_and_grad(lambda s: start.backward(s)[1]))(s)

    def target(s: Array) -> tuple[Array, Array]:
        value, slope = jax.vmap(emulator.log_likelihood)(s)
        nothing = lambda s: (jnp.zeros_like(value), jnp.zeros_like(slope))  # noqa: E731
        first = jax.lax.cond(temperature < 1, foot, nothing, s)
        t = temperature
        return t * value + (1 - t) * first[0], t * slope + (1 - t) * first[1]

    def loss(params: PyTree, key: PRNGKeyArray) -> Array:
        core = combine(params, rest)
        z = jr.normal(key, (batch, core.size))
        s = jax.lax.stop_gradient(jax.vmap(lambda z: core.forward(z)[0])(z))
        return objective(core, Batch(z, s, *target(s)))

    def step(carry: tuple[Any, ...], key: PRNGKeyArray) -> tuple[tuple[Any, ...], Array]:
        params, average, state, k = carry
        value, gradient = jax.value_and_grad(loss)(params, key)
        change, state = adam.update(gradient, state, params)
        decay = 0.5 * rate * (1 + jnp.cos(jnp.pi * k / steps))
        params = eqx.apply_updates(params, jax.tree.map(lambda c: decay * c, change))
        return (params, running_average(average, params, averaging), state, k + 1), value

    begin = (trainable, trainable, adam.init(trainable), 0)
    (_, average, _, _), values = jax.lax.scan(step, begin, jr.split(key, steps))
    return average, values[-max(1, steps // 10) :].mean()
