"""`msign images ...`: from a data set's name or a run's directory to files and lines to print."""

import math
import os
import pathlib
import shutil
import time
from typing import Any

import numpy as np

from msign import checks
from msign.images.catalogue import NAMES, load_images
from msign.images.config import DEFAULTS, OTHERWISE, PRESETS, Setting
from msign.images.evaluate import bits_per_dim, round_trip_error
from msign.images.mu import PAPER, estimate_moments
from msign.images.pixels import Pixels
from msign.images.rundir import ImageRun
from msign.images.sets import FolderImages, ImageSet, Padded, Split, Subset
from msign.images.synthesis import (
    generated_snapshots,
    interpolate,
    recovered_snapshots,
    sample_images,
)
from msign.images.training import train
from msign.report.image_page import write_image_report
from msign.report.images import image_grid, save_png, snapshot_grid

Path = str | os.PathLike[str]
ROUND_TRIP_IMAGES = 100


def setting_of(data: str, preset: str | None = None, **options: Any) -> Setting:
    """The preset, or what suits the data set, with the given options (None: not given)."""
    if preset is not None:
        setting = PRESETS[checks.one_of("preset", preset, PRESETS)]
    else:
        setting = DEFAULTS.get(data, OTHERWISE)
    if preset is None and options.get("scales") is not None:
        options["scales"] = checks.integer("scales", options["scales"], 1)
    return setting.changed(**options)


def train_run(
    data: str,
    data_dir: Path | None,
    size: int | None,
    setting: Setting,
    out: Path,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
) -> list[str]:
    """Train, evaluate on the test images, write samples; what there is to say about it."""
    checks.integer("seed", seed, 0)
    split = load_images(data, data_dir, size, setting.architecture.pad)
    folder = None if data_dir is None else os.path.abspath(data_dir)
    name = data if data in NAMES else os.path.abspath(data)
    about = {"data": name, "data_dir": folder, "size": size}
    run = pathlib.Path(out)
    if overwrite and (run / "config.json").exists():
        shutil.rmtree(run)
    start = time.monotonic()
    values = _values(split.train)
    train(split.train, setting, run, seed, resume, about, values)
    seconds = time.monotonic() - start
    picture = sample_run(run, 64, 1.0, 8, seed)
    evaluated = evaluate_run(run, data_dir, split=split)
    return [
        f"trained on {len(split.train):,} images of {_shape(split.train)} in {seconds:.0f} s",
        *evaluated,
        f"samples: {picture}",
        f"report: {write_image_report(run)}",
        f"written to {run}",
    ]


def evaluate_run(
    run: Path,
    data_dir: Path | None = None,
    draws: int = 1,
    images: int | None = None,
    seed: int = 0,
    split: Split | None = None,
) -> list[str]:
    """Bits per dimension on test images and the round trip, as lines; also `evaluation.json`."""
    files = ImageRun.existing(run)
    model, pixels = files.model(), files.pixels()
    test = (split or images_of(files, data_dir)).test
    if images is not None:
        test = Subset(test, np.arange(min(checks.integer("images", images, 1), len(test))))
    values = files.read_config()["values"]
    bits = bits_per_dim(model, pixels, test, draws=draws, seed=seed, values=values)
    shown = test.read(np.arange(min(ROUND_TRIP_IMAGES, len(test))))
    worst, typical = round_trip_error(model, pixels, shown, seed)
    found = {
        "bits_per_dim": bits.mean,
        "standard_error": bits.error,
        "bits_per_dim_many_draws": bits.tighter,
        "draws": draws,
        "test_images": bits.images,
        "divided_by": bits.values,
        "levels": pixels.levels,
        "parameters": sum(model.parameters()),
        "parameters_by_scale": list(model.parameters()),
        "round_trip_largest_error": worst,
        "round_trip_rms_error": typical,
        "seed": seed,
    }
    files.files.write_json("evaluation.json", found)
    lines = [
        f"test bits per dimension {bits.mean:.4f} +- {bits.error:.4f} ({bits.images:,} images, "
        f"{pixels.levels} grey levels, divided by {values} values)",
        f"parameters {sum(model.parameters()):,}",
        f"round trip: largest error {worst:.1e} of a grey level, root mean square {typical:.1e}",
    ]
    if draws > 1:
        lines.insert(1, f"with {draws} draws of noise per image averaged: {bits.tighter:.4f}")
    return lines


def sample_run(
    run: Path,
    n: int,
    temperature: float = 1.0,
    columns: int = 8,
    seed: int = 0,
    output: Path | None = None,
) -> pathlib.Path:
    """Write a grid of new images."""
    files = ImageRun.existing(run)
    path = _picture(files, output, "samples.png")
    pixels = files.pixels()
    drawn = sample_images(files.model(), pixels, n, seed, temperature)
    save_png(image_grid(pixels.shown(drawn), columns), path)
    return path


