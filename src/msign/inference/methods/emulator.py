"""Learning from an emulator: a polynomial fitted to all that the stage has simulated.

A flow of many variables overfits any pool that can be paid for: from each simulation it learns one
number. The polynomial uses all observations of each, and is a target that costs nothing. There is
no bridge: where simulations are few or far, the polynomial's own error makes its posterior flat.

A network that moves whole fields of many cells is shown the directions that data inform, found
anew in each round; along all others its target is the prior.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from msign import checks
from msign.devices import fields_at_once, local, spread_here
from msign.inference.flows import Informed
from msign.inference.flows.directions import MOST_VARIABLES, subspace_from_gradients
from msign.inference.methods.base import Method, MethodState, Stage
from msign.inference.methods.objectives import Batch, PathwiseJeffreys
from msign.inference.methods.polynomial import LATEST, Polynomial, fit_polynomial
from msign.inference.methods.pool import PoolState, add_to_pool, init_pool
from msign.inference.simulate import Simulated, drawn_parts
from msign.inference.target import Tempered
from msign.noise import on_device
from msign.training import combine, descend, muon, split_trainable
from msign.variables import Variables

VALUES_KEPT = 2**25  # numbers of the fields that are kept


class FieldsSeen(MethodState):
    """Fields of a network that moves all cells, and what was predicted of them; the latest.

    Attributes:
        target: The posterior: there is no bridge.
        s: Whitened coordinates `(n, d)`.
        features: Of the observations `(n, m)`.
    """

    target: Tempered
    s: np.ndarray
    features: np.ndarray

    @classmethod
    def none(cls, dim: int, observations: int) -> "FieldsSeen":
        """Before the first round."""
        empty = np.zeros((0, dim), np.float32), np.zeros((0, observations), np.float32)
        return cls(Tempered(1.0), *empty)

    def add(self, s: np.ndarray, features: np.ndarray) -> "FieldsSeen":
        """With further fields, and without the earliest where there are too many."""
        last = -min(LATEST, VALUES_KEPT // s.shape[1])
        both = (self.s, s), (self.features, features)
        kept = (np.concatenate(pair)[last:].astype(np.float32) for pair in both)
        return FieldsSeen(self.target, *kept)

    def log_evidence(self) -> None:
        return None

    @property
    def counts(self) -> list[int]:
        return [len(self.s)]

    def shaped(self, counts: Sequence[int], model: Variables) -> "FieldsSeen":
        own = (np.zeros((sum(counts), a.shape[1]), a.dtype) for a in (self.s, self.features))
        return FieldsSeen(self.target, *own)


class Emulated(eqx.Module):
    """The log-likelihood of a polynomial in variables, or in their coordinates along directions.

    Attributes:
        polynomial: The emulator.
        basis: Orthonormal directions `(m, r)`; None: it is one of all variables.
    """

    polynomial: Polynomial
    basis: Array | None

    def log_likelihood(self, s: Array) -> tuple[Array, Array]:
        """Of the variables of one field, up to a constant, and its gradient `(m,)`."""
        if self.basis is None:
            return self.polynomial.log_likelihood(s)
        value, slope = self.polynomial.log_likelihood(s @ self.basis)
        return value, self.basis @ slope


@dataclasses.dataclass(frozen=True)
class Emulator(Method):
    """Train pathwise on fresh samples of the emulated target, which true simulations assess.

    Attributes:
        steps: Gradient steps per round.
        batch: Fields per gradient step.
        clip_norm: Largest norm of a gradient.
        cubic: Most leading variables that have cubic terms.
        variables: Most variables of a polynomial, where there is a derivative: of a network that
            moves more it sees the leading directions of the likelihood's gradients.
    """

    steps: int = 600
    cubic: int = 12
    variables: int = MOST_VARIABLES

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer("variables", self.variables, 1)

    @property
    def needs_observations(self) -> bool:
        return True

    def fewest_fields(self, variables: int) -> int:
        return LATEST  # what the polynomial misses falls with every field that it is given

    def init(self, stage: Stage) -> PoolState | FieldsSeen:
        problem, start = stage.simulator.problem, stage.start
        whole = start.basis is None and start.size > self.variables
        if whole and problem.differentiable:
            return FieldsSeen.none(start.size, problem.layout.m)
        return init_pool(stage, problem.layout.m, Tempered(1.0))

    def observe(
        self, stage: Stage, state: PoolState | FieldsSeen, model: Variables, drawn: Simulated
    ) -> PoolState | FieldsSeen:
        if isinstance(state, FieldsSeen):
            return state.add(drawn.s, drawn.features)
        return add_to_pool(stage, state, model, drawn)

    def update(
        self,
        stage: Stage,
        state: PoolState | FieldsSeen,
        model: Variables,
        rate: float,
        key: PRNGKeyArray,
    ) -> tuple[PoolState | FieldsSeen, Variables, float]:
        basis = None
        if isinstance(state, FieldsSeen):
            state, basis = self._directions(stage, state, model, jr.fold_in(key, 0))
            if basis is None:
                return state, model, np.nan
            s, features = state.s @ basis, state.features
        else:
            s, features = state.pool.s, state.pool.features
        usable = np.all(np.isfinite(features), axis=1)
        likelihood = stage.simulator.likelihood(stage.scale)
        polynomial = fit_polynomial(s[usable], features[usable], self.cubic, likelihood)
        trainable, rest = split_trainable(model.alone)
        trained, loss = _steps(
            trainable,
            rest,
            Emulated(polynomial, None if basis is None else on_device(basis)),
            on_device(rate * stage.learning_rate),
            jr.fold_in(key, 1),
            self.steps,
            self.batch,
            self.clip_norm,
        )
        return state, model.with_flow(combine(local(trained), rest).flow), float(loss)

    def _directions(
        self, stage: Stage, state: FieldsSeen, model: Variables, key: PRNGKeyArray
    ) -> tuple[FieldsSeen, np.ndarray | None]:
        """The directions that gradients at fields of the model pick out, and these fields kept.

        None where the budget does not last for a gradient, or where all of them vanish.
        """
        n, seen = min(Informed.per_direction * self.variables, stage.affordable(2)), []
        size = fields_at_once(model.dim, stage.simulator.problem.traceable)
        for u, s, _ in drawn_parts(model, key, n, size):
            found = stage.simulator.evaluate(u, stage.scale, gradient=True)
            assert found.gradient is not None
            seen.append((s, found.features, found.gradient))
        if not seen:
            return state, None
        s, features, gradients = (np.concatenate(column) for column in zip(*seen, strict=True))
        gradients = gradients[np.isfinite(features).all(1)]
        state = state.add(s, features)
        if not gradients.any():
            return state, None
        along = subspace_from_gradients(gradients, self.variables, stage.tolerance)
        return state, along.basis.astype(np.float32)


@eqx.filter_jit
def _steps(
    trainable: PyTree,
    rest: PyTree,
    emulated: Emulated,
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
