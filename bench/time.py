"""Where the seconds of a fit go, and how they compare with tempered sequential Monte Carlo.

    python bench/time.py [ROW ...] [--seeds 0 1 2]     the table: medians over seeds, by stage below
    python bench/time.py [ROW ...] --again             the same with compiled programs kept
    python bench/time.py [ROW ...] --smc               against BlackJAX's tempered SMC
    python bench/time.py --growth                      seconds against d, and against nFS

Every (row, seed) is a cold process of its own, without JAX's persistent cache of compiled programs;
with `--again` it is a second such process, after one that has kept them, as they are by default.
`total` is the time from the start of the process to the end of `fit`; what is measured afterwards
(J, SMC) is not in it. `cpu` is the processor's time for the same, which other work on the machine
changes less. Functions of the package are timed from outside; what JAX traces, lowers and
compiles inside them is taken out of their time and has columns of its own. J is exact where
`small_problems` knows the posterior, else (`~`) the estimate of the certificate.
"""

import argparse
import collections
import contextlib
import dataclasses
import functools
import importlib
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGAN = "MSIGN_BENCH_BEGAN"  # environment variable: time.time() just before the process started


class Wanted(NamedTuple):
    """What a row should reach; None: not asked for."""

    seconds: float
    programs: int | None = None
    jeffreys: float | None = None
    ess: float | None = None

    def __str__(self) -> str:
        parts = [f"{self.seconds:g} s"]
        parts += [] if self.programs is None else [f"<= {self.programs} programs"]
        parts += [] if self.jeffreys is None else [f"J <= {self.jeffreys:g}"]
        parts += [] if self.ess is None else [f"ESS >= {self.ess:g}"]
        return ", ".join(parts)

    def missed(self, found: dict[str, Any]) -> list[str]:
        """What of it a row does not reach."""
        missed = [] if found["total"] <= self.seconds else ["seconds"]
        if self.programs is not None and found["programs"] > self.programs:
            missed.append("programs")
        if self.jeffreys is not None and not found["jeffreys"] <= self.jeffreys:
            missed.append("J")
        if self.ess is not None and not found["ess"] >= self.ess:
            missed.append("ESS")
        return missed


DEMO = "demo"
COMMANDS = {  # rows that are a process and nothing else
    "import msign": [sys.executable, "-c", "import msign"],
    "import fit": [sys.executable, "-c", "from msign import fit"],
    "msign --help": [str(pathlib.Path(sys.executable).with_name("msign")), "--help"],
}
WANTED: dict[str, Wanted | None] = {
    "import msign": Wanted(1.0),
    "import fit": None,  # what `import msign` puts off until the first fit
    "msign --help": Wanted(0.6),
    "signal": Wanted(4, programs=40),
    "linear": Wanted(6),
    "heat": Wanted(15),
    DEMO: Wanted(25),
    "ring": Wanted(30, jeffreys=0.02),
    "four modes": Wanted(40, jeffreys=0.02),
    "synthetic 64": Wanted(25, jeffreys=0.01),
    "synthetic 256": Wanted(90),
    "elliptic 64": Wanted(240, ess=0.7),
}
BUSY = 1.3  # seconds over cpu seconds of a process that had to wait for others
COMPARED = ("synthetic 64", "ring", "elliptic 64")  # with SMC


# --- clocks -----------------------------------------------------------------------------------

COMPILING = {
    "backend_compile_duration": "compile",
    "jaxpr_trace_duration": "trace",
    "jaxpr_to_mlir_module_duration": "lower",
}


