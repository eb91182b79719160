"""Commands around a run: a problem to start from, a look at it, what runs there are; no logic."""

import pathlib
from typing import Annotated

import typer

from msign.cli_errors import one_line_errors
from msign.cli_options import Hard, Json, Problem, Seed, Size, show


def new(
    file: Annotated[pathlib.Path, typer.Argument(help="A .py file to write.")],
    overwrite: Annotated[bool, typer.Option(help="Replace a file that exists.")] = False,
) -> None:
    """Write a commented problem file to start from; it runs as it is."""
    from msign.experiments.check import write_template

    with one_line_errors():
        write_template(file, overwrite)
    typer.echo(f"written to {file}\nnext: msign check {file}")


def check(
    problem: Problem,
    size: Size = None,
    hard: Hard = None,
    n: Annotated[int, typer.Option("-n", help="Prior draws.")] = 50,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Look at a problem before it is run: shapes, derivative, coarse scales, time."""
    from msign.experiments.check import check_problem, checked_lines
    from msign.experiments.run import load_problem

    with one_line_errors():
        found = check_problem(load_problem(problem, size=size, hard=hard), n, seed)
    show(checked_lines(found), found.values(), as_json)
    if not found.agrees:
        raise typer.Exit(1)


def runs(
    folder: Annotated[pathlib.Path | None, typer.Argument(help="Where to look: `runs`.")] = None,
    as_json: Json = False,
) -> None:
    """List runs with their verdicts, the latest last."""
    from msign.experiments.runs import find_runs, runs_lines

    usual = pathlib.Path("runs")
    with one_line_errors():
        found = find_runs(folder or usual) if folder or usual.exists() else []
    show(runs_lines(found), [run._asdict() for run in found], as_json)


def register(app: typer.Typer) -> None:
    """Add these commands to an application."""
    for command in (new, check, runs):
        app.command()(command)
