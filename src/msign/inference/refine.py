"""Sequential Monte Carlo from the flow to the posterior, where importance weights are not enough.

The flow makes fields of standard normal z. Seen from there the posterior is N(z; 0, I) w(z), with
w = likelihood x prior / flow the importance weight, and the path from one to the other

    (1 - T) log p_flow + T log posterior    is    log N(z; 0, I) + T log w(z),

from exact samples at T = 0. At each temperature particles are weighted, resampled, and moved by a
Markov chain (`moves.py`) in all d coordinates: directions that no flow moves are close to the
prior under the posterior, and no more.

Errors come from families, the particles that descend from one draw of the flow (Chan and Lai 2013,
Lee and Whiteley 2018): draws are independent, so families are, and what resampling, poor mixing
and lost modes do to an estimate shows in the sizes of families. It costs no simulation, where
independent repetitions would each have to find their own temperatures with fewer particles.
"""

import dataclasses
import math
import os
import time
import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import paramax
from jaxtyping import ArrayLike

from msign import archive, checks
from msign.diagnostics.modes import find_modes
from msign.inference.moves import Frame, adapted, log_drift, proposed, steep_directions
from msign.inference.simulate import part_size
from msign.noise import default_dtype, generator, normal
from msign.problems.inverse import InverseProblem, missing_forward
from msign.problems.simulator import BudgetExceeded, Simulator
from msign.progress import ProgressBar
from msign.rundir import RunDirectory
from msign.variables import Variables, draw, pulled_back
from msign.weights import highest_power, lost_evidence, resampled

SHOWN = 32  # variables in which modes are looked for
FEWEST, MOST = 100, 1000  # particles, unless more fields are asked for
SWEEPS_PAID = 100  # moves of every particle that a budget should pay for
PER_VARIABLE = 10  # particles for each variable whose covariance they estimate
FEW_FAMILIES = 20  # draws below which no error can be estimated
ROUGH_EVIDENCE = 0.3  # standard error of the log evidence that is large


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


class Refined(NamedTuple):
    """Fields of the posterior by sequential Monte Carlo, all of equal weight.

    Attributes:
        fields: `(n, *field_shape)`.
        families: Which draw of the flow each field descends from `(n,)`: fields of one family are
            dependent (see `stderr`).
        log_evidence: Log of the mean of likelihood over the prior.
        log_evidence_stderr: Its standard error.
        temperatures: Of the path, from 0 to 1.
        acceptance: Fraction of accepted proposals.
        correlation: What was left of the particles' starting point at the temperature at which
            they moved least.
        particles: Number of particles behind all estimates; `fields` are n of them.
        distinct: Draws of the flow from which the particles descend.
        mode_fractions: Masses of the posterior's modes, as far as the particles show them.
        mode_fractions_stderr: Their standard errors.
        nfs: Forward simulations used.
        failures: Simulations that were rejected.
        seconds: Time used.
        lost: Log evidence known from training above this one: a mode is missing (0: none for
            certain).
    """

    fields: np.ndarray
    families: np.ndarray
    log_evidence: float
    log_evidence_stderr: float
    temperatures: tuple[float, ...]
    acceptance: float
    correlation: float
    particles: int
    distinct: int
    mode_fractions: tuple[float, ...]
    mode_fractions_stderr: tuple[float, ...]
    nfs: int
    failures: int
    seconds: float
    lost: float = 0.0

    def stderr(self, values: ArrayLike) -> np.ndarray:
        """Standard error of the mean over the fields of `values` `(n, ...)`."""
        return family_stderr(np.asarray(values), self.families)

    @property
    def verdict(self) -> str:
        """In words, whether the fields can be trusted."""
        figures = (
            f"{self.distinct} draws of the flow are behind {self.particles} particles, log "
            f"evidence {self.log_evidence:.4g} +- {self.log_evidence_stderr:.2g}, correlation "
            f"with their start at most {self.correlation:.2f}"
        )
        if self.lost > 0:
            return (
                f"NOT RELIABLE: {figures}, but fields simulated in training carry "
                f"{np.exp(self.lost):.3g} times the mass: the flow has lost a mode, and so have "
                "these fields. Give the fit a larger budget or a richer flow."
            )
        if self.distinct < FEW_FAMILIES:
            return f"NOT RELIABLE: {figures}. Give it a larger budget and more particles."
        if self.log_evidence_stderr > ROUGH_EVIDENCE or self.correlation > 0.7:
            return f"ROUGH: {figures}. Give it a larger budget, more particles or more sweeps."
        return f"GOOD: {figures}. (A mode that the flow never visits is still not found.)"

    def numbers(self) -> dict[str, Any]:
        """All but the fields, as plain JSON values."""
        values = {k: v for k, v in self._asdict().items() if k not in ("fields", "families")}
        return {**values, "verdict": self.verdict}