@dataclasses.dataclass
class Clock:
    """Own time of each wrapped function by scale: without what it calls, and without compiling.

    Attributes:
        scale: The stage that runs; 0 before the first, -1 for the certificate.
        spent: Seconds by (scale, part).
        compiling: Seconds of tracing, lowering and compiling, by scale.
        counts: Rounds, gradient steps and programs, by (scale, name).
    """

    scale: int = 0
    spent: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    compiling: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    counts: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    inner: list[float] = dataclasses.field(default_factory=lambda: [0.0])
    intervals: list[tuple[float, float]] = dataclasses.field(default_factory=list)

    @contextlib.contextmanager
    def timing(self, part: str) -> Iterator[None]:
        """Time a block as `part` of the scale at its start."""
        scale, began = self.scale, time.perf_counter()
        self.inner.append(0.0)
        try:
            yield
        finally:
            whole = time.perf_counter() - began
            self.spent[scale, part] += whole - self.inner.pop()
            self.inner[-1] += whole

    def listen(self, event: str, seconds: float, **_: Any) -> None:
        """Take a duration from JAX; those of inner functions are reported before the outer's."""
        kind = COMPILING.get(event.rsplit("/", 1)[-1])
        if kind is None:
            return
        began, own = time.perf_counter() - seconds, seconds
        while self.intervals and self.intervals[-1][0] >= began:
            own -= self.intervals.pop()[1]
        self.intervals.append((began, seconds))
        self.compiling[self.scale, kind] += own
        self.inner[-1] += own
        if kind == "compile":
            self.counts[self.scale, "programs"] += 1

    def total(self, kept: collections.Counter, part: str) -> float:
        return sum(value for (_, name), value in kept.items() if name == part)

    def stages(self) -> dict[str, dict[str, float]]:
        """Everything by scale, as JSON holds it."""
        result: dict[str, dict[str, float]] = collections.defaultdict(dict)
        for kept in (self.spent, self.compiling, self.counts):
            for (scale, part), value in sorted(kept.items()):
                result[str(scale)][part] = value
        return dict(result)


class Hooks:
    """Wraps functions of the package where they live; `missing` has the names that are gone."""

    def __init__(self, clock: Clock):
        self.clock, self.missing = clock, []

    def install(self) -> None:
        self._function("msign.noise", "normal", "draw")
        self._function("msign.variables", "draw", "draw")
        self._function("msign.inference.simulate", "simulate", "draw")  # beside the simulator's own
        self._function("msign.inference.methods.polynomial", "fit_polynomial", "emulate")
        self._function("msign.diagnostics.modes", "find_model_modes", "modes")
        self._function("msign.inference.fit", "start_stage", "start", self._enter_stage)
        self._method("msign.problems.simulator", "Simulator", "evaluate", "simulate")
        self._method("msign.inference.methods.sample_pool", "SamplePool", "add", "pool")
        self._method("msign.inference.run", "Run", "certify", "certify", self._enter_certificate)
        for kind in _subclasses(_found("msign.inference.methods.base", "Method")):
            if "update" in vars(kind):
                self._wrap(kind, "update", "steps", self._count_steps)

    def _enter_stage(self, run: Any, network: Any, scale: int) -> None:
        self.clock.scale = scale

    def _enter_certificate(self, *_: Any) -> None:
        self.clock.scale = -1

    def _count_steps(self, method: Any, stage: Any, state: Any, model: Any, *_: Any) -> None:
        from msign.inference.methods.plane import rearrangement

        self.clock.counts[self.clock.scale, "rounds"] += 1
        if rearrangement(model.flow) is None:
            self.clock.counts[self.clock.scale, "gradient steps"] += method.steps

    def _function(self, module: str, name: str, part: str, before: Callable | None = None) -> None:
        """Wrap a function in its own module and in all that imported it by name."""
        original = _found(module, name)
        if original is None:
            self.missing.append(f"{module}.{name}")
            return
        for key, holder in list(sys.modules.items()):
            if key.split(".")[0] == "msign" and vars(holder).get(name) is original:
                self._wrap(holder, name, part, before)

    def _method(
        self, module: str, owner: str, name: str, part: str, before: Callable | None = None
    ) -> None:
        kind = _found(module, owner)
        if kind is None or name not in vars(kind):
            self.missing.append(f"{module}.{owner}.{name}")
            return
        self._wrap(kind, name, part, before)

    def _wrap(self, holder: Any, name: str, part: str, before: Callable | None) -> None:
        original, clock = getattr(holder, name), self.clock

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return original(*args, **kwargs)  # beside something that is timed
            if before is not None:
                before(*args, **kwargs)
            with clock.timing(part):
                return original(*args, **kwargs)

        setattr(holder, name, timed)


def _found(module: str, name: str) -> Any:
    try:
        importlib.import_module(module)
    except ImportError:
        return None
    return getattr(sys.modules[module], name, None)


def _subclasses(kind: Any) -> list[type]:
    below = [] if kind is None else kind.__subclasses__()
    return [*below, *(s for b in below for s in _subclasses(b))]


# --- one process ------------------------------------------------------------------------------


