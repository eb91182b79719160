"""`msign refine`: a finished run, taken on to the posterior by sequential Monte Carlo."""

import os
import pathlib
import shutil
from typing import Any

from msign.experiments.run import BUILT_IN, load_problem
from msign.inference import SMC, Posterior, Refined
from msign.problems import InverseProblem
from msign.rundir import RunDirectory, taken_from


def problem_of(
    run: str | os.PathLike[str], name: str | None, options: dict[str, Any]
) -> InverseProblem:
    """The problem of a run: the named one, or the built-in one that the run was made for.

    A file of Python code is run only if its name is given, never because a directory says so.
    """
    if name is not None:
        return load_problem(name, **options)
    path = pathlib.Path(run) / "problem.json"
    origin: dict[str, Any] = {"problem": None, "options": {}}
    if path.exists():
        with taken_from(path):
            found = RunDirectory(run, write=False).read_json(path.name)
            origin = {"problem": str(found["problem"]), "options": dict(found["options"])}
    if origin["problem"] not in BUILT_IN:
        known = "unknown" if origin["problem"] is None else repr(origin["problem"])
        raise ValueError(
            f"problem must be given (--problem FILE.py:NAME): that of the run in {run} is {known}, "
            "and code is run only if you name it"
        )
    given = {k: v for k, v in options.items() if v is not None}
    return load_problem(origin["problem"], **{**origin["options"], **given})


def refine_run(
    run: str | os.PathLike[str],
    problem: str | None,
    options: dict[str, Any],
    n: int,
    budget: int,
    seed: int,
    moves: str,
    resume: bool,
    overwrite: bool,
    executor: int | str | None = None,
) -> tuple[Refined, pathlib.Path]:
    """Refine a finished run; fields and numbers go to its directory `refine`."""
    if not (pathlib.Path(run) / "posterior.json").exists():
        raise ValueError(f"run must hold a finished run, got {os.fspath(run)!r}")
    posterior = Posterior.load(run, problem_of(run, problem, options))
    out = pathlib.Path(run) / "refine"
    if overwrite and (out / "config.json").exists():
        shutil.rmtree(out)
    return posterior.refine(n, budget, seed, SMC(moves=moves), out, resume, executor=executor), out


def refined_lines(found: Refined) -> list[str]:
    """A refinement for people, line by line."""
    shares = ":".join(f"{m:.3f}" for m in found.mode_fractions)
    errors = ":".join(f"{m:.3f}" for m in found.mode_fractions_stderr)
    return [
        f"fields           {len(found.fields)} of {found.particles} particles, from "
        f"{found.distinct} draws of the flow",
        f"simulations      {found.nfs}" + (f" ({found.failures} failed)" if found.failures else ""),
        f"seconds          {found.seconds:.4g}",
        f"temperatures     {len(found.temperatures) - 1}",
        f"acceptance       {found.acceptance:.3f}",
        f"log evidence     {found.log_evidence:.4f} +- {found.log_evidence_stderr:.2g}",
        f"mode fractions   {shares} +- {errors}",
        f"certificate      {found.verdict}",
    ]