def interpolate_run(
    run: Path, a: str, b: str, data_dir: Path | None, steps: int, output: Path | None = None
) -> pathlib.Path:
    """Write the images between two given ones."""
    files = ImageRun.existing(run)
    path = _picture(files, output, "interpolation.png")
    pixels = files.pixels()
    first = _given_image(files, "a", a, data_dir)
    last = _given_image(files, "b", b, data_dir)
    line = interpolate(files.model(), pixels, first, last, steps)
    save_png(image_grid(pixels.shown(line), steps), path)
    return path


def snapshots_run(
    run: Path,
    n: int,
    recover: bool,
    data_dir: Path | None,
    temperature: float = 1.0,
    seed: int = 0,
    output: Path | None = None,
) -> pathlib.Path:
    """Write what images look like inside the flows."""
    files = ImageRun.existing(run)
    path = _picture(files, output, "recovered.png" if recover else "snapshots.png")
    model, pixels = files.model(), files.pixels()
    if recover:
        test = images_of(files, data_dir).test
        checks.integer("n", n, 1, len(test))
        chosen = np.random.default_rng(seed).choice(len(test), n, replace=False)
        rows = recovered_snapshots(model, pixels, test.read(chosen))
    else:
        rows = generated_snapshots(model, pixels, n, seed, temperature)
    save_png(snapshot_grid([[pixels.shown(s) for s in row] for row in rows]), path)
    return path


def mu_lines(
    data: str,
    data_dir: Path | None,
    size: int | None,
    scales: int | None,
    images: int,
    per_band: bool,
    output: str,
    pad: int | None,
    seed: int,
) -> list[str]:
    """Estimates of mu_l, and the paper's where it has them."""
    train = load_images(data, data_dir, size, pad).train
    chosen = setting_of(data, data if data in PRESETS else None, scales=scales)
    pixels = Pixels(train.levels, output)
    scales = chosen.architecture.scales
    moments = estimate_moments(train, pixels, scales, per_band, images, seed)
    width = "[-1/2, 1/2]" if output == "plain" else "logits"
    lines = [f"{moments.images:,} images of {_shape(train)}, values in {width}"]
    lines += [f"mean {moments.mean:.4f}, coarsest standard deviation {moments.std:.4f}"]
    paper = PAPER.get(data, ()) if output == "plain" else ()
    for l, m in enumerate(moments.mu, start=2):
        line = f"mu_{l} {np.array2string(np.asarray(m), precision=4, floatmode='fixed')}"
        if l - 2 < len(paper):
            line += f"   (paper {paper[l - 2]:.2f})"
        lines.append(line)
    return lines


def images_of(files: ImageRun, data_dir: Path | None) -> Split:
    """The images a run was made with, from where it found them or from another folder."""
    about = files.read_config()["about"]
    if "data" not in about:
        raise ValueError(f"{files.path} does not say which images it was trained on")
    folder = about["data_dir"] if data_dir is None else data_dir
    split = load_images(about["data"], folder, about["size"], files.setting().architecture.pad)
    shape = tuple(files.read_config()["shape"])
    if split.test.shape != shape:
        raise ValueError(f"data must have images of shape {shape}, got {split.test.shape}")
    return split


def _given_image(files: ImageRun, name: str, value: str, data_dir: Path | None) -> np.ndarray:
    """A test image by number, or an image file."""
    shape = tuple(files.read_config()["shape"])
    if value.isdigit():
        test = images_of(files, data_dir).test
        return test.read([checks.integer(name, int(value), 0, len(test) - 1)])[0]
    path = pathlib.Path(value)
    if not path.is_file():
        raise ValueError(f"{name} must be an image file or the number of a test image, got {value}")
    image = FolderImages([path], side=shape[0], colour=shape[2] == 3).read([0])[0]
    levels = files.read_config()["levels"]
    return np.round(image * ((levels - 1) / 255)).astype(np.uint8)


def _picture(files: ImageRun, output: Path | None, name: str) -> pathlib.Path:
    path = files.path / name if output is None else pathlib.Path(output)
    if path.suffix != ".png":
        raise ValueError(f"output must end in .png, got {os.fspath(path)!r}")
    return path


def _values(images: ImageSet) -> int:
    """Values of an image, without its border."""
    return math.prod((images.images if isinstance(images, Padded) else images).shape)


def _shape(images: ImageSet) -> str:
    return " x ".join(map(str, images.shape))