def measured(task: dict[str, Any]) -> dict[str, Any]:
    """All that one process measures: it imports, makes the problem and fits."""
    clock, began = Clock(), time.perf_counter()
    import jax

    jax.monitoring.register_event_duration_secs_listener(clock.listen)
    import msign
    import small_problems

    hooks = Hooks(clock)
    hooks.install()  # which imports all that is put off until `fit` is asked for
    ready = time.perf_counter()
    if task["row"] == DEMO:
        found, posterior = run_demo(task["seed"], clock), None
    else:
        problem, budget = made_problem(task["row"])
        found, cpu = {"problem": time.perf_counter() - ready}, time.process_time()
        with clock.timing("other"):
            posterior = msign.fit(
                problem,
                task.get("budget") or budget,
                task["seed"],
                config=msign.FitConfig(
                    tolerance=task.get("tolerance") or msign.FitConfig.tolerance
                ),
            )
        found["fit"] = time.perf_counter() - ready - found["problem"]
        found["fit cpu"] = time.process_time() - cpu
    found |= {
        "total": time.time() - float(os.environ[BEGAN]),
        "cpu": time.process_time(),
        "import": ready - began,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "programs": clock.total(clock.counts, "programs"),
        "rounds": clock.total(clock.counts, "rounds"),
        "steps": clock.total(clock.counts, "gradient steps"),
        "missing": hooks.missing,
        "stages": clock.stages(),
    }
    found |= {k: clock.total(clock.compiling, k) for k in ("trace", "lower", "compile")}
    seconds = clock.total(clock.spent, "steps")
    found["per step"] = 1000 * seconds / found["steps"] if found["steps"] else None
    if posterior is None:
        return found
    if task.get("keep"):
        posterior.save(pathlib.Path(task["keep"]) / f"{task['row']} {task['seed']}")
    report = posterior.certificate()
    found |= {
        "dimension": problem.dim,
        "nfs": posterior.nfs,
        "jeffreys": report.jeffreys,
        "jeffreys_stderr": report.jeffreys_stderr,
        "ess": report.ess_fraction,
        "khat": report.khat,
        "exact": False,
    }
    exact = small_problems.exact_posterior(problem)
    if exact is not None:
        n = 10_000 if problem.dim <= 4096 else 2000
        known = small_problems.exact_jeffreys(posterior, exact, n)
        found |= {"exact": True, **{k: known[k] for k in ("jeffreys", "jeffreys_stderr")}}
    if task.get("smc"):
        spent = {"seconds": found["fit"], "cpu": found["fit cpu"]}  # as SMC, without imports
        found["smc"] = compared(posterior, exact, spent, task["smc"], task["seed"])
    return found


def made_problem(row: str) -> tuple[Any, int]:
    """The problem of a row and its budget: one of `small_problems`, or a synthetic of any size."""
    import msign
    import small_problems

    if row in small_problems.PROBLEMS:
        make, budget = small_problems.PROBLEMS[row]
        return make(), budget
    return msign.problems.synthetic(int(row.removeprefix("synthetic "))), 800_000


def run_demo(seed: int, clock: Clock) -> dict[str, Any]:
    """The command of `make demo`, in this process, with figures and all."""
    from msign.cli import app

    line = re.search(r"msign (run .*?) --out demo", (ROOT / "Makefile").read_text())
    assert line is not None, "the Makefile's demo must be `msign run ... --out demo`"
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        with clock.timing("other"):
            arguments = [*line[1].split(), "--seed", str(seed), "--out", folder, "--overwrite"]
            app(arguments, standalone_mode=False)
        summary = json.loads((pathlib.Path(folder) / "summary.json").read_text())
    return {
        "problem": 0.0,
        "fit": time.perf_counter() - began,
        "dimension": summary["dimension"],
        "nfs": summary["nfs"],
        "jeffreys": summary["jeffreys"],
        "jeffreys_stderr": summary["jeffreys_stderr"],
        "ess": summary["ess_fraction"],
        "khat": summary["khat"],
        "exact": "log_evidence_exact" in summary,
    }


