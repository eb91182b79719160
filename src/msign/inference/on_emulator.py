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
from msign.inference.on_pool import settle, settling
from msign.inference.optimise import descend, optimiser
from msign.inference.state import Plan, StageState
from msign.weights import resampled

COVERED = 4096  # fields of the pool, resampled, to which a model on a bridge is held


def learn_from_emulator(
    state: StageState, config: FitConfig, plan: Plan, key: PRNGKeyArray
) -> tuple[StageState, float]:
    """The state after many gradient steps on the emulated target, and their last loss."""
    pool, n, t = state.pool, state.pool.size, state.temperature
    good = np.all(np.isfinite(pool.residual[:n]), axis=1)
    log_weights = pool.bridged(t)[:n] - pool.mixture()[:n]
    emulator = fit_emulator(pool.s[:n][good], pool.residual[:n][good], log_weights[good])
    # The pool as an equally weighted sample of the target, to hold the model to all of its modes.
    covered = pool.s[resampled(log_weights, COVERED, float(jr.uniform(jr.fold_in(key, 2))))]
    trainable, rest = split_trainable(state.core, config.train == "last")
    trained, loss = _emulated_steps(
        trainable,
        rest,
        emulator,
        plan.model.core,
        jnp.asarray(covered, float),
        jnp.asarray(t < 1 or state.lost > 0, float),
        jnp.asarray(t, float),
        jnp.asarray(settling(state), float),
        jr.fold_in(key, 1),
        optimiser(config, state.core),
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
    covered: Array,
    cover: Array,
    temperature: Array,
    rate: Array,
    key: PRNGKeyArray,
    adam: Any,
    steps: int,
    batch: int,
    averaging: float,
) -> tuple[PyTree, Array]:
    """Adam on fresh samples at every step; `start` is the foot of the bridge.

    Pathwise gradients see only what the model's own samples see, and can lose a mode while the
    bridge splits it off. Where `cover` is one, KL(q||p) on samples `covered` of the pool is added.
    """
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
        value = objective(core, Batch(z, s, *target(s)))
        return value + jax.lax.cond(cover > 0, coverage, lambda *_: jnp.zeros(()), params, key)

    def coverage(params: PyTree, key: PRNGKeyArray) -> Array:
        core = combine(params, rest)
        rows = covered[jr.randint(jr.fold_in(key, 1), (batch,), 0, len(covered))]
        return -jnp.mean(jax.vmap(lambda s: core.backward(s)[1])(rows))

    return descend(loss, trainable, adam, rate, key, steps, averaging)
