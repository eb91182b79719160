"""Learning from a pool: all fields that the stage has simulated are used again and again."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from msign import checks
from msign.devices import local, spread
from msign.inference.methods.base import Method, MethodState, Stage
from msign.inference.methods.objectives import pool_jeffreys, stray_penalty
from msign.inference.methods.plane import interpolated, rearrangement
from msign.inference.methods.polynomial import LATEST, Polynomial, fit_polynomial
from msign.inference.methods.sample_pool import SamplePool
from msign.inference.simulate import Simulated
from msign.inference.target import Tempered, bounded_below
from msign.noise import generator, on_device
from msign.problems.data_likelihood import DataLikelihood
from msign.training import adam, combine, descend, split_trainable
from msign.variables import Variables, in_pieces


class PoolState(MethodState):
    """The pool of a stage.

    Attributes:
        target: The highest temperature that the pool carries.
        pool: All fields simulated so far.
        proposals: Trainable arrays of the models that drew them.
    """

    target: Tempered
    pool: SamplePool
    proposals: list[Variables]

    def log_evidence(self) -> tuple[float, float] | None:
        return self.pool.log_evidence()

    @property
    def counts(self) -> list[int]:
        return [int(n) for n in self.pool.counts]

    def shaped(self, counts: Sequence[int], model: Variables) -> "PoolState":
        own = split_trainable(model.alone)[0]
        pool = self.pool.shaped(sum(counts), len(counts))
        return PoolState(self.target, pool, [own] * len(counts))


def init_pool(stage: Stage, observations: int, target: Tempered) -> PoolState:
    """An empty pool."""
    return PoolState(target, SamplePool.empty(stage.start.size, observations), [])


def add_to_pool(stage: Stage, state: PoolState, model: Variables, drawn: Simulated) -> PoolState:
    """The state with a round's fields, and the target as near to the posterior as they carry."""
    trainable, rest = split_trainable(model.alone)
    proposals = [*state.proposals, trainable]
    models = [combine(p, rest) for p in proposals]
    values = bounded_below(drawn.log_likelihood)
    pool = state.pool.add(drawn.s, values, drawn.log_ratio, models, drawn.features)
    target = pool.raised(state.target, stage.bridge_ess * len(drawn.s))
    return PoolState(target, pool, proposals)