def run_process(command: list[str], kept: str | None = None) -> tuple[str, dict[str, Any]]:
    """Output and seconds of a cold process, by the clock on the wall and of the processor.

    `kept` is the directory of compiled programs; None: there is none.
    """
    cache = {"JAX_ENABLE_COMPILATION_CACHE": "false"} if kept is None else {"MSIGN_CACHE": kept}
    environment = {**os.environ, **cache, BEGAN: str(time.time())}
    began = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with code {process.returncode}")
    seconds = time.perf_counter() - began
    return out, {"total": seconds, "cpu": usage.ru_utime + usage.ru_stime}


def run_task(row: str, seed: int, kept: str | None = None, **options: Any) -> dict[str, Any]:
    """What a row's process measured."""
    if row in COMMANDS:
        return run_process(COMMANDS[row], kept)[1]
    task = {"row": row, "seed": seed, **options}
    out, _ = run_process([sys.executable, __file__, "--task", json.dumps(task)], kept)
    return json.loads(out.splitlines()[-1])


def run_again(row: str, seed: int, **options: Any) -> dict[str, Any]:
    """What the second of two processes measured, that finds the programs of the first."""
    with tempfile.TemporaryDirectory() as kept:
        run_task(row, seed, kept, **options)
        return run_task(row, seed, kept, **options)


# --- tempered SMC -----------------------------------------------------------------------------

PARTICLES, INNER = 1024, 8  # of the first run
SAMPLES = 4096  # fields of the model that its moments are estimated from
FUNCTIONALS = 20


class Setting(NamedTuple):
    """One way to run SMC: the moves, particles, moves of each per temperature."""

    kernel: str
    particles: int
    inner: int


class Cloud(NamedTuple):
    """What SMC ends with, or where it gave up; `simulations` counts as `Simulator` does."""

    u: Any
    log_evidence: float
    log_evidence_stderr: float
    simulations: int
    temperatures: int
    seconds: float
    cpu: float


class Moments(NamedTuple):
    """Means and variances of linear functionals, those of informed directions first."""

    mean: Any
    variance: Any
    informed: int

    def error_of(self, s: Any) -> float:
        """Of samples `(n, k)`: root mean square of relative errors, the worse of the two groups."""
        import numpy as np

        mean = (s.mean(0) - self.mean) / np.sqrt(self.variance)
        variance = s.var(0) / self.variance - 1
        both, k = np.stack([mean, variance]), self.informed
        return float(max(np.sqrt((g**2).mean()) for g in (both[:, :k], both[:, k:]) if g.size))


def tempered_smc(problem: Any, setting: Setting, seed: int, limit: int) -> Cloud | None:
    """Adaptive tempered SMC of `msign.samplers`; None where it needs more than `limit`."""
    from msign.problems import BudgetExceeded
    from msign.samplers import TemperedSMC

    began_cpu = time.process_time()
    sampler = TemperedSMC(setting.kernel, setting.particles, setting.inner)
    try:
        found = sampler.run(problem, problem.scales, limit, setting.particles, seed)
    except (BudgetExceeded, ValueError):
        return None
    return Cloud(
        u=found.u,
        log_evidence=found.log_evidence,
        log_evidence_stderr=found.information["log_evidence_stderr"],
        simulations=found.nfs,
        temperatures=found.information["temperatures"],
        seconds=found.seconds,
        cpu=time.process_time() - began_cpu,
    )