def family_stderr(values: np.ndarray, families: np.ndarray) -> np.ndarray:
    """Standard error of the mean of values `(n, ...)` whose families are independent."""
    _, index = np.unique(families, return_inverse=True)
    sums = np.zeros((index.max() + 1, *values.shape[1:]))
    np.add.at(sums, index, values - values.mean(0))
    return np.sqrt((sums**2).sum(0)) / len(values)


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
        steps: What was done at each temperature.
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
        for i, rows in enumerate(_parts(n, d)):
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
        log_evidence = state.log_evidence + np.logaddexp.reduce(step) - np.log(len(step))
        key = jr.fold_in(self.key, 1 + len(state.steps))
        index = resampled(step, len(step), generator(key).uniform())
        state = state._replace(
            particles=_rows(state.particles, index),
            temperature=temperature,
            log_evidence=float(log_evidence),
        )
        return self.moved(state, self.affordable(before, temperature))

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
            for piece in _parts(*half.z.shape):
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


def temperatures_left(before: float, temperature: float) -> int:
    """A guess of how many temperatures are to come: steps that stay as long, or grow as they do."""
    if temperature == 1:
        return 0
    same = (1 - temperature) / (temperature - before)
    ratio = max(temperature / before, 1 + 1e-9) if before > 0 else 2.0
    return math.ceil(min(same, -math.log(temperature) / math.log(ratio)))


# --- a refinement from its arguments to its result ------------------------------------------------


def refine(
    problem: InverseProblem,
    variables: Variables,
    scale: int,
    n: int,
    budget: int,
    seed: int = 0,
    method: SMC | str = "smc",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = True,
    known: tuple[float, float] | None = None,
) -> Refined:
    """N fields of the posterior from the flow of its variables; see `Posterior.refine`.

    `known` is another estimate of the log evidence and its standard error, from training.
    """
    checks.integer("n", n, 1)
    checks.integer("budget", budget, 1)
    checks.integer("seed", seed, 0)
    if problem.forward is missing_forward:
        missing_forward(None)
    if not isinstance(method, SMC):
        method = {"smc": SMC()}[checks.one_of("method", method, ("smc",))]
    options = method.settled(problem, variables, n, budget)
    _check_budget(budget, options, problem.inflate * problem.scales * (scale < problem.scales))
    files = None
    if out is not None:
        files = RefineFiles(out)
        what = _identity(problem, variables) | {"scale": scale, "n": n, "seed": seed}
        options = files.opened(what, options, resume)
    key = jr.fold_in(jr.key(seed), 17)
    sampler = Sampler(variables, scale, Simulator(problem, budget), options, key)
    state, seconds = _run(sampler, files, progress)
    result = _result(sampler, state, n, seconds)
    if known is not None:
        result = result._replace(lost=lost_evidence(result, *known))
    if files is not None:
        files.write(result)
    return result


