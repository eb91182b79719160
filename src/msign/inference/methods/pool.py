"""Learning from a pool: all fields that the stage has simulated are used again and again."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from msign.inference.methods.base import Method, MethodState, Stage
from msign.inference.methods.objectives import pool_divergence, pool_variance
from msign.inference.methods.sample_pool import SamplePool
from msign.inference.simulate import Simulated
from msign.inference.target import Tempered, bounded_below
from msign.training import combine, descend, split_trainable
from msign.variables import Variables
from msign.weights import lost_evidence, weight_report


class PoolState(MethodState):
    """The pool of a stage.

    Attributes:
        target: The highest temperature that the pool carries.
        pool: All fields simulated so far.
        proposals: Trainable arrays of the models that drew them.
        lost: The most log evidence that a model of this stage lacked, compared with the pool.
    """

    target: Tempered
    pool: SamplePool
    proposals: list[Variables]
    lost: float

    def log_evidence(self) -> tuple[float, float] | None:
        return self.pool.log_evidence()


def init_pool(stage: Stage, observations: int) -> PoolState:
    """An empty pool with room for all rounds of a stage."""
    capacity = stage.round_size * stage.rounds
    pool = SamplePool.empty(capacity, stage.start.size, stage.rounds, observations)
    return PoolState(Tempered(0.0), pool, [], 0.0)


def add_to_pool(stage: Stage, state: PoolState, model: Variables, drawn: Simulated) -> PoolState:
    """The state with a round's fields, and the target as near to the posterior as they carry."""
    trainable, rest = split_trainable(model.alone)
    proposals = [*state.proposals, trainable]
    models = [combine(p, rest) for p in proposals]
    values = bounded_below(drawn.log_likelihood)
    pool = state.pool.add(drawn.s, values, models, drawn.residual)
    target = pool.raised(state.target, stage.bridge_ess * stage.round_size)
    lost = lost_evidence(weight_report(drawn.log_weights), *pool.log_evidence())
    return PoolState(target, pool, proposals, max(lost, state.lost))


@dataclasses.dataclass(frozen=True)
class Pool(Method):
    """Minimise the Jeffreys divergence between model and target, both re-weighted to the pool.

    A model that is good already but for heavy tails of its weights minimises the variance of its
    log-ratio to the target under flattened weights: what is wrong by then is wrong where fields are
    rare.

    Attributes:
        batch: At most a quarter of the pool's capacity.
        picked: Fraction of a minibatch that is drawn by what fields add to the divergence: strays
            between narrow modes are one field in a thousand, and uniform draws hardly see them.
        flat: Fraction of the pool that flattened weights are worth.
    """

    steps: int = 1200
    batch: int = 1024
    picked: float = 0.1
    flat: float = 0.5

    def init(self, stage: Stage) -> PoolState:
        return init_pool(stage, 0)

    def observe(
        self, stage: Stage, state: PoolState, model: Variables, drawn: Simulated
    ) -> PoolState:
        return add_to_pool(stage, state, model, drawn)

    def update(
        self,
        stage: Stage,
        state: PoolState,
        model: Variables,
        rate: float,
        key: PRNGKeyArray,
        good: bool,
    ) -> tuple[PoolState, Variables, float]:
        pool = state.pool
        target = pool.normalised(state.target)
        if good:
            chances, measure = pool.uniform(), pool.flattened(self.flat * pool.size)
        else:
            chances, measure = pool.chances(target, self.picked), pool.mixture()
            measure[: pool.size] += np.log(pool.size * chances[: pool.size])
        divergence = pool_variance if good else pool_divergence
        fields = (pool.s, target, measure, np.cumsum(chances))
        trainable, rest = split_trainable(model.alone)
        trained, loss = _steps(
            trainable,
            rest,
            tuple(jnp.asarray(a, float) for a in fields),
            jnp.asarray(rate * stage.learning_rate),
            key,
            divergence,
            self.steps,
            min(self.batch, max(64, len(pool.s) // 4)),
            self.clip_norm,
        )
        return state, model.with_flow(combine(trained, rest).flow), float(loss)


@eqx.filter_jit
def _steps(
    trainable: PyTree,
    rest: PyTree,
    fields: tuple[Array, ...],
    learning_rate: Array,
    key: PRNGKeyArray,
    divergence: Callable[[Array, Array, Array], Array],
    steps: int,
    batch: int,
    clip_norm: float,
) -> tuple[PyTree, Array]:
    """Descend on minibatches of (variables, log target, log measure, cumulative chances)."""
    s, target, measure, cumulative = fields

    def loss(params: PyTree, key: PRNGKeyArray) -> Array:
        model: Any = combine(params, rest)
        i = jnp.searchsorted(cumulative, jr.uniform(key, (batch,), maxval=cumulative[-1]), "right")
        ratio = jax.vmap(lambda s: model.backward(s)[1])(s[i])
        return divergence(ratio, target[i], measure[i])

    return descend(loss, trainable, learning_rate, key, steps, clip_norm)
