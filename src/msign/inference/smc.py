"""Sequential Monte Carlo from the flow to the posterior, where importance weights are not enough.

The flow makes fields of standard normal z. Seen from there the posterior is N(z; 0, I) w(z), with
w = likelihood x prior / flow the importance weight, and the path from one to the other

    (1 - T) log p_flow + T log posterior    is    log N(z; 0, I) + T log w(z),

from exact samples at T = 0. At each temperature particles are weighted, resampled, and moved by a
Markov chain (`moves.py`) in all d coordinates: directions that no flow moves are close to the
prior under the posterior, and no more.

Everything here is a step of the algorithm; `refine.py` runs them under a budget and keeps files.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np
import paramax
from scipy.optimize import brentq
from scipy.special import expit

from msign import checks
from msign.inference.moves import Frame, adapted, log_drift, proposed, steep_directions
from msign.inference.simulate import part_size
from msign.noise import generator, normal
from msign.problems.inverse import InverseProblem
from msign.problems.simulator import Simulator
from msign.variables import Variables, draw, pulled_back
from msign.weights import highest_power, normalised, resampled

FEWEST, MOST = 100, 1000  # particles, unless more fields are asked for
SWEEPS_PAID = 100  # moves of every particle that a budget should pay for
PER_VARIABLE = 10  # particles for each variable whose covariance they estimate


@dataclasses.dataclass(frozen=True)
class SMC:
    """Options of sequential Monte Carlo.

    Attributes:
        moves: `pcn`, which needs no derivative; `langevin`, which does, costs two simulations where
            pCN costs one, and finds by itself the directions that data determine; `auto`: pCN
            unless these are unknown (whole networks in many dimensions) and there is a derivative.
        particles: Number of particles; None: a hundredth of the budget, between 100 and 1000. Never
            fewer than the fields asked for.
        ess: Part of the particles that the weights of the next temperature are worth.
        correlation: Particles move on until this much is left of where they were: of their
            coordinates, and of their log-weights.
        sweeps: Most moves of each particle per temperature.
        acceptance: Of proposals, to which their size is adapted; None: 0.3 (pCN), 0.57 (Langevin).
    """

    moves: str = "auto"
    particles: int | None = None
    ess: float = 0.5
    correlation: float = 0.3
    sweeps: int = 50
    acceptance: float | None = None

    def __post_init__(self) -> None:
        checks.one_of("moves", self.moves, ("auto", "pcn", "langevin"))
        checks.integer("sweeps", self.sweeps, 1)
        if self.particles is not None:
            checks.integer("particles", self.particles, 2)
        for name in ("ess", "correlation", "acceptance"):
            value = getattr(self, name)
            if value is not None and not 0 < checks.finite(name, value) < 1:
                raise ValueError(f"{name} must be in (0, 1), got {value!r}")

    @property
    def wanted(self) -> float:
        """Acceptance to which the size of proposals is adapted."""
        return self.acceptance or (0.57 if self.gradient else 0.3)

    @property
    def gradient(self) -> bool:
        """Whether moves need a derivative."""
        return self.moves == "langevin"

    @property
    def cost(self) -> int:
        """Simulations that weighing or moving every particle once takes."""
        return (self.particles or 0) * (2 if self.gradient else 1)

    def settled(self, problem: InverseProblem, flow: Variables, n: int, budget: int) -> "SMC":
        """With moves and particles chosen for a problem and a flow."""
        if self.moves == "langevin" and not problem.differentiable:
            raise ValueError("moves must not be 'langevin': the forward map has no derivative")
        share = int(np.clip(budget // SWEEPS_PAID, FEWEST, MOST))
        particles, moves = max(n, self.particles or share), self.moves
        if moves == "auto":
            known = flow.basis is not None or 2 * PER_VARIABLE * flow.dim <= particles
            moves = "langevin" if problem.differentiable and not known else "pcn"
        return dataclasses.replace(self, moves=moves, particles=particles)


class Particles(NamedTuple):
    """N particles.

    Attributes:
        z: Their places in the noise of the flow `(n, d)`.
        log_weight: Log w `(n,)`.
        slope: Gradient of log w in z `(n, d)`, for moves that need it.
        family: Number of the draw from which each descends `(n,)`.
    """

    z: np.ndarray
    log_weight: np.ndarray
    slope: np.ndarray | None
    family: np.ndarray


class State(NamedTuple):
    """All that changes from temperature to temperature; what a checkpoint holds.

    Attributes:
        particles: Of equal weight at this temperature.
        temperature: T.
        log_evidence: Log of the normalising constant at T.
        angles: Of the next proposals outside and inside of the frame's directions.
        steps: What was done at each temperature; `variance` is that of the evidence so far over
            its square, from the masses of families.
    """

    particles: Particles
    temperature: float
    log_evidence: float
    angles: list[float]
    steps: list[dict[str, float]]


class Move(NamedTuple):
    """How all particles are moved once.

    Attributes:
        temperature: T.
        angle: Of the proposals.
        inside: Whether along the directions of the frame, or along all others.
        frames: Coordinates for the first and for the second half of the particles.
    """

    temperature: float
    angle: float
    inside: bool
    frames: tuple[Frame, Frame]


class Sampler(NamedTuple):
    """Sequential Monte Carlo of one posterior.

    Attributes:
        variables: The flow.
        scale: Of its fields.
        simulator: Of the problem.
        options: With moves and particles settled.
        key: Of all random numbers.
    """

    variables: Variables
    scale: int
    simulator: Simulator
    options: SMC
    key: Any

    def start(self) -> State:
        """Draws of the flow with their weights."""
        n, d = self.options.particles or 0, self.variables.dim
        parts = []
        for i, rows in enumerate(row_parts(n, d)):
            z = normal(jr.fold_in(self._key(0, 0), i), (rows.stop - rows.start, d))
            parts.append(Particles(z, *self.weigh(z), np.arange(rows.start, rows.stop)))
        return State(_joined(parts), 0.0, 0.0, [0.5, 0.5], [])

    def weigh(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Log w of places in the noise, and its gradient if moves need it."""
        u, _, log_ratio = draw(self.variables, z)
        found = self.simulator.evaluate(u, self.scale, self.options.gradient)
        log_weight = found.log_likelihood - log_ratio.astype(np.float64)
        if found.gradient is None:
            return log_weight, None
        return log_weight, pulled_back(self.variables, z, found.gradient.astype(z.dtype))

    def next(self, state: State) -> State:
        """One temperature further: weights, resampling, moves."""
        before, log_weight = state.temperature, state.particles.log_weight
        worth = self.options.ess * np.isfinite(log_weight).sum()
        if not worth:
            raise RuntimeError("no simulation of the flow's draws succeeded: there is no posterior")
        found = highest_power(lambda t: (t - before) * log_weight, worth, before)
        temperature = max(found, math.nextafter(before, 1))  # weights too wide for any bisection
        step = (temperature - before) * log_weight
        mass = np.bincount(state.particles.family, normalised(step))
        variance = float((mass**2).sum() - 1 / len(step))
        key = jr.fold_in(self.key, 1 + len(state.steps))
        index = resampled(step, len(step), generator(key).uniform())
        particles = _rows(state.particles, index)
        state = state._replace(particles=particles, temperature=temperature)
        state = self.moved(state, self.affordable(before, temperature))
        ratio = bridged(step, (temperature - before) * state.particles.log_weight)
        steps = [*state.steps[:-1], {**state.steps[-1], "variance": variance}]
        return state._replace(log_evidence=state.log_evidence + ratio, steps=steps)

    def affordable(self, before: float, temperature: float) -> int:
        """Sweeps that leave as much of the budget for each temperature that is still to come."""
        coming = 1 + temperatures_left(before, temperature)
        return int(
            min(self.options.sweeps, max(1, self.simulator.left // self.options.cost // coming))
        )

    def moved(self, state: State, most: int) -> State:
        """Particles moved until they have forgotten where they were, or `most` times.

        Outside of the frame's directions what is left of the coordinates tells; inside, where they
        may stay in their mode, the correlation of the log-weights.
        """
        particles, angles = state.particles, list(state.angles)
        first, accepted = particles.log_weight, list[float]()
        frames = self.frames(particles, state.temperature)
        has_inside = any(frame.basis.shape[1] > 0 for frame in frames)
        kept = 0.0 if all(frame.is_whole for frame in frames) else 1.0
        left, inside = 1.0, False
        while len(accepted) < most and max(kept, left) > self.options.correlation:
            inside = has_inside and (kept <= self.options.correlation or not inside)
            inside = inside and left > self.options.correlation
            key = self._key(1 + len(state.steps), 1 + len(accepted))
            move = Move(state.temperature, angles[inside], inside, frames)
            particles, acceptance = self.sweep(particles, move, key)
            accepted.append(acceptance)
            left = _correlation(first, particles.log_weight)
            if not inside:
                kept *= 1 - acceptance * (1 - np.cos(angles[inside]))
            angles[inside] = adapted(angles[inside], acceptance, self.options.wanted)
        done = {
            "temperature": state.temperature,
            "sweeps": len(accepted),
            "acceptance": float(np.mean(accepted)),
            "correlation": float(max(kept, left)),
            "nfs": self.simulator.nfs,
        }
        return state._replace(particles=particles, angles=angles, steps=[*state.steps, done])

    def frames(self, particles: Particles, temperature: float) -> tuple[Frame, Frame]:
        """Coordinates for the moves of the first and of the second half of the particles.

        Each is that of the other half: moves leave a density invariant if their coordinates do not
        depend on what is moved.
        """
        first, second = (
            Frame.of(half.z, self.directions(half, temperature))
            for half in (_rows(particles, rows) for rows in _halves(len(particles.z)))
        )
        return second, first

    def directions(self, particles: Particles, temperature: float) -> np.ndarray:
        """Directions `(d, m)` whose covariance particles can tell: steep ones, or the flow's."""
        n, d = particles.z.shape
        most = n // PER_VARIABLE
        if particles.slope is not None:
            return steep_directions(temperature * particles.slope, most)
        if self.variables.basis is None:
            return np.eye(d, d if d <= most else 0, dtype=particles.z.dtype)
        return np.asarray(paramax.unwrap(self.variables.basis))[:, :most]  # the stiffest first

    def sweep(self, particles: Particles, move: Move, key: Any) -> tuple[Particles, float]:
        """Every particle moved once, some at a time, and the mean acceptance."""
        parts, chances = list[Particles](), []
        for rows, frame in zip(_halves(len(particles.z)), move.frames, strict=True):
            half = _rows(particles, rows)
            for piece in row_parts(*half.z.shape):
                now = jr.fold_in(key, len(parts))
                part, chance = self._step(_rows(half, piece), frame, move, now)
                parts.append(part)
                chances.append(chance)
        return _joined(parts), float(np.concatenate(chances).mean())

    def _step(
        self, old: Particles, frame: Frame, move: Move, key: Any
    ) -> tuple[Particles, np.ndarray]:
        """Particles after a proposal to each, and the chance with which it was accepted."""
        rng, angle, t = generator(key), move.angle, move.temperature

        def seen(particles: Particles, y: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
            """Log-density over that of the reference, and its gradient, in the frame."""
            value = t * particles.log_weight + frame.log_change(y, particles.z)
            if particles.slope is None:
                return value, None
            slope = frame.slope(y, particles.z, t * particles.slope)
            return value, frame.part(slope, move.inside)

        y = frame.enter(old.z)
        value, slope = seen(old, y)
        whole = proposed(y, slope, rng.standard_normal(y.shape, y.dtype), angle)
        y_new = y + frame.part(whole - y, move.inside)
        z = frame.leave(y_new)
        new = Particles(z, *self.weigh(z), old.family)
        value_new, slope_new = seen(new, y_new)
        log_chance = value_new - value
        log_chance = log_chance + log_drift(y_new, y, slope_new, angle)
        log_chance = log_chance - log_drift(y, y_new, slope, angle)
        chance = np.exp(np.minimum(np.nan_to_num(log_chance, nan=-np.inf), 0.0))
        accept = rng.uniform(size=len(chance)) < chance
        kept = jax.tree.map(
            lambda a, b: np.where(accept.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old
        )
        return kept, chance

    def _key(self, temperature: int, sweep: int) -> Any:
        return jr.fold_in(jr.fold_in(self.key, temperature), sweep)


def bridged(before: np.ndarray, after: np.ndarray) -> float:
    """Log of the ratio of two normalising constants, from the log of the densities' ratio.

    It is given at samples of the denominator (`before`) and of the numerator (`after`, as many).
    This is Bennett's estimate: of all that see both sides the one of least variance, if samples
    are independent. The mean over one side alone misses what its samples do not reach.
    """
    margin = 1 + np.log(2 * len(before))
    finite = np.concatenate([a[np.isfinite(a)] for a in (before, after)])

    def excess(ratio: float) -> float:
        return float(expit(before - ratio).sum() - expit(ratio - after).sum())

    return float(brentq(excess, finite.min() - margin, finite.max() + margin, xtol=1e-10))


def temperatures_left(before: float, temperature: float) -> int:
    """A guess of how many temperatures are to come: steps that stay as long, or grow as they do."""
    if temperature == 1:
        return 0
    same = (1 - temperature) / (temperature - before)
    ratio = max(temperature / before, 1 + 1e-9) if before > 0 else 2.0
    return math.ceil(min(same, -math.log(temperature) / math.log(ratio)))


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    spread = a.std() * b.std()
    return float(((a - a.mean()) * (b - b.mean())).mean() / spread) if spread > 0 else 0.0


def row_parts(n: int, d: int) -> list[slice]:
    """Rows of `(n, d)` that are held at once."""
    size = part_size(d)
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def _halves(n: int) -> tuple[slice, slice]:
    return slice(0, n // 2), slice(n // 2, n)


def _rows(particles: Particles, rows: Any) -> Particles:
    return jax.tree.map(lambda a: a[rows], particles)


def _joined(parts: list[Particles]) -> Particles:
    return jax.tree.map(lambda *a: np.concatenate(a), *parts)
