"""Learning maps of single cells and the Gaussian before them, from fresh fields."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import numpy as np
import scipy.linalg
from jaxtyping import Array, PRNGKeyArray, PyTree

from msign import checks
from msign.bijections import CellFlow
from msign.inference.flows.directions import ROWS_PER_DIRECTION
from msign.inference.methods.base import Method, Stage
from msign.inference.methods.fresh import FreshState
from msign.inference.simulate import Simulated
from msign.inference.target import Tempered
from msign.noise import generator, on_device
from msign.training import adam, adam_step, combine, schedule, split_trainable
from msign.variables import Variables, draw

AT_ONCE = 2048  # rows of a regression summed at a time
SETTLED = 1 / 3  # of the steps, after which the maps of the cells move little


@dataclasses.dataclass(frozen=True)
class Cells(Method):
    """Ascend the evidence bound along the path of fresh fields, in antithetic pairs.

    Each field's gradient serves twice: it moves the maps of the cells, and pulled back to the noise
    it says, by regression, which Gaussian in front of them would be better. The model is where the
    posterior is from the start, so that there is no bridge.
    """

    steps: int = 200
    batch: int = 128

    @property
    def needs_derivative(self) -> bool:
        return True

    def init(self, stage: Stage) -> FreshState:
        return FreshState(Tempered(1.0))

    def observe(
        self, stage: Stage, state: FreshState, model: Variables, drawn: Simulated
    ) -> FreshState:
        return state

    def update(
        self, stage: Stage, state: FreshState, model: Variables, rate: float, key: PRNGKeyArray
    ) -> tuple[FreshState, Variables, float]:
        checks.instance("flow", model.flow, CellFlow)
        room = stage.limit - stage.simulator.nfs - stage.round_size
        steps = min(self.steps, max(0, room // (2 * self.batch)))
        relative, rng = schedule(max(steps, 1)), generator(key)
        trainable, rest = split_trainable(model)
        optimiser, losses = adam(self.clip_norm), []
        adam_state = optimiser.init(trainable)
        seen = _Regression(model.dim)
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
                trainable, rest, adam_state, on_device(z), on_device(score), now, self.clip_norm
            )
            if i >= SETTLED * steps:
                seen.add(z[good], np.asarray(pulled)[good])
        model = combine(trainable, rest)
        if seen.rows >= ROWS_PER_DIRECTION * (model.dim + 1):
            flow: Any = model.flow
            model = model.with_flow(flow.behind(*seen.gaussian()))
        mean = float(np.mean(losses[-max(1, steps // 10) :])) if losses else np.nan
        return state, model, mean


class _Regression:
    """Sums from which gradients pulled back to the noise are regressed on the noise.

    They are made of many rows at a time: the sums are large matrices, slow to be read and written.
    """

    def __init__(self, dim: int):
        self.rows, self.square, self.product = 0, np.zeros((dim, dim)), np.zeros((dim, dim))
        self.total = np.zeros(dim)
        self.waiting: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, z: np.ndarray, gradients: np.ndarray) -> None:
        self.rows += len(z)
        self.waiting.append((z.astype(gradients.dtype), gradients))
        if sum(len(z) for z, _ in self.waiting) >= AT_ONCE:
            self._sum()

    def _sum(self) -> None:
        if self.waiting:
            z, gradients = (np.concatenate(arrays) for arrays in zip(*self.waiting, strict=True))
            self.total += gradients.sum(0)
            self.square += z.T @ z
            self.product += z.T @ gradients
            self.waiting = []

    def gaussian(self) -> tuple[np.ndarray, np.ndarray]:
        """Matrix and shift of the Gaussian that the posterior, pulled back, is nearest to.

        Noise comes in pairs of opposite sign, so that the two do not disturb each other.
        """
        self._sum()
        fit = scipy.linalg.solve(self.square, self.product, assume_a="pos")
        values, vectors = scipy.linalg.eigh(-0.5 * (fit + fit.T))
        root = (vectors / np.sqrt(np.maximum(values, 0.25))) @ vectors.T
        return root, root @ (root @ (self.total / self.rows))


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
    ascent, pulled = pull(score - (model.log_ratio_and_score(s)[1] - s))
    descent = jax.tree.map(lambda g: -g / len(z), ascent)
    return *adam_step(adam(clip_norm), trainable, descent, state, rate), pulled - z
