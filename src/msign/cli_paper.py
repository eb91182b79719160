"""`msign ablate` and `msign paper`: the commands; no logic."""

import pathlib
from typing import Annotated

import typer

from msign.cli_compare import numbers, scale_numbers
from msign.cli_errors import one_line_errors
from msign.cli_options import whole_number

ALL = "glow,msign-snn,msign-kl-s,msign-kl,msign-as-s,msign-as,msign"
Quick = Annotated[bool, typer.Option("--quick", help="16 x 16 cells, small networks and budgets.")]


def register(app: typer.Typer) -> None:
    """Add the commands to those of `msign`."""
    app.command()(ablate)
    app.command()(paper)


def ablate(
    problem: Annotated[str, typer.Argument(help="`synthetic` or `elliptic`.")],
    variants: Annotated[str, typer.Option(help="Separated by commas.")] = ALL,
    training: Annotated[str, typer.Option(help="`paper` (as it stands) or `ours`.")] = "paper",
    budget: Annotated[
        int | None,
        typer.Option(
            help="Simulations of each variant [800000; elliptic: 500000].",
            parser=whole_number,
            metavar="N",
        ),
    ] = None,
    size: Annotated[int | None, typer.Option(help="Cells per side [64].")] = None,
    n: Annotated[int, typer.Option("-n", "--n", help="Samples of each variant.")] = 2500,
    seeds: Annotated[str, typer.Option(help="Separated by commas.")] = "0",
    scale: Annotated[str, typer.Option(help="`all`, `L` (the finest), or numbers.")] = "all",
    quick: Quick = False,
    out: Annotated[pathlib.Path, typer.Option(help="Directory; what is done is kept.")] = (
        pathlib.Path("ablation")
    ),
    report: Annotated[
        bool, typer.Option("--report", help="Only write tables and figures of what `out` holds.")
    ] = False,
    into: Annotated[
        pathlib.Path | None,
        typer.Option(
            help="A document with marks <!-- begin OUT -->, <!-- end OUT --> for the page."
        ),
    ] = None,
) -> None:
    """MsIGN without each of its parts, beside the paper's table; run it again to go on."""
    from msign.experiments.paper.ablation import ablation_setting, run_and_report
    from msign.report.inserted import insert

    with one_line_errors():
        wanted = ablation_setting(
            problem, training, budget, size, n, numbers("seeds", seeds), quick
        )
        wanted = wanted.only(tuple(v.strip() for v in variants.split(",")))
        scales = scale_numbers(scale, wanted.problem.scales)
        for line in run_and_report(wanted.at(scales), out, report):
            typer.echo(line)
        written = insert(out / "ablation.md", into) if into is not None else []
        for path in written:
            typer.echo(f"written to {path}")


def paper(
    name: Annotated[str, typer.Argument(help="`list`, `all`, or a name of the list.")] = "list",
    quick: Quick = False,
    out: Annotated[pathlib.Path, typer.Option(help="Directory; what is done is kept.")] = (
        pathlib.Path("paper")
    ),
    data_dir: Annotated[
        pathlib.Path | None, typer.Option(help="Folder of image data sets, a folder for each.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Separated by commas [0,1,2; quick: 0].")] = "",
    again: Annotated[bool, typer.Option("--again", help="Also what is done already.")] = False,
) -> None:
    """Every figure and table of the paper: which there are, one of them, or all."""
    from msign.experiments.paper.registry import ITEMS, list_lines, make

    with one_line_errors():
        if name == "list":
            typer.echo("\n".join(list_lines()))
            return
        chosen = numbers("seeds", seeds) if seeds else None
        for line in make(ITEMS, name, out, quick, data_dir, chosen, again, typer.echo):
            typer.echo(line)
