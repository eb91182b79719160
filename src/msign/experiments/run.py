"""`msign run`, `msign sample` and `msign show`: from a problem's name to files on disk."""

import inspect
import os
import pathlib
from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from msign import checks
from msign.bijections import GlowConfig
from msign.diagnostics import evaluate_against_reference
from msign.experiments.problem_file import DEFAULT_NAME, load_problem_file
from msign.inference import Cellwise, Combined, FitConfig, Glow, Informed, Posterior, fit
from msign.inference.flows import FlowKind
from msign.inference.watch import busy
from msign.problems import InverseProblem, elliptic, synthetic
from msign.report.elliptic import elliptic_figure
from msign.report.run_page import write_report
from msign.rundir import RunDirectory

BUILT_IN: dict[str, Callable[..., InverseProblem]] = {"synthetic": synthetic, "elliptic": elliptic}

# Those that have a picture of their own.
PICTURES: dict[str, Callable[[InverseProblem], Figure]] = {"elliptic": elliptic_figure}

# What the paper gave each of its problems.
BUDGETS = {"synthetic": 800_000, "elliptic": 500_000}


def default_budget(name: str) -> int:
    """Forward simulations of a run that does not say how many: the paper's, else 800,000."""
    return BUDGETS.get(name, 800_000)


def named_flow(name: str, glow: GlowConfig) -> FlowKind | None:
    """The kind of flow of a name: `auto`, `informed`, `cellwise`, `glow` or `both`."""
    kinds: dict[str, FlowKind | None] = {
        "auto": None,
        "informed": Informed(),
        "cellwise": Cellwise(),
        "glow": Glow(glow),
        "both": Combined((Informed(), Glow(glow))),
    }
    return kinds[checks.one_of("flow", name, kinds)]


def load_problem(name: str, **options: Any) -> InverseProblem:
    """A built-in problem, or one from a file: `path/to/problem.py:name`.

    In a file, `name` is an `InverseProblem` or a function that returns one; `problem` if none is
    given.
    """
    given = {k: v for k, v in options.items() if v is not None}
    if name in BUILT_IN:
        takes = inspect.signature(BUILT_IN[name]).parameters
        for option in given:
            if option not in takes:
                raise ValueError(f"{option} is not an option of the problem {name}")
        return BUILT_IN[name](**given)
    if given:
        raise ValueError(
            f"{next(iter(given))} is an option of built-in problems only, got {name!r}"
        )
    path, _, attribute = name.rpartition(":") if ".py:" in name else (name, "", DEFAULT_NAME)
    if not path.endswith(".py"):
        known = ", ".join(BUILT_IN)
        raise ValueError(f"problem must be one of {known} or path/to/file.py:name, got {name!r}")
    return load_problem_file(path, attribute)


def named_executor(workers: int | None, dask: str | None) -> int | str | None:
    """Who evaluates the forward map: a number of processes, or a Dask cluster's address."""
    if workers is not None and dask is not None:
        raise ValueError(f"workers must not be given beside dask, got {workers} and {dask!r}")
    return dask if workers is None else workers


def run_problem(
    problem: InverseProblem,
    out: str | os.PathLike[str],
    budget: int,
    seed: int,
    resume: bool,
    config: FitConfig,
    origin: dict[str, Any] | None = None,
    executor: int | str | None = None,
) -> dict[str, Any]:
    """Fit, compare with the exact reference where there is one, write summary and report.

    `origin`, the problem's name and options, is kept for commands that simulate it again.
    """
    given = (problem, budget, seed, out, resume)
    posterior = fit(*given, config=config, report=False, executor=executor)
    if origin is not None:
        RunDirectory(out).write_json("problem.json", origin)
    if problem.reference is not None:
        with busy("comparing with the exact posterior"):
            posterior.reference = evaluate_against_reference(posterior)
            posterior.save(out)
    with busy("drawing the report"):
        write_report(posterior, out)
    return posterior.summary()


def sample_run(
    run: str | os.PathLike[str], n: int, seed: int, output: str | os.PathLike[str]
) -> None:
    """Draw from a finished run and write NetCDF (`.nc`) or NumPy (`.npy`)."""
    path = pathlib.Path(output)
    if path.suffix not in (".nc", ".npy"):
        raise ValueError(f"output must end in .nc or .npy, got {os.fspath(output)!r}")
    posterior = Posterior.load(run)
    if path.suffix == ".nc":
        posterior.to_arviz(n, seed).to_netcdf(str(path))
        return
    import numpy as np

    np.save(path, posterior.sample(n, seed))


