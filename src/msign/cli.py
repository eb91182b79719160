"""The commands; no logic."""

import dataclasses
import pathlib
import shutil
from typing import Annotated

import typer

from msign import cli_compare, cli_images, cli_paper, cli_problems
from msign.cli_errors import Commands, one_line_errors
from msign.cli_options import (
    TRAINING,
    FinishedRun,
    Gamma,
    Hard,
    Json,
    Out,
    Problem,
    Seed,
    Size,
    Tilt,
    flow_names,
    is_given,
    show,
    whole_number,
)

app = typer.Typer(
    cls=Commands,
    help="Multiscale invertible generative networks for high-dimensional Bayesian inference.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(cli_images.app, name="images")
cli_problems.register(app)
app.command()(cli_compare.compare)
cli_paper.register(app)

Workers = Annotated[
    int | None,
    typer.Option(help="Processes that simulate (forward maps in NumPy).", show_default=False),
]
Dask = Annotated[
    str | None,
    typer.Option(help="Dask scheduler, tcp://..., that simulates.", show_default=False),
]


@app.callback()
def _setup() -> None:
    """Keep compiled code between calls of the command."""
    import warnings

    warnings.filterwarnings("ignore", message="(?s).*ArviZ is undergoing", category=FutureWarning)
    with one_line_errors():
        from msign.compilation import keep_compiled_programs

        keep_compiled_programs()


@app.command()
def run(
    context: typer.Context,
    problem: Problem,
    size: Size = None,
    gamma: Gamma = None,
    tilt: Tilt = None,
    hard: Hard = None,
    black_box: Annotated[
        bool | None, typer.Option(help="Hide the derivative (synthetic).", show_default=False)
    ] = None,
    inflate: Annotated[
        int | None, typer.Option(help="Draws that tell coarse errors, 0: none (built-in problems).")
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            help="Forward simulations, a hard limit [800000; elliptic: 500000].",
            parser=whole_number,
            metavar="N",
        ),
    ] = None,
    seed: Seed = 0,
    out: Out = pathlib.Path("runs/latest"),
    flow: Annotated[
        str,
        typer.Option(
            help="`auto`, `informed`, `cellwise`, `glow` or `both`.", autocompletion=flow_names
        ),
    ] = "auto",
    method: Annotated[str, typer.Option(help="See the reference of FitConfig.")] = "auto",
    blocks: Annotated[int, typer.Option(help="Blocks of each Glow flow.")] = 16,
    hidden: Annotated[int, typer.Option(help="Hidden channels of Glow flows.")] = 32,
    steps: Annotated[
        int | None,
        typer.Option(help="Gradient steps per round; fewer where a step takes seconds."),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Divergence at which the finest scale is good enough; 0.01 takes about half as "
            "long as the default [0.001].",
        ),
    ] = None,
    as_in_paper: Annotated[
        bool, typer.Option("--as-in-paper", help="The paper's algorithm as it stands.")
    ] = False,
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Delete what `out` holds first.")] = False,
    as_json: Json = False,
    workers: Workers = None,
    dask: Dask = None,
) -> None:
    """Learn a posterior; print its summary, write figures and the page `report.html`."""
    with one_line_errors(checkpoints=out):
        from msign.bijections import GlowConfig
        from msign.experiments.run import (
            default_budget,
            load_problem,
            named_executor,
            named_flow,
            run_problem,
            summary_lines,
        )
        from msign.inference import FitConfig

        chosen = {"gamma": gamma, "tilt": tilt, "black_box": black_box, "hard": hard}
        chosen |= {"inflate": 0 if as_in_paper and inflate is None else inflate}
        made = load_problem(problem, size=size, **chosen)
        kind = named_flow(flow, GlowConfig(blocks=blocks, hidden=hidden))
        config = FitConfig(flow=kind, method=method, steps=steps)
        config = FitConfig.paper(problem) if as_in_paper else config
        if tolerance is not None:
            config = dataclasses.replace(config, tolerance=tolerance)
        executor = named_executor(workers, dask)
        if overwrite and (out / "config.json").exists():
            shutil.rmtree(out)
        limit = default_budget(problem) if budget is None else budget
        given = {"size": size, **chosen}
        origin = {
            "problem": problem,
            "options": {k: v for k, v in given.items() if v is not None},
            "training": {k: context.params[k] for k in TRAINING if is_given(context, k)},
        }
        summary = run_problem(made, out, limit, seed, resume, config, origin, executor)
    written = ["", f"written to {out}", f"report: {out / 'report.html'}"]
    show([*summary_lines(summary), *written], summary, as_json)


