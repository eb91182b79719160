"""The commands of image synthesis, `msign images ...`; no logic."""

import pathlib
from typing import Annotated

import typer

from msign.cli_errors import one_line_errors

app = typer.Typer(
    help="Generative models of images: train, evaluate, look.",
    no_args_is_help=True,
    add_completion=False,
)

Data = Annotated[
    str,
    typer.Argument(
        help="`digits` (needs no files), `mnist`, `fashion-mnist`, `cifar10`, `celeba64`, "
        "`celeba128`, `imagenet32`, `imagenet64`, an npz file, or a folder of images."
    ),
]
DataDir = Annotated[
    pathlib.Path | None, typer.Option(help="Folder with the files of the data set.")
]
Run = Annotated[pathlib.Path, typer.Argument(help="Directory of a finished run.")]
Size = Annotated[int | None, typer.Option(help="Cut and reduce a folder's images to this side.")]
Seed = Annotated[int, typer.Option(help="Random seed; same seed, same numbers.")]
Picture = Annotated[
    pathlib.Path | None, typer.Option("-o", help="A .png file; by default in the run's directory.")
]
Temperature = Annotated[float, typer.Option(help="Standard deviation of the noise.")]


@app.command()
def train(
    data: Data = "digits",
    data_dir: DataDir = None,
    size: Size = None,
    preset: Annotated[
        str | None,
        typer.Option(help="The paper's: mnist, cifar10, celeba64, celeba128, imagenet32/64."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="`msign`, or the baseline `glow`.")] = None,
    scales: Annotated[int | None, typer.Option(help="Number of scales L.")] = None,
    blocks: Annotated[int | None, typer.Option(help="Glow blocks K per scale.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Hidden channels.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of the last stage.")] = None,
    stage_epochs: Annotated[int | None, typer.Option(help="Epochs of each earlier stage.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images per step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of Adam.")] = None,
    output: Annotated[str | None, typer.Option(help="`plain` or `sigmoid`.")] = None,
    bits: Annotated[int | None, typer.Option(help="Bits per value to model, 1 to 8.")] = None,
    pad: Annotated[int | None, typer.Option(help="Side up to which zeros are added.")] = None,
    per_band: Annotated[
        bool | None, typer.Option("--per-band", help="mu_l per Haar band and channel.")
    ] = None,
    recompute: Annotated[
        str | None, typer.Option(help="`inversion` (default), `blocks` or `nothing`.")
    ] = None,
    seed: Seed = 0,
    out: Annotated[pathlib.Path, typer.Option(help="Directory of the run.")] = pathlib.Path(
        "runs/images"
    ),
    resume: Annotated[bool, typer.Option(help="Go on with an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Delete what `out` holds first.")] = False,
) -> None:
    """Train a model of images; write it, its log and samples."""
    from msign.experiments.images import setting_of, train_run

    with one_line_errors():
        setting = setting_of(
            data,
            preset,
            model=model,
            scales=scales,
            blocks=blocks,
            hidden=hidden,
            epochs=epochs,
            stage_epochs=stage_epochs,
            batch=batch,
            learning_rate=learning_rate,
            output=output,
            bits=bits,
            pad=pad,
            per_band=per_band,
            recompute=recompute,
        )
        lines = train_run(data, data_dir, size, setting, out, seed, resume, overwrite)
    typer.echo("\n".join(lines))


@app.command()
def evaluate(
    run: Run,
    data_dir: DataDir = None,
    draws: Annotated[int, typer.Option(help="Draws of dequantisation noise per image.")] = 1,
    images: Annotated[
        int | None, typer.Option(help="How many test images, the first ones; all unless given.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Bits per dimension of the test images, and the error of a round trip."""
    from msign.experiments.images import evaluate_run

    with one_line_errors():
        lines = evaluate_run(run, data_dir, draws, images, seed)
    typer.echo("\n".join(lines))


@app.command()
def sample(
    run: Run,
    n: Annotated[int, typer.Option("-n", help="Number of images.")] = 64,
    temperature: Temperature = 1.0,
    columns: Annotated[int, typer.Option(help="Images per row.")] = 8,
    seed: Seed = 0,
    output: Picture = None,
) -> None:
    """Draw new images."""
    from msign.experiments.images import sample_run

    with one_line_errors():
        path = sample_run(run, n, temperature, columns, seed, output)
    typer.echo(f"written to {path}")


@app.command()
def interpolate(
    run: Run,
    a: Annotated[str, typer.Argument(help="An image file, or a number: that test image.")],
    b: Annotated[str, typer.Argument(help="Another.")],
    data_dir: DataDir = None,
    steps: Annotated[int, typer.Option(help="Images, both ends included.")] = 9,
    output: Picture = None,
) -> None:
    """Go from image A to image B on a straight line in latent space."""
    from msign.experiments.images import interpolate_run

    with one_line_errors():
        path = interpolate_run(run, a, b, data_dir, steps, output)
    typer.echo(f"written to {path}")


@app.command()
def snapshots(
    run: Run,
    n: Annotated[int, typer.Option("-n", help="Number of images.")] = 6,
    recover: Annotated[
        bool, typer.Option("--recover", help="Recover test images instead of drawing new ones.")
    ] = False,
    data_dir: DataDir = None,
    temperature: Temperature = 1.0,
    seed: Seed = 0,
    output: Picture = None,
) -> None:
    """Look inside: head, two trisection points and tail of every F_l."""
    from msign.experiments.images import snapshots_run

    with one_line_errors():
        path = snapshots_run(run, n, recover, data_dir, temperature, seed, output)
    typer.echo(f"written to {path}")


@app.command()
def mu(
    data: Data = "digits",
    data_dir: DataDir = None,
    size: Size = None,
    scales: Annotated[int | None, typer.Option(help="Number of scales L.")] = None,
    images: Annotated[int, typer.Option(help="How many images, chosen at random.")] = 10_000,
    per_band: Annotated[bool, typer.Option("--per-band", help="Per band and channel.")] = False,
    output: Annotated[str, typer.Option(help="`plain` or `sigmoid`.")] = "plain",
    pad: Annotated[int | None, typer.Option(help="Side up to which zeros are added.")] = None,
    seed: Seed = 0,
) -> None:
    """Estimate mu_l of the Haar prior by moment matching (appendix G)."""
    from msign.experiments.images import mu_lines

    with one_line_errors():
        lines = mu_lines(data, data_dir, size, scales, images, per_band, output, pad, seed)
    typer.echo("\n".join(lines))
