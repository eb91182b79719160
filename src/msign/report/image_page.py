"""The report of a model of images: bits, samples through the scales, how it was made."""

import base64
import io
import json
import math
import os
import pathlib
import shlex
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from msign.images.rundir import ImageRun
from msign.images.synthesis import sample_images
from msign.report import markup
from msign.report.images import image_grid
from msign.report.markup import Html, captioned, count, joined, section, tag
from msign.report.page import certificate, film, heading, tiles, write_page
from msign.report.style import ACCENT, SOFT, as_svg, legend, new_figure, numbered, plain
from msign.report.words import Words

SAMPLES, COLUMNS = 24, 6
IMPROVING = 0.002  # part of the bits that the last validation of a stage still saved
OVERFIT = 0.02  # part by which held-out images cost more than those trained on


def write_image_report(run: str | os.PathLike[str]) -> pathlib.Path:
    """Write the page of a finished run of images to its directory; returns its path."""
    files = ImageRun.existing(run)
    config, log = files.read_config(), files.read_log()
    path = files.path / "evaluation.json"
    evaluation = files.files.read_json(path.name) if path.exists() else None
    about = config["about"]
    name = pathlib.PurePath(str(about.get("data", "images"))).name
    shape = " × ".join(map(str, config["shape"]))
    body = joined(
        [
            heading(name, f"images of {shape}"),
            certificate(image_words(evaluation, log, shlex.quote(os.fspath(run)), _hidden(config))),
            tag("section", tiles(_numbers(evaluation, log)), id="summary"),
            _samples(files),
            _training(log),
            _reproduce(config),
            tag("footer", "Made by msign from the run's own files."),
        ]
    )
    return write_page(run, f"msign: {name}", body)


def image_words(
    evaluation: dict[str, Any] | None,
    log: list[dict[str, Any]],
    run: str = "RUN",
    hidden: int | None = None,
) -> Words:
    """What can be said of a model of images by its bits, on test images and while it trained.

    Args:
        evaluation: On test images, where there were any.
        log: Of training.
        run: The run's directory, for commands.
        hidden: Channels that its networks have inside.
    """
    last, kept = log[-1], _kept(log)
    trust, doubt, steps = [], [], []
    if evaluation is None:
        steps.append(f"Evaluate it on test images: `msign images evaluate {run}`.")
    else:
        trust.append(
            f"Bits per dimension, {evaluation['bits_per_dim']:.4f} ± "
            f"{evaluation['standard_error']:.4f} of {evaluation['test_images']} test images: an "
            "exact density with every constant in it."
        )
        trust.append(
            "That the network is invertible: images come back to within "
            f"{_few_digits(evaluation['round_trip_largest_error'])} of a grey level."
        )
    doubt.append("How samples look: few bits and good pictures are not the same. See below.")
    gap = kept["valid_bits"] / kept["train_bits"] - 1 if kept["train_bits"] > 0 else 0.0
    if gap > OVERFIT:
        doubt.append(
            f"What it knows beyond its images: others cost {100 * gap:.2g} percent more bits."
        )
    before = [r["valid_bits"] for r in log[:-1] if r["stage"] == last["stage"]]
    gain = min(before, default=math.inf) - last["valid_bits"]
    if gain > IMPROVING * abs(last["valid_bits"]):
        steps.append(f"It was still learning: train longer, `--epochs {2 * last['epoch']}`.")
    elif gap > OVERFIT:
        fewer = f"`--hidden {hidden // 2}`" if hidden else "half of its hidden channels"
        steps.append(f"More images or a smaller network: {fewer}.")
    steps.append(f"Draw more: `msign images sample {run} -n 64`.")
    title = "A density of images" if evaluation else "Trained, and not yet evaluated"
    return Words("TRAINED" if evaluation else "NOT EVALUATED", f"{title}.", trust, doubt, steps)


def _hidden(config: dict[str, Any]) -> int | None:
    """Hidden channels of a run's flows; None where its setting does not say."""
    found = config["setting"].get("architecture", {}).get("flow", {}).get("hidden")
    return found if isinstance(found, int) else None


def _kept(log: list[dict[str, Any]]) -> dict[str, Any]:
    """What was logged of the model that was kept: the best one of the last stage."""
    rows = [r for r in log if r["stage"] == log[-1]["stage"]]
    return min(rows, key=lambda r: r["valid_bits"])


def _few_digits(value: float) -> str:
    """A small positive number, without a power of ten where it is not very small."""
    return f"{value:.6f}".rstrip("0") if value >= 1e-6 else "a millionth"


