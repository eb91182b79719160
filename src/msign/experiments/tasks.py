"""Results of several methods on one problem, each in a file: what is missing is made.

A result belongs to a method, a scale and a seed. `msign compare` and `msign ablate` differ in where
samples come from, and in nothing else.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from msign import checks
from msign.diagnostics.judge import THRESHOLDS
from msign.experiments.critical import Critical, critical_of
from msign.experiments.measured import measured
from msign.problems import InverseProblem
from msign.progress import ProgressBar
from msign.rundir import RunDirectory
from msign.samplers import Samples


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is compared, and at which cost.

    Attributes:
        origin: Name and options of the problem.
        methods: Names of what is compared.
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


# Samples of a task; None where a method has nothing at its scale.
Source = Callable[[Task], Samples | None]


def begun(problem: InverseProblem, setting: Setting, out: pathlib.Path) -> RunDirectory:
    """The directory of a comparison, checked to be of this setting."""
    for scale in setting.scales:
        checks.integer("scale", scale, 1, problem.scales)
    directory = RunDirectory(out)
    if directory.started:
        directory.check_same(setting.fixed())
    directory.write_json("config.json", {**setting.fixed(), "d": problem.dim})
    return directory


def run_tasks(
    problem: InverseProblem,
    setting: Setting,
    directory: RunDirectory,
    methods: tuple[str, ...],
    source: Source,
) -> Iterator[str]:
    """Do what is not done yet, a line for every result."""
    results = RunDirectory(directory.path / "results")
    tasks = [
        Task(method, scale, seed)
        for method in methods
        for seed in setting.seeds
        for scale in setting.scales
    ]
    missing = [task for task in tasks if not (results.path / task.file).exists()]
    done = len(tasks) - len(missing)
    behind = f"{{done}} of {len(tasks)} results, now {{now}}"
    with ProgressBar(True, len(tasks), "compare", behind, done=done, now="") as bar:
        wanted = Wanted(problem, setting.reference, directory)
        for task in missing:
            bar.update(done, done=done, now=f"{task.method}, scale {task.scale}, seed {task.seed}")
            row = _row(problem, task, source, wanted)
            if row is not None:
                results.write_json(task.file, row)
                yield result_line(row)
            done += 1


def _row(
    problem: InverseProblem, task: Task, source: Source, wanted: "Wanted"
) -> dict[str, Any] | None:
    """What a task found; None where a method has nothing at this scale."""
    critical, names = wanted.at(task.scale), task._asdict()
    try:
        samples = source(task)
    except (ValueError, RuntimeError) as error:
        return {**names, "failed": str(error)}
    if samples is None:
        return None
    return {**names, **measured(problem, task.scale, samples, critical)}


def result_line(row: dict[str, Any]) -> str:
    """One result for people."""
    head = f"{row['method']:10s} scale {row['scale']}  seed {row['seed']}  "
    if "failed" in row:
        return f"{head}failed: {row['failed']}"
    shares = ":".join(f"{s:.2f}" for s in row["shares"])
    worth = "-" if row["effective"] is None else f"{row['effective']:.0f}"
    return (
        f"{head}{row['letter']}  shares {shares}  bias {row['bias']:.2f}  worth {worth}  "
        f"{row['nfs']} nFS  {row['seconds']:.1f} s"
    )


class Wanted:
    """Where each scale is looked at, and what it should be there; made once, kept in files.

    Args:
        problem: What is compared on.
        reference: Simulations for a reference where no exact samples are known.
        directory: Of the comparison.
    """

    def __init__(self, problem: InverseProblem, reference: int, directory: RunDirectory):
        self._problem, self._reference, self._directory = problem, reference, directory
        self._known: dict[int, Critical] = {}

    def at(self, scale: int) -> Critical:
        """Of a scale."""
        if scale not in self._known:
            name = f"critical-{scale}.json"
            if (self._directory.path / name).exists():
                found = Critical.from_json(self._directory.read_json(name))
            else:
                found = critical_of(self._problem, scale, self._reference)
                self._directory.write_json(name, found.as_json())
            self._known[scale] = found
        return self._known[scale]