def _check_budget(budget: int, options: SMC, prepared: int) -> None:
    """Refuse a budget that cannot even weigh and move all particles once."""
    least = 2 * options.cost + prepared
    if budget < least:
        raise ValueError(
            f"budget must be at least {least} (to weigh {options.particles} particles by "
            f"{options.moves} and to move each once), got {budget}"
        )


def _run(sampler: Sampler, files: "RefineFiles | None", progress: bool) -> tuple[State, float]:
    """From the flow, or from a checkpoint, to temperature one; and the seconds that it took."""
    simulator, before = sampler.simulator, 0.0
    began = time.monotonic()
    before_bar, behind_bar = "T {temperature}", "acceptance {acceptance}  nFS {nfs}"
    found = None if files is None else files.load_checkpoint(sampler)
    if found is not None:
        state, counts, before = found
        simulator.restore(counts)
    with ProgressBar(
        progress, 1.0, before_bar, behind_bar, temperature="0", acceptance="-", nfs=0
    ) as bar:
        if found is None:
            state = sampler.start()
        while state.temperature < 1:
            _check_left(sampler, state)
            last, state = state.temperature, sampler.next(state)
            if files is not None:
                seconds = before + time.monotonic() - began
                files.save_checkpoint(state, simulator.counts(), seconds)
            done = len(state.steps)
            bar.update(
                done / (done + temperatures_left(last, state.temperature)),
                temperature=f"{state.temperature:.3g}",
                acceptance=f"{state.steps[-1]['acceptance']:.2f}",
                nfs=f"{simulator.nfs:,} of {simulator.budget:,}",
            )
    return state, before + time.monotonic() - began


def _check_left(sampler: Sampler, state: State) -> None:
    """Stop where the budget does not pay for another temperature: no samples rather than wrong."""
    simulator, steps = sampler.simulator, state.steps
    if simulator.left >= sampler.options.cost:
        return
    reached = [0.0, *(s["temperature"] for s in steps)]
    more = temperatures_left(*reached[-2:]) if steps else 10
    sweeps = max(10.0, float(np.mean([s["sweeps"] for s in steps])) if steps else 0.0)
    needed = simulator.nfs + more * int(sweeps) * sampler.options.cost
    raise BudgetExceeded(
        f"the budget of {simulator.budget} forward simulations ended at temperature "
        f"{state.temperature:.3g}, before the posterior at 1, so there are no samples of it; about "
        f"{float(f'{needed:.1g}'):.0f} may be enough (with out: resume goes on from here)"
    )


def _result(sampler: Sampler, state: State, n: int, seconds: float) -> Refined:
    """Fields and estimates of particles at temperature one."""
    particles, steps, simulator = state.particles, state.steps, sampler.simulator
    family, count = particles.family, len(particles.family)
    kept = np.arange(n) * count // n  # particles of one family stand side by side
    prior = simulator.problem.priors[sampler.scale - 1]
    fields, shown = [], []
    for rows in _parts(*particles.z.shape):
        u, s, _ = draw(sampler.variables, particles.z[rows])
        picked = kept[(kept >= rows.start) & (kept < rows.stop)] - rows.start
        fields.append(np.asarray(prior.unwhiten(jnp.asarray(u[picked]))))
        shown.append(s[:, :SHOWN])
    modes = find_modes(np.concatenate(shown))
    inside = modes.labels[:, None] == np.arange(len(modes.fractions))
    sizes = np.bincount(family, minlength=1)
    variance = ((sizes / count) ** 2).sum() - 1 / count  # of the evidence, relative
    return Refined(
        fields=np.concatenate(fields),
        families=family[kept],
        log_evidence=state.log_evidence,
        log_evidence_stderr=float(np.sqrt(max(variance, 0.0))),
        temperatures=(0.0, *(s["temperature"] for s in steps)),
        acceptance=float(
            np.average([s["acceptance"] for s in steps], weights=[s["sweeps"] for s in steps])
        ),
        correlation=max(s["correlation"] for s in steps),
        particles=count,
        distinct=int((sizes > 0).sum()),
        mode_fractions=tuple(inside.mean(0).tolist()),
        mode_fractions_stderr=tuple(family_stderr(inside, family).tolist()),
        nfs=simulator.nfs,
        failures=simulator.failures,
        seconds=round(seconds, 3),
    )


