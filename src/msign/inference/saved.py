"""A posterior in a directory: written from memory, and read without running code from it."""

import os
import pathlib
from typing import TYPE_CHECKING

from msign.environment import versions
from msign.inference.certificate import Certificate
from msign.inference.config import FitConfig
from msign.inference.files import FitFiles, prior_network
from msign.inference.known import Known
from msign.inference.predictive import Predictive
from msign.problems.inverse import InverseProblem
from msign.rundir import taken_from

if TYPE_CHECKING:
    from msign.inference.posterior import Posterior

SAVED = (
    "seed",
    "nfs",
    "budget",
    "failures",
    "seconds",
    "records",
    "stages",
    "reference",
    "scale",
)  # attributes that a file keeps as they are


def save_posterior(posterior: "Posterior", path: str | os.PathLike[str]) -> None:
    """Write the posterior to a directory: one file per stage, certificates, summary."""
    files = FitFiles(path)
    what = {
        "problem": posterior.problem.name,
        "dimension": posterior.problem.dim,
        "seed": posterior.seed,
        "fit": posterior.config.to_json(),
    }
    if files.started:
        files.check_same(what)  # stages that stand there already are kept
    else:
        files.write_json("config.json", {**what, "budget": posterior.budget})
        files.save_prior(posterior.problem)
    for scale in posterior.scales:
        if scale not in files.finished_stages():
            files.save_stage(posterior.networks[scale], scale, posterior.config.kind, {})
    kept = {str(s): posterior.certificates[s].to_json() for s in posterior.scales}
    values = {name: getattr(posterior, name) for name in SAVED}
    files.write_json("posterior.json", {**values, "certificates": kept})
    posterior.known.save(files.known)
    if posterior.predictive is not None:
        posterior.predictive.save(files.predictive)
    files.write_json("environment.json", versions())
    files.write_json("summary.json", posterior.summary())


def load_posterior(
    kind: type["Posterior"], path: str | os.PathLike[str], problem: InverseProblem | None = None
) -> "Posterior":
    """Read a posterior. No code from the directory is run.

    Without its `problem` it gives samples and densities, but nothing that simulates.
    """
    if not (pathlib.Path(path) / "posterior.json").exists():
        raise ValueError(f"path must hold a finished run, got {path}")
    files = FitFiles(path, write=False)
    with taken_from(files.path / "config.json"):
        had = files.read_json("config.json")
        config, recorded = FitConfig.from_json(had["fit"]), (had["problem"], had["dimension"])
    own = problem is not None
    problem = files.load_problem() if problem is None else problem
    for name, known, value in zip(
        ("problem", "dimension"), recorded, (problem.name, problem.dim), strict=True
    ):
        if known != value:
            raise ValueError(f"problem must be that of the run: {name} {known!r}, got {value!r}")
    with taken_from(files.path / "posterior.json"):
        saved = files.read_json("posterior.json")
        certificates = {
            int(s): Certificate.from_json(c) for s, c in saved.pop("certificates").items()
        }
        reference = saved.pop("reference")
    prior = prior_network(problem, config)
    networks = {
        scale: files.load_stage(scale, prior, config.kind)[0].cut(scale) for scale in certificates
    }
    with taken_from(files.path / "posterior.json"):
        posterior = kind(problem, networks, certificates, config, **saved)
        posterior.stage(posterior.scale)
    posterior.reference = reference
    posterior.predictive = Predictive.load(files.predictive)
    if not own:
        posterior.known = Known.load(files.known, problem.prior.lattice.field_shape)
    return posterior
