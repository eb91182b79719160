"""Learning maps of single cells and the Gaussians before them, from fresh fields."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import numpy as np
import paramax
from jaxtyping import Array, PRNGKeyArray, PyTree

from msign.bijections import GaussianMap, GaussianModes
from msign.devices import copied_here, gathered, local, spread
from msign.inference.flows.directions import ROWS_PER_DIRECTION
from msign.inference.flows.gaussian import Regression, inverse_root, symmetric
from msign.inference.flows.modes import gaussian_modes
from msign.inference.methods.base import Stage
from msign.inference.methods.fresh import FreshState, OnFreshFields
from msign.inference.target import Tempered
from msign.noise import default_dtype, generator, on_device
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
        flow: Any = model.flow
        seen = ModesSeen(flow.gaussian)
        for i in range(steps):
            z = seen.pairs(rng.normal(size=(self.batch // 2, model.dim)))
            u, _, log_ratio = draw(combine(trainable, rest), z)
            found = stage.simulator.evaluate(u, stage.scale, gradient=True)
            assert found.gradient is not None
            good = np.isfinite(found.log_likelihood)
            log_weights = found.log_likelihood - log_ratio
            losses.append(-float(np.mean(log_weights[good])))
            score = np.where(good[:, None], found.gradient - u, 0.0)
            now = on_device(rate * stage.learning_rate * float(relative(i)))
            trainable, adam_state, pulled = _step(
                trainable, rest, adam_state, spread(z), spread(score), now, self.clip_norm
            )
            seen.add(z, gathered(pulled), log_weights)
        model = combine(local(trainable), rest)
        flow = model.flow
        model = model.with_flow(flow.with_gaussian(seen.better()))
        mean = float(np.mean(losses[-max(1, steps // 10) :])) if losses else np.nan
        return state, model, mean


class ModesSeen:
    """Fields of a map of one or several Gaussians, with gradients that say which would be better.

    Each Gaussian sees the gradients at its own noise, in pairs of opposite noise.
    """

    def __init__(self, gaussian: GaussianMap | GaussianModes):
        self._gaussian = gaussian
        self._regressions = [Regression(gaussian.shape[0]) for _ in range(gaussian.modes)]
        self._log_weights: list[list[np.ndarray]] = [[] for _ in range(gaussian.modes)]

    def pairs(self, half: np.ndarray) -> np.ndarray:
        """Noise `(2 n, d)`: the given one, and what leads to the other side of the same mode."""
        half = half.astype(default_dtype())
        return np.concatenate([half, np.asarray(_opposite(self._gaussian, on_device(half)))])

    def add(self, z: np.ndarray, pulled: np.ndarray, log_weights: np.ndarray) -> None:
        """Noise in pairs, the gradients of log posterior - log model there, and log-weights."""
        mode, own, slope = (np.asarray(a) for a in _local(self._gaussian, on_device(z)))
        gradient = pulled.copy()
        gradient[:, 0] /= slope
        gradient -= own
        there, opposite = np.split(gradient, 2)
        first, second = np.split(np.where(np.isfinite(log_weights), mode, -1), 2)
        for k, regression in enumerate(self._regressions):
            both = (first == k) & (second == k)
            regression.add(own[: len(there)][both], there[both], opposite[both])
            self._log_weights[k].append(log_weights[mode == k])

    def better(self) -> GaussianMap | GaussianModes:
        """The map with what was learned of each Gaussian of which enough was seen, and its mass."""
        parts = self._gaussian.gaussians()
        for k, regression in enumerate(self._regressions):
            mean, matrix = parts[k]
            if 2 * regression.pairs >= ROWS_PER_DIRECTION * (len(mean) + 1):
                slope, curvature = regression.solved()
                root, _ = inverse_root(symmetric(curvature), WIDENED**-2)
                parts[k] = mean + matrix @ (root @ (root.T @ slope)), matrix @ root
        return gaussian_modes(parts, self._shares())

    def _shares(self) -> np.ndarray:
        """Masses by the weights of the fields of each mode; as before where there are none."""
        shares = np.asarray(paramax.unwrap(self._gaussian.shares), np.float64)
        if len(shares) == 1 or not self._log_weights[0]:
            return shares
        weights = [np.concatenate(each) for each in self._log_weights]
        means = np.array([_log_mean(each) for each in weights])
        if not np.isfinite(means).all():
            return shares
        return shares * np.exp(means - means.max())


def _log_mean(log_weights: np.ndarray) -> float:
    """Log of the mean weight; minus infinity without a field."""
    finite = log_weights[np.isfinite(log_weights)]
    return float(np.logaddexp.reduce(finite) - np.log(len(log_weights))) if len(finite) else -np.inf


@eqx.filter_jit
def _opposite(gaussian: GaussianMap | GaussianModes, z: Array) -> Array:
    return jax.vmap(paramax.unwrap(gaussian).opposite)(z)


@eqx.filter_jit
def _local(gaussian: GaussianMap | GaussianModes, z: Array) -> tuple[Array, Array, Array]:
    return jax.vmap(paramax.unwrap(gaussian).local)(z)


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
    """A step of Adam, and gradients of log posterior - log model by the noise.

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
    return *copied_here(stepped), pulled