@app.command()
def report(
    run: Annotated[pathlib.Path, typer.Argument(help="Directory of a finished run.")],
) -> None:
    """Write `report.html`, one page that needs no network, from the files of a finished run."""
    from msign.experiments.report import report_run

    with one_line_errors():
        path = report_run(run)
    typer.echo(f"written to {path}")


@app.command()
def sample(
    run: FinishedRun,
    n: Annotated[int, typer.Option("-n", help="Number of fields.")] = 2500,
    output: Annotated[pathlib.Path, typer.Option("-o", help="A .nc or .npy file.")] = pathlib.Path(
        "samples.nc"
    ),
    seed: Seed = 0,
) -> None:
    """Draw independent samples from a finished run."""
    from msign.experiments.run import sample_run

    with one_line_errors():
        sample_run(run, n, seed, output)
    typer.echo(f"{n} samples written to {output}")


@app.command("show")
def show_run(run: FinishedRun, as_json: Json = False) -> None:
    """Print the summary of a finished run."""
    from msign.experiments.run import read_summary, summary_lines
    from msign.rundir import taken_from

    with one_line_errors():
        summary = read_summary(run)
        with taken_from(run / "summary.json"):
            lines = summary_lines(summary)
    show(lines, summary, as_json)


@app.command()
def refine(
    run: FinishedRun,
    problem: Annotated[
        str | None,
        typer.Option(help="Of the run; needed if it is path/to/file.py:name.", show_default=False),
    ] = None,
    size: Size = None,
    gamma: Gamma = None,
    tilt: Tilt = None,
    hard: Hard = None,
    n: Annotated[int, typer.Option("-n", "--n", help="Number of fields.")] = 1000,
    budget: Annotated[
        int,
        typer.Option(help="Forward simulations, a hard limit.", parser=whole_number, metavar="N"),
    ] = 100_000,
    seed: Seed = 0,
    moves: Annotated[str, typer.Option(help="`pcn`, `langevin` or `auto`.")] = "auto",
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted refinement.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Delete an older refinement first.")] = False,
    as_json: Json = False,
    workers: Workers = None,
    dask: Dask = None,
) -> None:
    """Take a run on to the posterior by sequential Monte Carlo: fields, evidence, modes."""
    with one_line_errors(checkpoints=run / "refine"):
        from msign.experiments.refine import refine_run, refined_lines
        from msign.experiments.run import named_executor

        options = {"size": size, "gamma": gamma, "tilt": tilt, "hard": hard}
        executor = named_executor(workers, dask)
        given = (run, problem, options, n, budget, seed, moves, resume, overwrite)
        found, out = refine_run(*given, executor)
    show([*refined_lines(found), "", f"written to {out}"], found.numbers(), as_json)


@app.command()
def serve(
    problem: Annotated[
        str, typer.Argument(help="`synthetic`, `elliptic`, or path/to/file.py:name.")
    ],
    size: Annotated[int | None, typer.Option(help="Cells per side (built-in problems).")] = None,
    port: Annotated[int, typer.Option(help="Of this machine, on all of its interfaces.")] = 4242,
    workers: Annotated[int, typer.Option(help="Requests worked on at a time.")] = 1,
) -> None:
    """Offer the forward map of a problem as a UM-Bridge server."""
    from msign.experiments.run import load_problem
    from msign.problems import serve as serve_problem

    with one_line_errors():
        made = load_problem(problem, size=size)
        typer.echo(f"model {made.name}: {made.dim} inputs, {made.layout.size} outputs")
        serve_problem(made, port, workers)


