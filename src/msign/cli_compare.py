"""`msign compare`: the command; no logic."""

import pathlib
from typing import Annotated

import typer

from msign.cli_errors import one_line_errors
from msign.cli_options import whole_number

ALL = "msign,hmc,nuts,pcn,slice,smc,ismc,svgd,psvgd,asvgd,laplace"


def compare(
    problem: Annotated[
        str, typer.Argument(help="`synthetic`, `elliptic`, or path/to/file.py:name.")
    ],
    methods: Annotated[str, typer.Option(help="Separated by commas.")] = ALL,
    budget: Annotated[
        int | None,
        typer.Option(
            help="Simulations of each method [800000; elliptic: 500000].",
            parser=whole_number,
            metavar="N",
        ),
    ] = None,
    size: Annotated[int | None, typer.Option(help="Cells per side (built-in problems).")] = None,
    hard: Annotated[bool | None, typer.Option(help="The hard variant (elliptic).")] = None,
    n: Annotated[int, typer.Option("-n", "--n", help="Samples of each method.")] = 2500,
    seeds: Annotated[str, typer.Option(help="Separated by commas.")] = "0,1,2",
    scale: Annotated[str, typer.Option(help="`all`, `L` (the finest), or numbers.")] = "L",
    reference: Annotated[
        int | None,
        typer.Option(help="Simulations of the reference, where none is exact [twice the budget]."),
    ] = None,
    out: Annotated[pathlib.Path, typer.Option(help="Directory; what is done is kept.")] = (
        pathlib.Path("comparison")
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
    """Compare MsIGN with other methods at one budget; run it again to go on."""
    from msign.experiments.compare import run_comparison
    from msign.experiments.run import default_budget, load_problem
    from msign.experiments.tasks import Setting
    from msign.report.comparison_page import write_report
    from msign.report.inserted import insert

    with one_line_errors():
        if not report:
            made = load_problem(problem, size=size, hard=hard)
            limit = default_budget(problem) if budget is None else budget
            options = {k: v for k, v in {"size": size, "hard": hard}.items() if v is not None}
            setting = Setting(
                origin={"problem": problem, "options": options},
                methods=tuple(name.strip() for name in methods.split(",")),
                budget=limit,
                n=n,
                seeds=numbers("seeds", seeds),
                scales=scale_numbers(scale, made.scales),
                reference=2 * limit if reference is None else reference,
            )
            for line in run_comparison(made, setting, out):
                typer.echo(line)
        written = write_report(out)
        written += insert(out / "comparison.md", into) if into is not None else []
        typer.echo("\n" + (out / "comparison.md").read_text())
    typer.echo("\n".join(f"written to {path}" for path in written))


def numbers(name: str, text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"{name} must be whole numbers separated by commas, got {text!r}"
        ) from None


def scale_numbers(text: str, scales: int) -> tuple[int, ...]:
    """Numbers of the scales that a text names: all, L for the finest, or a list."""
    if text == "all":
        return tuple(range(1, scales + 1))
    return (scales,) if text == "L" else numbers("scale", text)