@dataclasses.dataclass(frozen=True)
class Pool(Method):
    """Minimise the Jeffreys divergence between model and target, both re-weighted to the pool.

    Attributes:
        steps: Gradient steps per round.
        batch: Fields per gradient step.
        clip_norm: Largest norm of a gradient.
        picked: Fraction of the fields trained on that is drawn by what they add to the divergence:
            strays between narrow modes are one field in a thousand, and uniform draws hardly see
            them.
        watched: Samples of the model at each gradient step that are watched for strays.
        margin: Nats by which the density of a sample must exceed an emulated one to be a stray.
    """

    steps: int = 1200
    picked: float = 0.1
    watched: int = 64
    margin: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer("watched", self.watched, 1)
        checks.positive("margin", self.margin)
        if not 0 <= checks.finite("picked", self.picked) < 1:
            raise ValueError(f"picked must be in [0, 1), got {self.picked!r}")

    def init(self, stage: Stage) -> PoolState:
        problem = stage.simulator.problem
        return init_pool(stage, problem.layout.m if problem.has_observations else 0, Tempered(0.0))

    def observe(
        self, stage: Stage, state: PoolState, model: Variables, drawn: Simulated
    ) -> PoolState:
        return add_to_pool(stage, state, model, drawn)

    def update(
        self, stage: Stage, state: PoolState, model: Variables, rate: float, key: PRNGKeyArray
    ) -> tuple[PoolState, Variables, float]:
        pool = state.pool
        target = pool.normalised(state.target)
        highest = float(target.max())
        rearranged = rearrangement(model.flow)
        if rearranged is not None:
            emulated = self._emulated(stage, state, highest)
            flow, loss = rearranged(model.flow, pool.s, target, emulated)
            return state, model.with_flow(flow), loss
        bound = self._bound(stage, state, highest)
        chances = pool.chances(target, self.picked)
        measure = pool.mixture() + np.log(pool.size * chances)
        rng = generator(key)
        trainable, rest = split_trainable(model.alone)
        rows = rng.choice(pool.size, (self.steps, self.batch), p=chances)
        z = rng.normal(size=(self.steps, self.watched, pool.s.shape[1]))
        moved, value = _steps(
            trainable,
            rest,
            tuple(spread(a, axis=1) for a in (pool.s[rows], target[rows], measure[rows], z)),
            bound,
            on_device(rate * stage.learning_rate),
            self.clip_norm,
        )
        return state, model.with_flow(combine(local(moved), rest).flow), float(value)

    def _emulated(
        self, stage: Stage, state: PoolState, highest: float
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Log target - log prior, up to a constant, as a function of variables `(n, m)`.

        Of two variables by what the fields nearby predict, of one by a polynomial.
        """
        pool = state.pool
        rows = np.flatnonzero(np.all(np.isfinite(pool.features), axis=1))
        if pool.s.shape[1] == 1 or not pool.features.shape[1] or len(rows) < 2:
            bound = self._bound(stage, state, highest)
            return lambda s: _highest(bound, s)
        predicted = interpolated(pool.s[rows], pool.features[rows].astype(np.float64))
        likelihood = stage.simulator.likelihood(stage.scale)
        temperature = float(state.target.temperature)

        def emulated(s: np.ndarray) -> np.ndarray:
            features = predicted(s)
            return temperature * in_pieces(lambda part: (_value(likelihood, part),), features)[0]

        return emulated

    def _bound(self, stage: Stage, state: PoolState, highest: float) -> "Bound":
        """What the target does not exceed, by an emulator through fields of all rounds.

        Those of early rounds lie far from the posterior, where strays are. Without observations,
        or with too few of them, the bound is the highest value of the target.
        """
        pool, n = state.pool, state.pool.size
        rows = np.arange(0, n, -(-n // LATEST))
        rows = rows[np.all(np.isfinite(pool.features[rows]), axis=1)]
        if not pool.features.shape[1] or len(rows) < 2:
            return Bound(None, on_device(highest), on_device(0.0))
        emulated = fit_polynomial(
            pool.s[rows],
            pool.features[rows],
            likelihood=stage.simulator.likelihood(stage.scale),
        )
        temperature = float(state.target.temperature)
        best = float(np.max(in_pieces(lambda s: (_emulated(emulated, s),), pool.s[rows])[0]))
        level = highest + self.margin - temperature * best
        return Bound(emulated, on_device(level), on_device(temperature))


class Bound(eqx.Module):
    """An upper bound of log target - log prior: level + temperature times emulated log-likelihood.

    Of the foot of the bridge it takes the highest value that the pool has.
    """

    emulated: Polynomial | None
    level: Array
    temperature: Array

    def __call__(self, s: Array) -> Array:
        if self.emulated is None:
            return jnp.broadcast_to(self.level, s.shape[:1])
        return self.level + self.temperature * jax.vmap(self.emulated.value)(s)


def _highest(bound: Bound, s: np.ndarray) -> np.ndarray:
    return in_pieces(lambda s: (_bounded(bound, s),), s)[0]


@eqx.filter_jit
def _bounded(bound: Bound, s: Array) -> Array:
    return bound(s)


@eqx.filter_jit
def _value(likelihood: DataLikelihood, features: Array) -> Array:
    return jax.vmap(lambda f: jnp.sum(likelihood.terms(f)))(features)


@eqx.filter_jit
def _emulated(emulated: Polynomial, s: Array) -> Array:
    return jax.vmap(emulated.value)(s)


@eqx.filter_jit
def _steps(
    trainable: PyTree,
    rest: PyTree,
    minibatches: tuple[Array, ...],
    bound: Bound,
    learning_rate: Array,
    clip_norm: float,
) -> tuple[PyTree, Array]:
    """Descend on minibatches of (variables, log target, log measure, noise), `(steps, ...)`.

    A pool does not see what the model does outside of it: samples of the model whose density
    exceeds what the target can have there are strays, and pay for it.
    """

    def loss(params: PyTree, minibatch: tuple[Array, ...]) -> Array:
        s, target, measure, z = minibatch
        now: Any = combine(jax.lax.stop_gradient(params), rest)
        model: Any = combine(params, rest)
        samples = now.forward(z)[0]
        density, own = jnp.split(model.backward(jnp.concatenate([s, samples]))[1], [len(s)])
        return pool_jeffreys(density, target, measure) + stray_penalty(own, bound(samples))

    return descend(loss, trainable, minibatches, learning_rate, adam(clip_norm))
