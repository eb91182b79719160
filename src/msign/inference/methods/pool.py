"""Learning from a pool: all fields that the stage has simulated are used again and again."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from msign import checks
from msign.inference.methods.base import Method, MethodState, Stage
from msign.inference.methods.objectives import pool_jeffreys
from msign.inference.methods.sample_pool import SamplePool
from msign.inference.simulate import Simulated
from msign.inference.target import Tempered, bounded_below
from msign.noise import generator, on_device
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
    pool = state.pool.add(drawn.s, values, drawn.log_ratio, models, drawn.features)
    target = pool.raised(state.target, stage.bridge_ess * stage.round_size)
    lost = lost_evidence(weight_report(drawn.log_weights), *pool.log_evidence())
    return PoolState(target, pool, proposals, max(lost, state.lost))


@dataclasses.dataclass(frozen=True)
class Pool(Method):
    """Minimise the Jeffreys divergence between model and target, both re-weighted to the pool.

    Attributes:
        picked: Fraction of a minibatch that is drawn by what fields add to the divergence: strays
            between narrow modes are one field in a thousand, and uniform draws hardly see them.
        watched: Samples of the model at each step that are watched for strays.
    """

    steps: int = 1200
    picked: float = 0.1
    watched: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer("watched", self.watched, 1)
        if not 0 <= checks.finite("picked", self.picked) < 1:
            raise ValueError(f"picked must be in [0, 1), got {self.picked!r}")

    def init(self, stage: Stage) -> PoolState:
        return init_pool(stage, 0)

    def observe(
        self, stage: Stage, state: PoolState, model: Variables, drawn: Simulated
    ) -> PoolState:
        return add_to_pool(stage, state, model, drawn)

    def update(
        self, stage: Stage, state: PoolState, model: Variables, rate: float, key: PRNGKeyArray
    ) -> tuple[PoolState, Variables, float]:
        pool = state.pool
        target = pool.normalised(state.target)
        chances = pool.chances(target, self.picked)
        measure = pool.mixture()[: pool.size] + np.log(pool.size * chances)
        rng = generator(key)
        rows = rng.choice(pool.size, (self.steps, self.batch), p=chances)
        z = rng.normal(size=(self.steps, self.watched, pool.s.shape[1]))
        trainable, rest = split_trainable(model.alone)
        trained, loss = _steps(
            trainable,
            rest,
            tuple(on_device(a) for a in (pool.s[rows], target[rows], measure[rows], z)),
            on_device(target[: pool.size].max()),
            on_device(rate * stage.learning_rate),
            self.clip_norm,
        )
        return state, model.with_flow(combine(trained, rest).flow), float(loss)


@eqx.filter_jit
def _steps(
    trainable: PyTree,
    rest: PyTree,
    minibatches: tuple[Array, ...],
    highest: Array,
    learning_rate: Array,
    clip_norm: float,
) -> tuple[PyTree, Array]:
    """Descend on minibatches of (variables, log target, log measure, noise), `(steps, ...)`.

    A pool does not see what the model does outside of it. No posterior exceeds the prior by more
    than its best likelihood does (`highest`): samples of the model that do are strays.
    """

    def loss(params: PyTree, minibatch: tuple[Array, ...]) -> Array:
        s, target, measure, z = minibatch
        model: Any = combine(params, rest)
        strays = jnp.mean(jnp.maximum(0.0, model.forward(z)[1] - highest))
        return pool_jeffreys(model.backward(s)[1], target, measure) + strays

    return descend(loss, trainable, minibatches, learning_rate, clip_norm)
