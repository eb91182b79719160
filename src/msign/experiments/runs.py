"""`msign runs`: which runs there are, how far they came, and what their certificates say."""

import datetime
import os
import pathlib
from typing import Any, NamedTuple

from msign.rundir import RunDirectory, taken_from


class Found(NamedTuple):
    """A run on disk.

    Attributes:
        path: Its directory.
        problem: Name of its problem; of image runs that of the data set.
        dimension: Of its fields.
        nfs: Simulations used.
        ess_fraction: Of its certificate.
        state: `GOOD`, `ROUGH`, `NOT RELIABLE`, `unfinished`, `images` or `damaged`.
        text: The whole verdict, or what else there is to say.
        changed: When, as ISO 8601.
    """

    path: str
    problem: str
    dimension: int | None
    nfs: int | None
    ess_fraction: float | None
    state: str
    text: str
    changed: str


def find_runs(folder: str | os.PathLike[str]) -> list[Found]:
    """All runs in a directory and below, the one that changed last at the end."""
    top = pathlib.Path(folder)
    if not top.is_dir():
        raise ValueError(f"folder must be a directory, got {os.fspath(folder)!r}")
    found = []
    for place, below, files in os.walk(top):
        if "config.json" in files:
            below.clear()  # what a run has inside belongs to it
            found.append(_look(pathlib.Path(place)))
    return sorted(found, key=lambda run: run.changed)


def _look(path: pathlib.Path) -> Found:
    names = ("summary.json", "checkpoint.npz", "config.json")
    newest = max(p.stat().st_mtime for n in names if (p := path / n).exists())
    changed = datetime.datetime.fromtimestamp(newest).isoformat(" ", "seconds")
    blank = Found(str(path), "-", None, None, None, "damaged", "", changed)
    try:
        return _read(path, blank)
    except (ValueError, OSError) as error:
        return blank._replace(text=str(error))


def _read(path: pathlib.Path, blank: Found) -> Found:
    files = RunDirectory(path, write=False)
    with taken_from(path / "config.json"):
        config: dict[str, Any] = files.read_json("config.json")
        if "moments" in config:
            name = str(config["about"].get("data", "-"))
            text = "bits per dimension: msign images evaluate"
            return blank._replace(problem=name, state="images", text=text)
        known = blank._replace(problem=str(config["problem"]), dimension=int(config["dimension"]))
    if not (path / "summary.json").exists():
        stages = sum(1 for _ in path.glob("stage_*.npz"))
        text = f"stopped after {stages} stage{'' if stages == 1 else 's'}; go on with --resume"
        return known._replace(state="unfinished", text=text)
    with taken_from(path / "summary.json"):
        summary: dict[str, Any] = files.read_json("summary.json")
        verdict = str(summary["verdict"])
        return known._replace(
            nfs=int(summary["nfs"]),
            ess_fraction=float(summary["ess_fraction"]),
            state=verdict.partition(":")[0],
            text=verdict,
        )


def runs_lines(runs: list[Found]) -> list[str]:
    """Runs for people, one a line."""
    if not runs:
        return ["no runs here"]
    width = max(len(run.path) for run in runs)
    lines = [
        f"{'run':{width}s}  {'problem':12s}  cells      nFS    ESS  changed              verdict"
    ]
    for run in runs:
        ess = "-" if run.ess_fraction is None else f"{run.ess_fraction:.3f}"
        said = run.state if run.state.isupper() else f"{run.state}: {run.text}"
        lines.append(
            f"{run.path:{width}s}  {run.problem[:12]:12s}  {run.dimension or '-':>5}  "
            f"{run.nfs or '-':>7}  {ess:>5s}  {run.changed}  {said}"
        )
    return lines
