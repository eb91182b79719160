"""Learning from an emulator: a polynomial fitted to all that the stage has simulated.

A flow of many variables overfits any pool that can be paid for: from each simulation it learns one
number. The polynomial uses all observations of each, and is a target that costs nothing. There is
no bridge: where simulations are few or far, the polynomial's own error makes its posterior flat.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from msign.devices import local, spread_here
from msign.inference.methods.base import Method, Stage
from msign.inference.methods.objectives import Batch, PathwiseJeffreys
from msign.inference.methods.polynomial import LATEST, Polynomial, fit_polynomial
from msign.inference.methods.pool import PoolState, add_to_pool, init_pool
from msign.inference.simulate import Simulated
from msign.inference.target import Tempered
from msign.noise import on_device
from msign.training import combine, descend, muon, split_trainable
from msign.variables import Variables


@dataclasses.dataclass(frozen=True)
class Emulator(Method):
    """Train pathwise on fresh samples of the emulated target, which true simulations assess.

    Attributes:
        steps: Gradient steps per round.
        batch: Fields per gradient step.
        clip_norm: Largest norm of a gradient.
        cubic: Most leading variables that have cubic terms.
    """

    steps: int = 600
    cubic: int = 12

    @property
    def needs_few_variables(self) -> bool:
        return True

    @property
    def needs_observations(self) -> bool:
        return True

    def fewest_fields(self, variables: int) -> int:
        return LATEST  # what the polynomial misses falls with every field that it is given

    def init(self, stage: Stage) -> PoolState:
        return init_pool(stage, stage.simulator.problem.layout.m, Tempered(1.0))

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
    ) -> tuple[PoolState, Variables, float]:
        pool = state.pool
        usable = np.all(np.isfinite(pool.features), axis=1)
        emulated = fit_polynomial(
            pool.s[usable],
            pool.features[usable],
            self.cubic,
            stage.simulator.likelihood(stage.scale),
        )
        trainable, rest = split_trainable(model.alone)
        trained, loss = _steps(
            trainable,
            rest,
            emulated,
            on_device(rate * stage.learning_rate),
            jr.fold_in(key, 1),
            self.steps,
            self.batch,
            self.clip_norm,
        )
        return state, model.with_flow(combine(local(trained), rest).flow), float(loss)


@eqx.filter_jit
def _steps(
    trainable: PyTree,
    rest: PyTree,
    emulated: Polynomial,
    learning_rate: Array,
    key: PRNGKeyArray,
    steps: int,
    batch: int,
    clip_norm: float,
) -> tuple[PyTree, Array]:
    """Descend on fresh samples of the model at every step."""
    objective = PathwiseJeffreys()

    def loss(params: PyTree, key: PRNGKeyArray) -> Array:
        model: Any = combine(params, rest)
        z = spread_here(jr.normal(key, (batch, model.size)))
        moved = model.forward(z)[0]
        s = jax.lax.stop_gradient(moved)
        return objective(model, Batch(z, s, *jax.vmap(emulated.log_likelihood)(s), moved))

    keys = jr.split(key, steps)
    return descend(loss, trainable, keys, learning_rate, muon(clip_norm))