def compared(
    posterior: Any, exact: Any, spent: dict[str, float], times: float, seed: int
) -> dict[str, Any]:
    """Msign against SMC of rising cost, until that is as accurate or costs `times` as much.

    Each level tries twice the particles and twice the steps, and goes on with the better one; only
    that one's own cost counts. Errors are those of the moments, and of the log-evidence: its
    distance from the truth, or its standard error where that is larger (one run may be lucky).

    Returns:
        What `msign` has, what SMC has when its `moments` are as good and when `both` errors are, or
        the best that it had before it became too expensive.
    """
    functionals, moments, log_z = truth_of(posterior, exact)
    batches = [posterior.whitened_samples(SAMPLES, 100 + i)[0] @ functionals for i in range(4)]
    report = posterior.certificate()

    def evidence_error(value: float, stderr: float) -> float:
        return max(abs(value - log_z), stderr)

    own = {
        **spent,
        "nfs": posterior.nfs,
        "moments": statistics.mean(moments.error_of(s) for s in batches),
        "evidence": evidence_error(report.log_evidence, report.log_evidence_stderr),
    }

    def tried(setting: Setting) -> dict[str, Any] | None:
        cheapest = setting.particles * setting.inner <= 2 * PARTICLES * INNER  # is run in any case
        limit = sys.maxsize if cheapest else int(times * posterior.nfs)
        cloud = tempered_smc(posterior.problem, setting, seed, limit)
        if cloud is None:
            return None
        found = {
            **setting._asdict(),
            "temperatures": cloud.temperatures,
            "seconds": cloud.seconds,
            "cpu": cloud.cpu,
            "nfs": cloud.simulations,
            "moments": moments.error_of(cloud.u @ functionals),
            "evidence": evidence_error(cloud.log_evidence, cloud.log_evidence_stderr),
        }
        over = {k: found[k] / own[k] for k in ("moments", "evidence")}
        return {**found, "over": {"moments": over["moments"], "both": max(over.values())}}

    candidates = [Setting("pcn", PARTICLES, 2 * INNER)]  # at the cost of the other
    if posterior.problem.differentiable:
        candidates.append(Setting("langevin", PARTICLES, INNER))
    best: dict[str, Any] = {"moments": None, "both": None}
    while candidates:
        runs = [(s, run) for s in candidates if (run := tried(s)) is not None]
        if not runs:
            break
        for goal, had in best.items():
            if had is None or had["over"][goal] > 1:
                best[goal] = min((run for _, run in runs), key=lambda run: run["over"][goal])
        setting, run = min(runs, key=lambda r: r[1]["over"]["both"])
        if run["over"]["both"] <= 1:
            break
        twice = setting._replace(particles=2 * setting.particles)
        candidates = [twice, setting._replace(inner=2 * setting.inner)]
    return {"msign": own, **best}


def truth_of(posterior: Any, exact: Any) -> tuple[Any, Moments, float]:
    """Functionals `(d, k)`, their moments under the posterior, and the log-evidence.

    By exact samples, else by samples of msign with importance weights (not counted).
    """
    import jax.random as jr
    import numpy as np

    d, rng = posterior.problem.dim, np.random.default_rng(7)
    known = exact.axes().T if exact is not None else posterior.basis
    drawn = rng.normal(size=(d, FUNCTIONALS)) / np.sqrt(d)
    functionals = np.concatenate([known[:, :100], drawn], 1).astype(np.float32)
    rows, weights, values = [], [], []
    for i in range(40 if exact is not None else 10):
        if exact is not None:
            u, log_weights = np.asarray(exact.sample(jr.key(50 + i), 2500)), np.zeros(2500)
        else:
            u, log_weights = posterior.importance(2000, 50 + i)
        rows.append(u @ functionals)
        values.append(log_weights)
    values, s = np.concatenate(values), np.concatenate(rows).astype(np.float64)
    weights = np.exp(values - values.max())
    log_z = float(values.max() + np.log(weights.mean()))
    weights /= weights.sum()
    mean = weights @ s
    moments = Moments(mean, weights @ (s - mean) ** 2, known[:, :100].shape[1])
    return functionals, moments, log_z if exact is None else exact.log_evidence()


# --- tables -----------------------------------------------------------------------------------


def median(runs: list[dict[str, Any]], name: str) -> float | None:
    values = [run[name] for run in runs if run.get(name) is not None]
    return statistics.median(values) if values else None


def text(value: float | None, form: str) -> str:
    width = form.split(".")[0].split(",")[0]
    return " " * int(width) if value is None else format(value, form)


HEADER = (
    f"{'':14s} {'nFS':>8s} {'total':>7s} {'cpu':>7s} {'import':>6s} {'trace,':>6s} {'compile':>7s} "
    f"{'pro-':>5s} {'steps':>6s} {'ms a':>6s} {'J':>9s} {'+-':>7s} {'ESS':>5s} {'k-hat':>5s} "
    f"{'peak':>5s}  wanted\n"
    f"{'row':14s} {'':8s} {'s':>7s} {'s':>7s} {'s':>6s} {'lower':>6s} {'s':>7s} {'grams':>5s} "
    f"{'':6s} {'step':>6s} {'':9s} {'':7s} {'':5s} {'':5s} {'GB':>5s}"
)


