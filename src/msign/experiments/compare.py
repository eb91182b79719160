"""`msign compare`: MsIGN and its rivals on one problem, at one budget of forward simulations."""

import dataclasses
import pathlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from msign import checks
from msign.diagnostics import jeffreys_against, moment_errors
from msign.diagnostics.judge import THRESHOLDS, judge
from msign.experiments.critical import Critical, critical_of
from msign.inference import Posterior, fit
from msign.problems import InverseProblem, Simulator
from msign.progress import ProgressBar
from msign.rundir import RunDirectory
from msign.samplers import SAMPLERS, AmortizedSVGD, Sampler, Samples
from msign.samplers.base import Cost
from msign.samplers.effective import effective_samples

OWN, EXACT = "msign", "exact"  # methods that are no samplers: `fit`, and samples of the truth
METHODS = (OWN, *SAMPLERS)
EXACT_KEY = 10**6  # no other method's
DIGITS = 5  # of values along the critical direction that are kept


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is compared, and at which cost.

    Attributes:
        origin: Name and options of the problem.
        methods: `msign` and names of samplers.
        budget: Forward simulations of every method and scale; `msign` trains all scales with one.
        n: Fields that each method is to give.
        seeds: Of independent runs.
        scales: Compared.
        reference: Simulations for a reference where no exact samples are known; no method's.
    """

    origin: dict[str, Any]
    methods: tuple[str, ...]
    budget: int
    n: int
    seeds: tuple[int, ...]
    scales: tuple[int, ...]
    reference: int

    def __post_init__(self) -> None:
        for method in self.methods:
            checks.one_of("methods", method, METHODS)
        checks.integer("n", self.n, 10)
        checks.integer("budget", self.budget, self.n + 1)
        for seed in self.seeds:
            checks.integer("seeds", seed, 0)

    def fixed(self) -> dict[str, Any]:
        """What runs in one directory must have in common; methods, seeds, scales may be added."""
        return {
            "origin": self.origin,
            "budget": self.budget,
            "n": self.n,
            "reference": self.reference,
            "thresholds": dataclasses.asdict(THRESHOLDS),
        }


class Task(NamedTuple):
    """One method, one scale, one seed."""

    method: str
    scale: int
    seed: int

    @property
    def file(self) -> str:
        """Where its result is kept."""
        return f"{self.method}-{self.scale}-{self.seed}.json"


def samplers_for(origin: dict[str, Any]) -> dict[str, Sampler]:
    """All samplers with the paper's network hyper-parameters for its problem (appendix F)."""
    wide = origin.get("problem") == "elliptic"
    amortized = AmortizedSVGD(blocks=32, hidden=64) if wide else AmortizedSVGD()
    return {**SAMPLERS, "asvgd": amortized}


def run_comparison(problem: InverseProblem, setting: Setting, out: pathlib.Path) -> Iterator[str]:
    """Do what is not done yet, a line for every result."""
    samplers = samplers_for(setting.origin)
    for method in setting.methods:
        if method != OWN:
            samplers[method].check(problem)
    for scale in setting.scales:
        checks.integer("scale", scale, 1, problem.scales)
    results = RunDirectory(out / "results")
    directory = RunDirectory(out)
    if directory.started:
        directory.check_same(setting.fixed())
    directory.write_json("config.json", {**setting.fixed(), "d": problem.dim})
    known = (EXACT,) if problem.reference is not None else ()
    tasks = [
        Task(method, scale, seed)
        for method in (*known, *setting.methods)
        for seed in setting.seeds
        for scale in setting.scales
    ]
    missing = [task for task in tasks if not (results.path / task.file).exists()]
    done = len(tasks) - len(missing)
    behind = f"{{done}} of {len(tasks)} results, now {{now}}"
    with ProgressBar(True, len(tasks), "compare", behind, done=done, now="") as bar:
        runner = Runner(problem, setting, samplers, directory)
        for task in missing:
            bar.update(done, done=done, now=f"{task.method}, scale {task.scale}, seed {task.seed}")
            row = runner.row(task)
            if row is not None:
                results.write_json(task.file, row)
                yield result_line(row)
            done += 1


def result_line(row: dict[str, Any]) -> str:
    """One result for people."""
    head = f"{row['method']:8s} scale {row['scale']}  seed {row['seed']}  "
    if "failed" in row:
        return f"{head}failed: {row['failed']}"
    shares = ":".join(f"{s:.2f}" for s in row["shares"])
    worth = "-" if row["effective"] is None else f"{row['effective']:.0f}"
    return (
        f"{head}{row['letter']}  shares {shares}  bias {row['bias']:.2f}  worth {worth}  "
        f"{row['nfs']} nFS  {row['seconds']:.1f} s"
    )