def _numbers(
    evaluation: dict[str, Any] | None, log: list[dict[str, Any]]
) -> list[tuple[str, str, str]]:
    seconds = sum(max(r["seconds"] for r in log if r["stage"] == s) for s in _stages(log))
    found = [
        ("Held-out bits", f"{_kept(log)['valid_bits']:.4f}", "per dimension, of the model kept"),
        ("Time", f"{seconds / 60:.1f} min", "of training"),
    ]
    if evaluation is None:
        return found
    test = f"± {evaluation['standard_error']:.2g} per dimension"
    first = ("Test bits", f"{evaluation['bits_per_dim']:.4f}", test)
    return [first, *found, ("Parameters", count(evaluation["parameters"]), "trained")]


def _samples(files: ImageRun) -> Html:
    model, pixels = files.model(), files.pixels()
    frames = []
    for scale in range(1, model.scales + 1):
        drawn = pixels.shown(sample_images(model, pixels, SAMPLES, 0, scale=scale))
        side = " × ".join(map(str, drawn.shape[1:3]))
        frames.append((f"scale {scale}: {side} pixels", _picture(image_grid(drawn, COLUMNS))))
    caption = (
        f"{SAMPLES} new images. The slider goes through the scales of the network: the same noise, "
        "refined."
    )
    return section("fields", "Samples", captioned(film(frames), caption))


def _picture(grid: np.ndarray) -> Html:
    buffer = io.BytesIO()
    Image.fromarray(grid[..., 0] if grid.shape[-1] == 1 else grid).save(buffer, "PNG")
    data = base64.b64encode(buffer.getvalue()).decode()
    height, width = grid.shape[:2]
    source = f"data:image/png;base64,{data}"
    return tag("img", src=source, width=width, height=height, alt="samples")


def _training(log: list[dict[str, Any]]) -> Html:
    rows = [[r for r in log if r["stage"] == s] for s in _stages(log)]
    body = [
        (
            part[-1]["stage"],
            part[-1]["epoch"],
            f"{part[-1]['seconds']:.1f}",
            f"{_kept(part)['train_bits']:.4f}",
            f"{_kept(part)['valid_bits']:.4f}",
        )
        for part in rows
    ]
    head = ("stage", "epochs", "seconds", "bits, training", "bits, held out")
    caption = "Bits per dimension while it trained, stage after stage; the best model is kept."
    if len(rows) > 1:
        caption += (
            " Stages before the last see images pooled to fewer pixels: their bits are of those "
            "and do not compare with the last ones."
        )
    picture = captioned(as_svg(bits_figure(rows), "bits"), caption)
    return section("stages", "Stages and timings", picture, markup.table(head, body))


def bits_figure(stages: list[list[dict[str, Any]]]) -> Figure:
    """Bits of training and held-out images over all steps, stage after stage."""
    figure = new_figure()
    axes = figure.subplots()
    begin = 0
    for i, part in enumerate(stages):
        x = [begin + r["step"] for r in part]
        names = ("held out", "training") if i == 0 else (None, None)
        axes.plot(x, [r["valid_bits"] for r in part], "o-", ms=3, color=ACCENT, label=names[0])
        axes.plot(x, [r["train_bits"] for r in part], "--", color=SOFT, label=names[1])
        if len(stages) > 1:
            numbered(
                axes, f"stage {part[0]['stage']}" if i == 0 else str(part[0]["stage"]), begin, i > 0
            )
        begin = x[-1]
    plain(axes, "steps", "bits per dimension")
    legend(figure, axes)
    return figure


def _reproduce(config: dict[str, Any]) -> Html:
    about, setting = config["about"], config["setting"]
    words = ["msign", "images", "train", str(about.get("data", "DATA"))]
    if about.get("data_dir"):
        words += ["--data-dir", str(about["data_dir"])]
    command = " ".join(map(shlex.quote, [*words, "--seed", str(config["seed"])]))
    shown = {k: v for k, v in config.items() if k != "moments"}
    text = "With the setting below, the same seed and the same versions give the same numbers."
    return section(
        "reproduce",
        "How to reproduce",
        tag("p", text),
        tag("pre", tag("code", command)),
        tag("details", tag("summary", "Setting"), tag("pre", json.dumps(setting, indent=1))),
        tag("details", tag("summary", "Configuration"), tag("pre", json.dumps(shown, indent=1))),
    )


def _stages(log: list[dict[str, Any]]) -> list[int]:
    return sorted({r["stage"] for r in log})