def row_line(row: str, runs: list[dict[str, Any]]) -> str:
    """A row of the table: medians over seeds."""
    m = functools.partial(median, runs)
    lower = None if m("trace") is None else m("trace") + m("lower")
    mark = " " if runs[0].get("exact", True) else "~"
    found = {k: m(k) for k in ("total", "programs", "jeffreys", "ess")}
    wanted, verdict = WANTED.get(row), ""
    if wanted is not None:
        missed = wanted.missed(found)
        verdict = f"{wanted}: " + (f"misses {', '.join(missed)}" if missed else "reached")
    return (
        f"{row:14s} {text(m('nfs'), '8,.0f')} {text(m('total'), '7.2f')} {text(m('cpu'), '7.2f')} "
        f"{text(m('import'), '6.2f')} {text(lower, '6.2f')} {text(m('compile'), '7.2f')} "
        f"{text(m('programs'), '5.0f')} {text(m('steps'), '6.0f')} {text(m('per step'), '6.2f')} "
        f"{mark}{text(m('jeffreys'), '8.4f')} {text(m('jeffreys_stderr'), '7.4f')} "
        f"{text(m('ess'), '5.3f')} {text(m('khat'), '5.2f')} {text(m('peak'), '5.2f')}  {verdict}"
    )


PARTS = ("simulate", "draw", "steps", "emulate", "pool", "start", "modes", "certify", "other")


def stage_lines(row: str, runs: list[dict[str, Any]]) -> list[str]:
    """Seconds of each stage of a fit by what they were spent on: medians over seeds."""
    lines = []
    scales = {int(scale) for run in runs for scale in run.get("stages", {})}
    for scale in sorted(scales, key=lambda s: (s < 0, s)):
        at = [run["stages"].get(str(scale), {}) for run in runs]
        m = lambda name, at=at: statistics.median(a.get(name, 0) for a in at)  # noqa: E731
        steps = m("gradient steps")
        compiling = m("trace") + m("lower") + m("compile")
        label = {0: "before", -1: "certify"}.get(scale, f"{scale}")
        lines.append(
            f"{row:14s} {label:>7s} "
            + " ".join(f"{m(part):8.2f}" for part in PARTS)
            + f" {compiling:8.2f} {m('programs'):5.0f} {m('rounds'):6.0f} {steps:6.0f} "
            + (f"{1000 * m('steps') / steps:7.2f}" if steps else "")
        )
    return lines


def show_table(
    rows: list[str], seeds: list[int], again: bool, out: pathlib.Path | None, **options: Any
) -> None:
    print(HEADER, flush=True)
    run = run_again if again else run_task
    results: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        results[row] = [run(row, seed, **options) for seed in seeds]
        print(row_line(row, results[row]), flush=True)
    fits = {row: runs for row, runs in results.items() if "stages" in runs[0]}
    if fits:
        heads = " ".join(f"{part:>8s}" for part in PARTS)
        print(f"\nSeconds by stage\n{'row':14s} {'scale':>7s} {heads} ", end="")
        print(f"{'compiling':>8s} {'progr':>5s} {'rounds':>6s} {'steps':>6s} ms/step")
    for row, runs in fits.items():
        print("\n".join(stage_lines(row, runs)))
    for name in sorted({name for runs in fits.values() for run in runs for name in run["missing"]}):
        print(f"{name} is gone: its time is counted elsewhere")
    busy = [row for row, runs in fits.items() if median(runs, "total") > BUSY * median(runs, "cpu")]
    if busy:
        print(f"the machine was busy, so seconds other than cpu are too long: {', '.join(busy)}")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=1))


def exponent(x: list[float], y: list[float]) -> float:
    """Of the power law y = a x^b that fits best."""
    import math

    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    return statistics.linear_regression(a, b).slope if len(set(x)) > 1 else math.nan


