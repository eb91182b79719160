"""Learning from fresh fields at every gradient step: the paper's way, with any objective."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from msign import checks
from msign.devices import copied_here, gathered, local, spread, spread_tree
from msign.inference.methods.base import Method, MethodState, Stage
from msign.inference.methods.objectives import Batch, Objective, PathwiseJeffreys
from msign.inference.simulate import Simulated
from msign.inference.target import Tempered, bounded_below
from msign.noise import generator, normal, on_device
from msign.training import adam, combine, optimiser_step, schedule, split_trainable
from msign.variables import Variables, draw, log_ratio_and_score

STATES = 2000  # of Markov chains, that stand for samples of q_1
CHAINS = 50  # at most, and
PER_CHAIN = 200  # simulations for each of them at least


class FreshState(MethodState):
    """Fresh fields are used once: only the temperature is remembered, and chains, if there are any.

    Attributes:
        target: What the model is trained towards.
        chain: States of Markov chains of q_1 in whitened coordinates `(n, d)`; no rows: there are
            none.
        sampled: Whether the chains have run.
    """

    target: Tempered
    chain: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 1)))
    sampled: bool = False

    def log_evidence(self) -> tuple[float, float] | None:
        return None


@dataclasses.dataclass(frozen=True)
class OnFreshFields(Method):
    """A method that learns from fields of its own steps, and from none of the rounds."""

    def init(self, stage: Stage) -> FreshState:
        return FreshState(Tempered(0.0))

    def observe(
        self, stage: Stage, state: FreshState, model: Variables, drawn: Simulated
    ) -> FreshState:
        return state


@dataclasses.dataclass(frozen=True)
class Fresh(OnFreshFields):
    """Estimate the gradient of an objective from fields drawn and simulated for each step.

    Attributes:
        steps: Gradient steps per round.
        batch: Fields per gradient step; 100 is the paper's minibatch.
        clip_norm: Largest norm of a gradient.
        objective: Of the gradient steps.
        tempered: Whether the target is tempered while the model is far from it.
        chain: Part of the first stage's simulations that go to Hamiltonian Monte Carlo, whose
            states are the samples of q_1 where the objective wants those of a proposal (line 2 of
            Algorithm 1 as appendix F does it); 0: no chains.
    """

    batch: int = 100
    objective: Objective = dataclasses.field(default_factory=PathwiseJeffreys)
    tempered: bool = True
    chain: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= checks.finite("chain", self.chain) < 1:
            raise ValueError(f"chain must be in [0, 1), got {self.chain!r}")

    @property
    def needs_derivative(self) -> bool:
        return self.objective.uses_score or self._wants_chains

    @property
    def _wants_chains(self) -> bool:
        return self.chain > 0 and self.objective.uses_proposal

    def init(self, stage: Stage) -> FreshState:
        rows = STATES if self._wants_chains and stage.scale == 1 else 0
        return FreshState(
            Tempered(0.0 if self.tempered else 1.0), np.zeros((rows, stage.start.dim))
        )

    def update(
        self,
        stage: Stage,
        state: FreshState,
        model: Variables,
        rate: float,
        key: PRNGKeyArray,
    ) -> tuple[FreshState, Variables, float]:
        objective, n = self.objective, self.batch
        if len(state.chain) and not state.sampled:
            state = self._with_chains(stage, state, jr.fold_in(key, 10**6))
        drawn = objective.uses_proposal and not state.sampled
        cost = n * (1 + objective.uses_score + drawn)
        steps = min(self.steps, stage.affordable(cost))
        optimiser, relative = adam(self.clip_norm), schedule(max(steps, 1))
        trainable, rest = split_trainable(model)
        adam_state, target, losses = optimiser.init(trainable), state.target, []
        for i in range(steps):
            model = combine(trainable, rest)
            batch, target = self._batch(stage, model, target, state.chain, jr.fold_in(key, i))
            now = jnp.asarray(rate * stage.learning_rate * relative(i))
            trainable, adam_state, loss = _take_step(
                trainable, rest, adam_state, spread_tree(batch), now, objective, self.clip_norm
            )
            losses.append(float(loss))
        mean = float(np.mean(losses)) if losses else np.nan
        state = dataclasses.replace(state, target=target)
        return state, combine(local(trainable), rest), mean

    def _with_chains(self, stage: Stage, state: FreshState, key: PRNGKeyArray) -> FreshState:
        """The state with samples of q_1 by Hamiltonian Monte Carlo."""
        from msign.samplers.hmc import HMC  # which stands above inference

        share = int(self.chain * stage.affordable(1))
        chains = HMC(chains=max(1, min(CHAINS, share // PER_CHAIN)))
        with stage.simulator.limited(share):
            found = chains.draw(stage.simulator, stage.scale, len(state.chain), key)
        return dataclasses.replace(state, chain=np.asarray(found.u, np.float64), sampled=True)

    def _batch(
        self,
        stage: Stage,
        model: Variables,
        target: Tempered,
        chain: np.ndarray,
        key: PRNGKeyArray,
    ) -> tuple[Batch, Tempered]:
        """Fields of the model (and of q~, where asked for), simulated, and the target for them.

        Of the first stage's chains, where there are any, come samples of q_1 itself, whose weights
        are equal.
        """
        n, start, uses = self.batch, stage.start, self.objective
        noise = normal(jr.fold_in(key, 0), (n, model.dim))
        u, drawn, log_p = draw(model, noise)
        s = on_device(drawn)
        found = stage.simulator.evaluate(u, stage.scale, uses.uses_score)
        values = bounded_below(found.log_likelihood)
        log_q, slope = values, None
        if uses.uses_score:
            slope = model.reduce(jnp.asarray(found.gradient, s.dtype))
        if target.temperature < 1:  # where the posterior is the target, its start is not asked
            foot, foot_slope = map(gathered, log_ratio_and_score(start.alone, spread(drawn)))
            known = (values, np.asarray(foot, np.float64), np.asarray(log_p, np.float64))
            target = target.raised(*known, stage.bridge_ess * n)
            log_q = target.log_ratio(*known[:2])
            slope = None if slope is None else target.log_ratio(slope, foot_slope)
        proposal: tuple[Any, ...] = ()
        if uses.uses_proposal and len(chain):
            rows = generator(jr.fold_in(key, 1)).integers(len(chain), size=n)
            equal = jnp.zeros(n, s.dtype)
            proposal = (model.reduce(jnp.asarray(chain[rows], s.dtype)), equal, equal)
        elif uses.uses_proposal:
            u, other, ratio = draw(start, normal(jr.fold_in(key, 1), (n, model.dim)))
            there = bounded_below(stage.simulator.evaluate(u, stage.scale).log_likelihood)
            proposal = tuple(map(on_device, (other, target.log_ratio(there, ratio), ratio)))
        own = model.reduce(on_device(noise)), s, jnp.asarray(log_q, s.dtype), slope, None
        return Batch(*own, *proposal), target


@eqx.filter_jit
def _take_step(
    trainable: PyTree,
    rest: PyTree,
    state: PyTree,
    batch: Batch,
    rate: Array,
    objective: Objective,
    clip_norm: float,
) -> tuple[PyTree, PyTree, Array]:
    loss, gradient = jax.value_and_grad(lambda p: objective(combine(p, rest), batch))(trainable)
    stepped = optimiser_step(adam(clip_norm), trainable, gradient, state, rate)
    return *copied_here(stepped), loss