def read_summary(run: str | os.PathLike[str]) -> dict[str, Any]:
    """The summary of a finished run."""
    if not (pathlib.Path(run) / "summary.json").exists():
        raise ValueError(f"run must hold a finished run (no summary.json), got {os.fspath(run)!r}")
    return RunDirectory(run, write=False).read_json("summary.json")


PAPER_JEFFREYS = 56.77  # of MsIGN on the synthetic problem after 800,000 simulations


def _compared(summary: dict[str, Any]) -> list[str]:
    """What the divergence of a run with an exact reference is to be held against."""
    if "jeffreys_prior" not in summary:
        return []
    return [
        f"  for comparison {summary['jeffreys_prior']:.3g} of the prior itself, "
        f"{summary['jeffreys_proposal']:.2g} of the exact q~_{len(summary['stages'])}; "
        f"{PAPER_JEFFREYS} in the paper",
        "                 (d = 4096, 800,000 simulations, in a normalisation it does not state)",
    ]


def _flow(summary: dict[str, Any]) -> list[str]:
    """What stands at the scales, where a run knows it, and which of them it left out."""
    if "flow" not in summary:
        return []
    skipped = ", ".join(map(str, summary["scales_skipped"]))
    why = f", from a start of its own: scales {skipped} are not trained" if skipped else ""
    return [f"flow             {summary['flow']}{why}"]


def _inflation(summary: dict[str, Any]) -> list[str]:
    """Of the coarse stages, where their noise was inflated."""
    added = [stage.get("inflation", 0.0) for stage in summary["stages"]]
    if not any(added):
        return []
    text = ", ".join(f"{value:.2g}" for value in added[:-1])
    return [f"coarse errors    {text} times the noise, added to it at scales 1 to {len(added) - 1}"]


def _shares(fractions: list[float]) -> str:
    return ":".join(f"{m:.3f}" for m in fractions)


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """A summary for people, line by line."""

    def number(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    lines = [
        f"problem          {summary['problem']}, dimension {summary['dimension']}",
        *_flow(summary),
        *_inflation(summary),
        f"simulations      {summary['nfs']}"
        + (f" ({summary['failures']} failed)" if summary["failures"] else ""),
        f"seconds          {number(summary['seconds'])}",
        f"Jeffreys         {number(summary['jeffreys'])} +- {number(summary['jeffreys_stderr'])}"
        f"  (from {summary['jeffreys_from']})",
        *_compared(summary),
        f"  KL(p||q)       {number(summary['reverse_kl'])}",
        f"  KL(q||p)       {number(summary['forward_kl'])}",
        f"ESS fraction     {number(summary['ess_fraction'])}",
        f"k-hat            {number(summary['khat'])}",
        f"log evidence     {summary['log_evidence']:.4f} +- "
        f"{number(summary['log_evidence_stderr'])}"
        + (
            f"  (exact {summary['log_evidence_exact']:.4f})"
            if "log_evidence_exact" in summary
            else ""
        ),
        "mode fractions   "
        + _shares(summary["mode_fractions"])
        + "  weighted "
        + _shares(summary["mode_fractions_weighted"]),
        f"certificate      {summary['verdict']}",
        *(f"advice           {text}" for text in summary.get("advice", ())),
        "",
        "scale  dimension  trained  rounds      nFS  seconds  J at start         J    ESS  k-hat"
        "  modes, weighted",
    ]
    for stage in summary["stages"]:
        lines.append(
            f"{stage['scale']:5d}  {stage['dimension']:9d}  {stage['variables']:7d}  "
            f"{stage['rounds']:6d}  {stage['nfs']:7d}  {stage['seconds']:7.1f}  "
            f"{stage['jeffreys_start']:10.3g}  {stage['jeffreys']:8.2g}  "
            f"{stage['ess_fraction']:.3f}  {stage['khat']:5.2f}  "
            f"{_shares(stage['mode_fractions'])}  {_shares(stage['mode_fractions_weighted'])}"
        )
    if summary.get("rmse"):
        lines += ["", "RMSE over all sub-distributions (in brackets: 2500 exact samples)"]
        lines.append("scale  mean                 std                  correlation")
        for scale, row in summary["rmse"].items():
            cells = [
                f"{row['msign'][k]:.2e} ({row['exact samples'][k]:.2e})"
                for k in ("mean", "std", "correlation")
            ]
            lines.append(f"{scale:>5}  " + "  ".join(cells))
    return lines
