"""Options that commands share, what a shell may complete in them, and how results are printed."""

import json
import math
import pathlib
from typing import Annotated, Any

import typer

from msign.cli_errors import printable

# As in `experiments.run`, which takes seconds to import: a shell that completes cannot wait.
BUILT_IN = ("synthetic", "elliptic")
# Options of `msign run` that say how it learns.
TRAINING = ("flow", "method", "blocks", "hidden", "steps", "tolerance", "as_in_paper")
FLOWS = ("auto", "informed", "cellwise", "glow", "both")


def is_given(context: typer.Context, option: str) -> bool:
    """Whether an option stands on the command line."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def whole_number(text: str | int) -> int:
    """A count as people write it: 20000, 20_000 or 2e4."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number.is_integer():
        raise typer.BadParameter(f"must be a whole number, as 20000 or 2e4, got {text!r}")
    return int(number)


def problem_names(incomplete: str) -> list[str]:
    """Built-in problems and Python files that begin with what is typed."""
    typed = pathlib.Path(incomplete)
    folder = typed if incomplete.endswith("/") else typed.parent
    found = sorted(folder.glob("*")) if folder.is_dir() else []
    files = [f"{p}/" if p.is_dir() else str(p) for p in found if p.is_dir() or p.suffix == ".py"]
    return [name for name in (*BUILT_IN, *files) if name.startswith(incomplete)]


def run_names(incomplete: str) -> list[str]:
    """Directories of runs that begin with what is typed, and directories on the way to them."""
    typed = pathlib.Path(incomplete)
    folder = typed if incomplete.endswith("/") else typed.parent
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    names = [str(p) if (p / "config.json").exists() else f"{p}/" for p in found if p.is_dir()]
    return [name for name in names if name.startswith(incomplete)]


def flow_names(incomplete: str) -> list[str]:
    """Kinds of flow that begin with what is typed."""
    return [name for name in FLOWS if name.startswith(incomplete)]


Problem = Annotated[
    str,
    typer.Argument(
        help="`synthetic`, `elliptic`, or path/to/file.py:name.", autocompletion=problem_names
    ),
]
FinishedRun = Annotated[
    pathlib.Path, typer.Argument(help="Directory of a finished run.", autocompletion=run_names)
]
Out = Annotated[pathlib.Path, typer.Option(help="Directory of the run.", autocompletion=run_names)]
Seed = Annotated[int, typer.Option(help="Random seed; same seed, same numbers.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Size = Annotated[int | None, typer.Option(help="Cells per side (built-in problems).")]
Hard = Annotated[bool | None, typer.Option(help="The hard variant (elliptic).")]
Gamma = Annotated[float | None, typer.Option(help="Noise (built-in problems).")]
Tilt = Annotated[float | None, typer.Option(help="F = t^2 + tilt t (synthetic).")]


def show(lines: list[str], values: Any, as_json: bool) -> None:
    """Print a result: lines for people, or one JSON value for scripts."""
    text = json.dumps(_strict(values), indent=1) if as_json else printable("\n".join(lines))
    typer.echo(text)


def _strict(value: Any) -> Any:
    """The value as JSON knows it, which has neither NaN nor infinity, nor NumPy's numbers."""
    if isinstance(value, dict):
        return {str(k): _strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(v) for v in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