def show_growth(sizes: list[int], budgets: list[int], seeds: list[int]) -> None:
    """Seconds against the dimension and against the number of simulations."""

    def series(title: str, name: str, tasks: list[tuple[str, dict[str, Any]]]) -> None:
        print(f"\n{title}", flush=True)
        x, seconds, fits = [], [], []
        for row, options in tasks:
            runs = [run_task(row, seed, **options) for seed in seeds]
            x.append(median(runs, name)), seconds.append(median(runs, "total"))
            fits.append(statistics.median(r["fit"] - compiling(r) for r in runs))
            print(
                f"  {row:14s} d {median(runs, 'dimension'):8,.0f}  nFS {median(runs, 'nfs'):8,.0f} "
                f" {seconds[-1]:7.1f} s, {fits[-1]:7.1f} s in fit beside compiling, peak "
                f"{median(runs, 'peak'):5.2f} GB  J {median(runs, 'jeffreys'):.4f}",
                flush=True,
            )
        print(
            f"  seconds ~ {name}^{exponent(x, seconds):.2f}; beside compiling "
            f"{name}^{exponent(x, fits):.2f}"
        )

    def compiling(run: dict[str, Any]) -> float:
        return run["trace"] + run["lower"] + run["compile"]

    if sizes:
        tasks = [(f"synthetic {size}", {}) for size in sizes]
        series("Dimension (d = 262,144 should stay below 8 GB)", "dimension", tasks)
    if budgets:
        tasks = [("ring", {"budget": budget}) for budget in budgets]
        series("Simulations, ring", "nfs", tasks)


def show_smc(rows: list[str], seeds: list[int], budget: int | None, times: float) -> None:
    """Msign and SMC side by side; ratios are SMC over msign, more than 1 in favour of msign."""
    for row in rows:
        ratios = collections.defaultdict(list)
        for seed in seeds:
            found = run_task(row, seed, budget=budget, smc=times)["smc"]
            own = found.pop("msign")
            print(f"{row}, seed {seed}\n  msign              {smc_line(own)}")
            for goal, smc in found.items():
                short = smc["over"][goal]
                ratio = [smc[k] / own[k] for k in ("seconds", "cpu", "nfs")]
                ratios[goal].append((short, ratio))
                print(
                    f"  SMC, {goal:8s}      {smc_line(smc)}  {smc['kernel']}, {smc['particles']} "
                    f"particles, {smc['inner']} steps at each of {smc['temperatures']} "
                    f"temperatures\n    SMC / msign      {ratio_line(ratio)}"
                    + ("" if short <= 1 else f", with an error of {short:.1f} times msign's"),
                    flush=True,
                )
        for goal, found in ratios.items():
            columns = zip(*(ratio for _, ratio in found), strict=True)
            medians = [statistics.median(column) for column in columns]
            reached = sum(short <= 1 for short, _ in found)
            print(
                f"{row}, SMC until {goal} as good (reached with {reached} of {len(found)} seeds): "
                f"median {ratio_line(medians)}",
                flush=True,
            )


def smc_line(found: dict[str, Any]) -> str:
    return (
        f"{found['seconds']:7.1f} s {found['cpu']:7.1f} s cpu {found['nfs']:10,d} nFS  errors: "
        f"moments {found['moments']:.4f}, log Z {found['evidence']:.4f}"
    )


def ratio_line(ratio: list[float]) -> str:
    return f"{ratio[0]:.2f} in seconds, {ratio[1]:.2f} in cpu seconds, {ratio[2]:.2f} in nFS"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(WANTED))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--budget", type=int, help="of every fit, instead of the problem's own")
    parser.add_argument("--tolerance", type=float, help="of every fit, instead of the default")
    parser.add_argument("--again", action="store_true", help="with compiled programs kept")
    parser.add_argument("--json", type=pathlib.Path, help="file for all that the table rests on")
    parser.add_argument("--keep", help="directory in which every posterior is saved")
    parser.add_argument("--smc", action="store_true", help=f"default rows: {', '.join(COMPARED)}")
    parser.add_argument("--times", type=float, default=20, help="most simulations of SMC, over nFS")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--sizes", nargs="*", type=int, default=[32, 64, 128, 256, 512])
    parser.add_argument(
        "--budgets", nargs="*", type=int, default=[25_000, 50_000, 100_000, 200_000]
    )
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        print(json.dumps(measured(json.loads(options.task))))
        return
    for row in options.rows:
        if row not in WANTED and row not in ("two modes", "elliptic 16"):
            parser.error(f"ROW must be one of {', '.join(WANTED)}, got {row!r}")
    if options.growth:
        show_growth(options.sizes, options.budgets, options.seeds)
    elif options.smc:
        show_smc(options.rows or list(COMPARED), options.seeds, options.budget, options.times)
    else:
        given = {k: getattr(options, k) for k in ("budget", "tolerance", "keep")}
        rows = options.rows or list(WANTED)
        show_table(rows, options.seeds, options.again, options.json, **given)


if __name__ == "__main__":
    main()