# --- files ----------------------------------------------------------------------------------------


class RefineFiles(RunDirectory):
    """What a refinement keeps on disk.

    config.json     what it can be resumed with
    checkpoint.npz  particles and counts after the last temperature
    fields.npz      fields and their families; refined.json everything else
    """

    def __init__(self, path: str | os.PathLike[str]):
        super().__init__(path)
        self.checkpoint = self.path / "checkpoint.npz"

    def opened(self, what: dict[str, Any], options: SMC, resume: bool) -> SMC:
        """Begin here, or go on; a budget may have grown since, the particles do not."""
        if not self.started:
            if resume:
                raise ValueError(f"out must hold a refinement to resume, got {self.path}")
            self.write_json("config.json", {**what, "smc": dataclasses.asdict(options)})
            return options
        if not resume:
            raise ValueError(
                f"out holds a refinement already: resume it or choose another, got {self.path}"
            )
        particles = self.read_json("config.json").get("smc", {}).get("particles")
        options = dataclasses.replace(options, particles=particles)
        self.check_same({**what, "smc": dataclasses.asdict(options)})
        return options

    def save_checkpoint(self, state: State, counts: dict[str, int], seconds: float) -> None:
        """Write the state after a temperature."""
        values = {k: v for k, v in state._asdict().items() if k != "particles"}
        description = {"state": values, "counts": counts, "seconds": seconds}
        archive.save(self.checkpoint, state.particles, description, finite=False)

    def load_checkpoint(self, sampler: Sampler) -> tuple[State, dict[str, int], float] | None:
        """State, counts and seconds after the last temperature; None if there was none."""
        if not self.checkpoint.exists():
            return None
        description, _ = archive.read_description(self.checkpoint)
        n, d = sampler.options.particles or 0, sampler.variables.dim
        z = np.zeros((n, d), default_dtype())
        like = Particles(z, np.zeros(n), z if sampler.options.gradient else None, np.arange(n))
        particles = archive.load(self.checkpoint, like, finite=False)
        state = State(particles, **description["state"])
        return state, description["counts"], description["seconds"]

    def write(self, result: Refined) -> None:
        """Write fields and numbers."""
        with archive.atomic_write(self.path / "fields.npz") as file:
            np.savez(file, fields=result.fields, families=result.families)
        self.write_json("refined.json", result.numbers())


def _identity(problem: InverseProblem, variables: Variables) -> dict[str, Any]:
    """What tells one problem and flow from another."""
    arrays = [problem.data, problem.noise_cov, *jax.tree.leaves(variables)]
    sums = [zlib.crc32(np.ascontiguousarray(a).tobytes()) for a in arrays if hasattr(a, "shape")]
    return {
        "problem": problem.name,
        "dimension": problem.dim,
        "posterior": zlib.crc32(np.asarray(sums, np.uint32).tobytes()),
    }


# --- small helpers --------------------------------------------------------------------------------


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    spread = a.std() * b.std()
    return float(((a - a.mean()) * (b - b.mean())).mean() / spread) if spread > 0 else 0.0


def _parts(n: int, d: int) -> list[slice]:
    """Rows of `(n, d)` that are held at once."""
    size = part_size(d)
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def _halves(n: int) -> tuple[slice, slice]:
    return slice(0, n // 2), slice(n // 2, n)


def _rows(particles: Particles, rows: Any) -> Particles:
    return jax.tree.map(lambda a: a[rows], particles)


def _joined(parts: list[Particles]) -> Particles:
    return jax.tree.map(lambda *a: np.concatenate(a), *parts)
