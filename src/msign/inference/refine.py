"""From a flow to fields of the posterior by sequential Monte Carlo (`smc.py`), under a budget.

Errors come from families, the particles that descend from one draw of the flow (Chan and Lai 2013,
Lee and Whiteley 2018): draws are independent, so families are, and what resampling and poor mixing
do to an estimate shows in the masses of families. It costs no simulation, where independent
repetitions would each have to find their own temperatures with fewer particles. Of the evidence
masses are those before the last resampling: a good flow leaves every draw its one descendant.

What families do not see is where none of them is. A posterior that reaches far outside of the flow
is found by the moves alone, by all families at one pace, and too late: the evidence is too low by
more than its error. The weights tell, at the particles in the end: where the flow is too narrow
their tail is very heavy (`tail`), and the verdict says that errors are not to be trusted.
"""

import dataclasses
import os
import time
import zlib
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np
from jaxtyping import ArrayLike

from msign import archive, checks
from msign.devices import together, wait, writes_files
from msign.diagnostics.modes import find_modes
from msign.inference.certificate import SHOWN
from msign.inference.remedies import rounded_up
from msign.inference.smc import SMC, Particles, Sampler, State, row_parts, temperatures_left
from msign.inference.watch import Watch, clock
from msign.interrupts import StopAtCheckpoint
from msign.noise import as_array, default_dtype
from msign.problems.counting import BudgetExceeded
from msign.problems.inverse import InverseProblem, missing_forward
from msign.problems.simulator import Simulator
from msign.problems.workers import opened
from msign.rundir import RunDirectory, damaged_checkpoint, taken_from
from msign.variables import Variables, draw
from msign.weights import lost_evidence, pareto_khat

FEW_FAMILIES = 20  # draws below which no error can be estimated
ROUGH_EVIDENCE = 0.3  # standard error of the log evidence that is large
NARROW_FLOW = 3.0  # k-hat of weights under the posterior from which errors are too small
POOR_MIXING = 0.7  # correlation of particles with their start that is large


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
        tail: Pareto k-hat of the weights posterior / flow of the particles: how far the posterior
            reaches out of the flow (below 0: nowhere; above 3 errors are too small).
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
    tail: float = 0.0

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
                "these fields. Fit again with twice the budget and another seed."
            )
        if self.distinct < FEW_FAMILIES:
            more = 2 * FEW_FAMILIES / self.distinct
            return f"NOT RELIABLE: {figures}. {self._try(more, more)}"
        if self.tail > NARROW_FLOW:
            return (
                f"ROUGH: {figures}, but the posterior reaches far out of the flow (k-hat of the "
                f"weights there {self.tail:.2g}): errors may be several times the stated ones. Fit "
                f"with a larger budget, or take smaller steps. {self._try(2, 1, 'ess=0.8')}"
            )
        if self.correlation > POOR_MIXING:
            return f"ROUGH: {figures}. {self._try(2, 1)}"
        if self.log_evidence_stderr > ROUGH_EVIDENCE:
            more = max(2.0, (self.log_evidence_stderr / ROUGH_EVIDENCE) ** 2)
            return f"ROUGH: {figures}. {self._try(more, more)}"
        return f"GOOD: {figures}. (A mode that the flow never visits is still not found.)"

    def _try(self, budget: float, particles: float, *more: str) -> str:
        """What to try: these times the simulations and the particles, and more options.

        Errors fall with the square root of the particles; more simulations for as many of them are
        more moves for each.
        """
        options = ", ".join([f"particles={rounded_up(particles * self.particles)}", *more])
        return f"Try budget={rounded_up(budget * self.nfs)} with SMC({options})."

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


# --- a refinement from its arguments to its result ------------------------------------------------


