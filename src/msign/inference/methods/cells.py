"""Learning maps of single cells and the Gaussian before them, from fresh fields."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from msign.devices import copied_here, gathered, local, spread
from msign.inference.flows.directions import ROWS_PER_DIRECTION
from msign.inference.flows.gaussian import Regression, inverse_root, symmetric
from msign.inference.methods.base import Stage
from msign.inference.methods.fresh import FreshState, OnFreshFields
from msign.inference.target import Tempered
from msign.noise import generator, on_device
from msign.training import adam, combine, optimiser_step, schedule, split_trainable
from msign.variables import Variables, draw

WIDENED = 2.0  # times that a round may widen any direction


@dataclasses.dataclass(frozen=True)
class Cells(OnFreshFields):
    """Ascend the evidence bound along the path of fresh fields, in antithetic pairs.

    Each field's gradient serves twice: it moves the maps of the cells, and pulled back to the noise
    it says, by regression, which Gaussian in front of them would be better. The model is where the
    posterior is from the start, so that there is no bridge.

    Attributes:
        steps: Gradient steps per round.
        batch: Fields per gradient step.
        clip_norm: Largest norm of a gradient.
    """

    steps: int = 200
    batch: int = 128

    @property
    def needs_derivative(self) -> bool:
        return True

    @property
    def needs_cells(self) -> bool:
        return True

    def init(self, stage: Stage) -> FreshState:
        return FreshState(Tempered(1.0))

    def update(
        self, stage: Stage, state: FreshState, model: Variables, rate: float, key: PRNGKeyArray
    ) -> tuple[FreshState, Variables, float]:
        steps = min(self.steps, stage.affordable(2 * self.batch))
        relative, rng = schedule(max(steps, 1)), generator(key)
        trainable, rest = split_trainable(model)
        optimiser, losses = adam(self.clip_norm), []
        adam_state = optimiser.init(trainable)
        seen = Regression(model.dim)
        for i in range(steps):
            half = rng.normal(size=(self.batch // 2, model.dim))
            z = np.concatenate([half, -half])
            u, _, log_ratio = draw(combine(trainable, rest), z)
            found = stage.simulator.evaluate(u, stage.scale, gradient=True)
            assert found.gradient is not None
            good = np.isfinite(found.log_likelihood)
            losses.append(float(np.mean((log_ratio - found.log_likelihood)[good])))
            score = np.where(good[:, None], found.gradient - u, 0.0)
            now = on_device(rate * stage.learning_rate * float(relative(i)))
            trainable, adam_state, pulled = _step(
                trainable, rest, adam_state, spread(z), spread(score), now, self.clip_norm
            )
            pairs = np.logical_and(*np.split(good, 2))
            there, opposite = np.split(gathered(pulled), 2)
            seen.add(half[pairs].astype(there.dtype), there[pairs], opposite[pairs])
        model = combine(local(trainable), rest)
        if 2 * seen.pairs >= ROWS_PER_DIRECTION * (model.dim + 1):
            slope, curvature = seen.solved()
            root, _ = inverse_root(symmetric(curvature), WIDENED**-2)
            flow: Any = model.flow
            model = model.with_flow(flow.behind(root, root @ (root.T @ slope)))
        mean = float(np.mean(losses[-max(1, steps // 10) :])) if losses else np.nan
        return state, model, mean


@eqx.filter_jit
def _step(
    trainable: PyTree,
    rest: PyTree,
    state: PyTree,
    z: Array,
    score: Array,
    rate: Array,
    clip_norm: float,
) -> tuple[PyTree, PyTree, Array]:
    """A step of Adam, and gradients of the pulled-back log posterior at the noise.

    `score` are gradients of the log posterior at the fields that the noise becomes. Only the path
    of the fields is followed: so the noise of the step vanishes where the model is right.
    """

    def path(trainable: PyTree, z: Array) -> Array:
        model: Any = combine(trainable, rest)
        return model.forward(z)[0]

    model: Any = combine(trainable, rest)
    s, pull = jax.vjp(path, trainable, z)
    ascent, pulled = pull(score - model.score(s, z))
    descent = jax.tree.map(lambda g: -g / len(z), ascent)
    stepped = optimiser_step(adam(clip_norm), trainable, descent, state, rate)
    return *copied_here(stepped), pulled - z