@app.command()
def modes(
    problem: Annotated[str, typer.Argument(help="`elliptic`, or path/to/file.py:name.")],
    size: Size = None,
    hard: Hard = None,
    starts: Annotated[int, typer.Option(help="Searches per scale.")] = 12,
    seed: Seed = 0,
    out: Annotated[pathlib.Path, typer.Option(help="Folder of the picture.")] = pathlib.Path(
        "modes"
    ),
) -> None:
    """Search for the maxima of a posterior at every scale, and for what lies between them."""
    from msign.experiments.modes import run_modes
    from msign.experiments.run import load_problem

    with one_line_errors():
        made = load_problem(problem, size=size, hard=hard)
        lines, picture = run_modes(made, out, starts, seed)
    typer.echo("\n".join(lines))
    if picture is not None:
        typer.echo(f"\nwritten to {picture}")


@app.command()
def capture(
    problem: Annotated[str, typer.Argument(help="Of the run: a name or path/to/file.py:name.")],
    run: FinishedRun,
    size: Size = None,
    hard: Hard = None,
    n: Annotated[int, typer.Option("-n", help="Samples, and simulations, per scale.")] = 4000,
    seed: Seed = 5,
) -> None:
    """Modes that a run has found at every scale: clusters, marginals, trained against untrained."""
    from msign.experiments.capture import run_capture
    from msign.experiments.run import load_problem
    from msign.inference import Posterior

    with one_line_errors():
        posterior = Posterior.load(run, load_problem(problem, size=size, hard=hard))
        lines, pictures = run_capture(posterior, run / "figures", n, seed)
    typer.echo("\n".join(lines))
    typer.echo("\n" + "\n".join(f"written to {path}" for path in pictures))


@app.command()
def reference(
    problem: Annotated[str, typer.Argument(help="Of the run: a name or path/to/file.py:name.")],
    run: FinishedRun,
    size: Size = None,
    hard: Hard = None,
    chains: Annotated[int, typer.Option(help="Number of chains.")] = 96,
    steps: Annotated[int, typer.Option(help="Steps of each.")] = 2000,
    n: Annotated[int, typer.Option("-n", help="Draws of the flow, and Metropolis steps.")] = 20_000,
    seed: Seed = 11,
) -> None:
    """Moments of a run against long exact chains and independence Metropolis."""
    from msign.experiments.reference import as_json, compare, comparison_lines
    from msign.experiments.run import load_problem
    from msign.inference import Posterior
    from msign.rundir import RunDirectory

    with one_line_errors():
        posterior = Posterior.load(run, load_problem(problem, size=size, hard=hard))
        found = compare(posterior, chains, steps, n, seed)
        RunDirectory(run).write_json("reference.json", as_json(found))
    typer.echo("\n".join(comparison_lines(found)))


@app.command()
def multiscale(
    problem: Annotated[str, typer.Argument(help="A built-in problem, or path/to/file.py:name.")],
    size: Size = None,
    n: Annotated[int, typer.Option("-n", help="Prior draws.")] = 100,
    seed: Seed = 0,
    out: Annotated[pathlib.Path, typer.Option(help="Folder of the pictures.")] = pathlib.Path(
        "multiscale"
    ),
) -> None:
    """Discretisation error of the forward map at every scale (figure 2 of the paper)."""
    from msign.experiments.multiscale import run_multiscale
    from msign.experiments.run import PICTURES, load_problem

    with one_line_errors():
        found = load_problem(problem, size=size)
        lines, pictures = run_multiscale(found, out, n, seed, PICTURES.get(problem))
    typer.echo("\n".join(lines))
    typer.echo("\n" + "\n".join(f"written to {path}" for path in pictures))


@app.command()
def prior(
    size: Annotated[int, typer.Option(help="Cells per side, even, at most 4096.")] = 64,
    seed: Seed = 0,
    out: Annotated[pathlib.Path, typer.Option(help="Folder of the picture.")] = pathlib.Path(
        "demo"
    ),
) -> None:
    """Draw prior fields through the network: the same seeds, refined scale by scale."""
    from msign.report.figures import save_figures
    from msign.report.prior import prior_figure

    with one_line_errors():
        (path,) = save_figures({"prior": prior_figure(size, seed)}, out)
    typer.echo(f"written to {path}")