@together()
def refine(
    problem: InverseProblem,
    variables: Variables,
    scale: int,
    n: float,
    budget: float,
    seed: int = 0,
    method: SMC | str = "smc",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = True,
    known: tuple[float, float] | None = None,
    executor: Any = None,
    lost: float = 0.0,
) -> Refined:
    """N fields of the posterior from the flow of its variables; see `Posterior.refine`.

    `known` is another estimate of the log evidence and its standard error, from training; `lost`
    is log evidence that coarser scales lack.
    """
    n, budget = checks.count("n", n, 1), checks.count("budget", budget, 1)
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
    with opened(executor) as workers:
        simulator = Simulator(problem, budget, workers)
        sampler = Sampler(variables, scale, simulator, options, key)
        state, seconds = _run(sampler, files, progress)
        result = _result(sampler, state, n, seconds)
    if known is not None:
        lost = max(lost, lost_evidence(result, *known))
    result = result._replace(lost=lost)
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

    def seconds() -> float:
        return before + time.monotonic() - began

    watch = Watch(progress and writes_files(), 1.0, simulator, seconds)
    found = None if files is None else files.load_checkpoint(sampler)
    if found is not None:
        state, counts, before = found
        simulator.count.restore(counts)
    resumed_at = seconds(), 0 if found is None else len(state.steps)
    with watch, StopAtCheckpoint(files is not None, watch.line) as stop:
        watch.place, watch.activity = "T 0", "simulating"
        if found is None:
            state = sampler.start()
        while state.temperature < 1:
            _check_left(sampler, state)
            watch.place, watch.activity = f"T {state.temperature:.3g}", "moving particles"
            last, state = state.temperature, sampler.next(state)
            _show(watch, state, temperatures_left(last, state.temperature), resumed_at)
            if files is not None:
                files.save_checkpoint(state, simulator.count.saved(), seconds())
                stop.checkpoint_written()
    return state, seconds()


def _show(watch: Watch, state: State, coming: int, resumed_at: tuple[float, int]) -> None:
    """Show what a temperature has reached, and from the second one on the time left."""
    done = len(state.steps)
    watch.done(done / (done + coming))
    watch.figures = f"acceptance {state.steps[-1]['acceptance']:.2f}"
    here, mine = watch.seconds() - resumed_at[0], done - resumed_at[1]
    watch.left = f"left ~ {clock(here / mine * coming)}" if mine > 1 and coming else ""
    watch.line(f"T {state.temperature:.3g}  {watch.figures}  {watch.used()}")


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
    for rows in row_parts(*particles.z.shape):
        u, s, _ = draw(sampler.variables, particles.z[rows])
        picked = kept[(kept >= rows.start) & (kept < rows.stop)] - rows.start
        fields.append(np.asarray(prior.unwhiten(as_array(u[picked]))))
        shown.append(s[:, :SHOWN])
    modes = find_modes(np.concatenate(shown))
    inside = modes.labels[:, None] == np.arange(len(modes.fractions))
    sizes = np.bincount(family, minlength=1)
    return Refined(
        fields=np.concatenate(fields),
        families=family[kept],
        log_evidence=state.log_evidence,
        log_evidence_stderr=float(np.sqrt(max(steps[-1]["variance"], 0.0))),
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
        tail=pareto_khat(particles.log_weight),
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
        started = self.started
        wait("directory opened")
        if not started:
            if resume:
                raise ValueError(f"out must hold a refinement to resume, got {self.path}")
            self.write_json("config.json", {**what, "smc": dataclasses.asdict(options)})
            return options
        if not resume:
            raise ValueError(
                "out holds a refinement already: go on with it (--resume), delete it "
                f"(--overwrite) or choose another, got {self.path}"
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
        n, d = sampler.options.particles or 0, sampler.variables.dim
        z = np.zeros((n, d), default_dtype())
        like = Particles(z, np.zeros(n), z if sampler.options.gradient else None, np.arange(n))
        with damaged_checkpoint("the flow"), taken_from(self.checkpoint):
            description, _ = archive.read_description(self.checkpoint)
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