class Runner:
    """Runs tasks of one comparison; what several of them share is made once.

    Args:
        problem: What is compared on.
        setting: How.
        samplers: By name.
        directory: Of the comparison.
    """

    def __init__(
        self,
        problem: InverseProblem,
        setting: Setting,
        samplers: dict[str, Sampler],
        directory: RunDirectory,
    ):
        self.problem, self.setting, self.samplers = problem, setting, samplers
        self.directory = directory
        self._critical: dict[int, Critical] = {}
        self._fitted: tuple[int, Posterior] | None = None

    def row(self, task: Task) -> dict[str, Any] | None:
        """What a task found; None where a method has nothing at this scale."""
        critical = self.critical(task.scale)
        names = task._asdict()
        try:
            samples = self.samples(task)
        except (ValueError, RuntimeError) as error:
            return {**names, "failed": str(error)}
        if samples is None:
            return None
        return {**names, **measured(self.problem, task.scale, samples, critical)}

    def critical(self, scale: int) -> Critical:
        """Where a scale is looked at, and what it should be there; kept in a file."""
        if scale not in self._critical:
            name = f"critical-{scale}.json"
            if (self.directory.path / name).exists():
                found = Critical.from_json(self.directory.read_json(name))
            else:
                found = critical_of(self.problem, scale, self.setting.reference)
                self.directory.write_json(name, found.as_json())
            self._critical[scale] = found
        return self._critical[scale]

    def samples(self, task: Task) -> Samples | None:
        """Of any method."""
        n, problem = self.setting.n, self.problem
        if task.method == EXACT:
            key = jr.fold_in(jr.key(task.seed), EXACT_KEY + task.scale)
            u = problem.reference.sample(key, n, task.scale)
            fields = np.asarray(problem.priors[task.scale - 1].unwhiten(jnp.asarray(u)))
            return Samples(fields, u, 0, 0.0, log_weights=np.zeros(n))
        if task.method == OWN:
            posterior = self._posterior(task.seed)
            return own_samples(posterior, task.scale, n) if task.scale in posterior.scales else None
        sampler = self.samplers[task.method]
        return sampler.run(problem, task.scale, self.setting.budget, n, task.seed)

    def _posterior(self, seed: int) -> Posterior:
        """What `fit` learns; its weights' simulations are left out of its budget."""
        if self._fitted is None or self._fitted[0] != seed:
            budget = self.setting.budget - self.setting.n
            out = self.directory.path / f"{OWN}-{seed}"
            resume = (out / "config.json").exists()
            found = fit(self.problem, budget, seed, out, resume, progress=False)
            self._fitted = seed, found
        return self._fitted[1]


def own_samples(posterior: Posterior, scale: int, n: int) -> Samples:
    """Samples of what stage l left, and what all stages up to it cost; n weights are counted."""
    stage, began = posterior.stage(scale), time.perf_counter()
    u, log_ratio = stage.whitened_samples(n, posterior.seed)
    simulator = Simulator(posterior.problem)
    log_weights = simulator.evaluate(u, scale).log_likelihood - log_ratio
    drawing = time.perf_counter() - began
    spent = [s for s in posterior.stages if s["scale"] <= scale]
    nfs, seconds = sum(s["nfs"] for s in spent), sum(s["seconds"] for s in spent)
    if scale == posterior.problem.scales:
        nfs, seconds = posterior.nfs, posterior.seconds
    return Samples(
        fields=np.asarray(stage.prior.unwhiten(jnp.asarray(u))),
        u=u,
        nfs=nfs + n,
        seconds=seconds + drawing,
        trained=Cost(nfs, seconds),
        log_weights=log_weights,
        log_ratio=stage.log_ratio,
        log_evidence=stage.certificate().log_evidence,
        information={"verdict": stage.certificate().verdict},
    )


def measured(
    problem: InverseProblem, scale: int, samples: Samples, critical: Critical
) -> dict[str, Any]:
    """All that is said of samples in tables and figures."""
    values = critical.values(samples.u)
    judgement, marginal = judge(values, critical.marginal), critical.marginal
    groups = samples.chain if samples.chain is not None else samples.family
    worth = effective_samples(values, marginal.trough, groups, samples.log_weights)
    if worth is not None and judgement.modes < len(marginal.shares):
        worth = min(worth, 1.0)
    row = {
        **judgement._asdict(),
        "nfs": samples.nfs,
        "seconds": samples.seconds,
        "effective": worth,
        **efficiency(samples, worth),
        "log_evidence": samples.log_evidence,
        "information": samples.information,
        "values": np.round(values, DIGITS).tolist(),
    }
    if problem.reference is not None:
        prior: Any = problem.priors[scale - 1]  # a spectral one, where moments are known
        std = np.asarray(prior.std, np.float64).reshape(-1)
        moments = problem.reference.moments(scale)
        row["rmse"] = moment_errors(jnp.asarray(samples.u), std, *moments)
        row["log_evidence_exact"] = problem.reference.log_evidence(scale)
        if samples.log_ratio is not None:
            row["jeffreys"] = jeffreys(problem, scale, samples)
    return row


def efficiency(samples: Samples, worth: float | None) -> dict[str, float | None]:
    """Effective samples per 1000 simulations and per second, training included and after it."""
    names = ("per_1000", "per_second", "per_1000_trained", "per_second_trained")
    if worth is None or not samples.nfs:
        return dict.fromkeys(names)
    whole = [1000 * worth / samples.nfs, worth / max(samples.seconds, 1e-9)]
    after: list[float | None] = [None, None]
    if samples.trained is not None and samples.nfs > samples.trained.nfs:
        seconds = samples.seconds - samples.trained.seconds
        after[0] = 1000 * worth / (samples.nfs - samples.trained.nfs)
        after[1] = worth / seconds if seconds > 0 else None
    return dict(zip(names, [*whole, *after], strict=True))


def jeffreys(problem: InverseProblem, scale: int, samples: Samples) -> dict[str, float]:
    """Divergence between a method's density and the exact posterior, where both are known."""
    assert samples.log_ratio is not None
    log_z, simulator = problem.reference.log_evidence(scale), Simulator(problem)
    exact = problem.reference.sample(jr.key(7), len(samples.u), scale)
    own = samples.log_ratio(samples.u) - simulator.evaluate(samples.u, scale).log_likelihood + log_z
    there = simulator.evaluate(exact, scale).log_likelihood - log_z - samples.log_ratio(exact)
    return jeffreys_against(own, there)
