"""Section 6.2 and appendix G: what `msign images` makes, and which data it would need.

Data sets are looked for in folders of their names in `--data-dir`. The digits of scikit-learn,
which need no files, stand in where there is none; their values are no values of the paper.
"""

import pathlib
from typing import Any

import jax.numpy as jnp
import matplotlib.image
import numpy as np
from matplotlib.figure import Figure

from msign.experiments.images import (
    interpolate_run,
    sample_run,
    setting_of,
    snapshots_run,
    train_run,
)
from msign.experiments.paper.base import Context, Made
from msign.images.catalogue import load_images
from msign.images.mu import PAPER, estimate_moments
from msign.images.pixels import Pixels
from msign.images.rundir import ImageRun
from msign.lattice import bands, from_blocks
from msign.report.paper_values import BITS
from msign.rundir import RunDirectory

DIGITS = "digits"
QUICK = {"blocks": 4, "hidden": 16, "epochs": 4, "stage_epochs": 2}
CELLS = 8  # per side of the Haar figure


def haar(context: Context) -> Made:
    """A row of A_l, and rows of its orthogonal complement, as matrices."""
    rows = _haar_rows()
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes = figure.subplots(1, 4)
    limit = float(np.abs(rows).max())
    for k, axis in enumerate(axes):
        picture = axis.imshow(rows[k], cmap="RdBu_r", vmin=-limit, vmax=limit)
        axis.set(xticks=[], yticks=[])
        axis.set_title("row of $A_l$" if not k else rf"row {k} of $\tilde A_l$", fontsize="small")
    figure.colorbar(picture, ax=axes, shrink=0.8)
    figure.suptitle(f"Average pooling and the Haar basis, {CELLS} x {CELLS} cells")
    flat = rows.reshape(4, -1)
    product = flat @ flat.T
    off = float(np.abs(product - np.diag(np.diag(product))).max())
    table = [
        {"quantity": f"lambda, row {k}", "ours": float(product[k, k]), "paper": 0.25}
        for k in range(4)
    ]
    table.append({"quantity": "largest product of two rows", "ours": off, "paper": 0.0})
    return Made(table, {"haar": figure})


def _haar_rows() -> np.ndarray:
    """The four rows `(4, CELLS, CELLS)` that belong to one window of 2 x 2 cells."""
    half = CELLS // 2
    rows = []
    for k in range(4):
        blocks = np.zeros((half, half, 4, 1))
        blocks[half // 2, half // 2, k] = 0.5  # bands are orthonormal, rows of A_l have norm 1/2
        own = bands(jnp.asarray(blocks), (2, 2), inverse=True)
        rows.append(np.asarray(from_blocks(own, (2, 2)))[..., 0])
    return np.stack(rows)


def mu(context: Context) -> Made:
    """Estimates of mu_l by moment matching."""
    rows: list[dict[str, Any]] = []
    notes = ["the paper does not say to which interval values are scaled; here to [-1/2, 1/2]"]
    for data in (DIGITS, *PAPER):
        folder, missing = _folder(context, data)
        if missing:
            rows += [
                {"data": data, "mu": l, "ours": None, "paper": value}
                for l, value in enumerate(PAPER[data], start=2)
            ]
            notes.append(missing)
            continue
        train = load_images(data, folder).train
        scales = setting_of(data, data if data in PAPER else None).architecture.scales
        found = estimate_moments(train, Pixels(train.levels, "plain"), scales)
        paper = PAPER.get(data, (None,) * (scales - 1))
        for l, (ours, value) in enumerate(zip(found.mu, paper, strict=True), start=2):
            rows.append({"data": data, "mu": l, "ours": float(ours), "paper": value})
    return Made(rows, {}, tuple(notes))


def bits(context: Context) -> Made:
    """Table 2: bits per dimension of test images."""
    rows: list[dict[str, Any]] = []
    notes = ["a run of the paper's size takes weeks on a processor; digits stand in"]
    for data in (DIGITS, *BITS):
        _, missing = _folder(context, data)
        if missing:
            ours, notes = None, [*notes, missing]
        else:
            run = _trained(context, data)
            found = RunDirectory(run, write=False).read_json("evaluation.json")
            ours = found["bits_per_dim"]
        paper, glow = BITS.get(data, (None, None))
        rows.append({"data": data, "ours": ours, "paper": paper, "Glow in the paper": glow})
    return Made(rows, {}, tuple(notes))


def synthesis(context: Context) -> Made:
    """New images (figure 6 left and appendix G)."""
    run, notes = _faces(context)
    path = sample_run(run, 40, 1.0, 10, 0, context.work("synthesis.png"))
    return _shown(path, run, "synthesis", "New images, temperature 1", notes)


def interpolation(context: Context) -> Made:
    """Straight lines in latent space between test images (figure 6 right)."""
    run, notes = _faces(context)
    path = interpolate_run(run, "0", "1", _data_of(context, run), 6, context.work("between.png"))
    title = "Between two test images (ends), lambda = 0, 0.2, ..., 1"
    return _shown(path, run, "interpolation", title, notes)


def activations(context: Context) -> Made:
    """Inside every flow: head, trisection points, tail (figure 7 and appendix G)."""
    run, notes = _faces(context)
    path = snapshots_run(run, 6, False, None, 1.0, 0, context.work("snapshots.png"))
    title = "Six new images inside F_1, F_2, ...: head, two trisection points, tail of each"
    return _shown(path, run, "activations", title, notes)


def _folder(context: Context, data: str) -> tuple[pathlib.Path | None, str]:
    """Folder of a data set, or what is missing."""
    if data == DIGITS:
        return None, ""
    folder = None if context.data_dir is None else context.data_dir / data
    if folder is not None and folder.is_dir():
        return folder, ""
    where = f"folder {folder}" if folder is not None else f"--data-dir DIR with a folder {data}"
    return None, f"missing: {data} ({where}, files as in docs/images.md)"


def _trained(context: Context, data: str) -> pathlib.Path:
    """The run of a data set: trained if it is not, with the paper's options where it has any."""
    out = context.work(f"images-{data}")
    folder, _ = _folder(context, data)
    preset = None if context.quick or data == DIGITS else data
    setting = setting_of(data, preset, **(QUICK if context.quick else {}))
    if not (out / "evaluation.json").exists():
        context.say(f"training on {data}")
        resume = (out / "config.json").exists()
        for line in train_run(data, folder, None, setting, out, resume=resume):
            context.say(line)
    return out


def _faces(context: Context) -> tuple[pathlib.Path, tuple[str, ...]]:
    """A run of CelebA, as in the paper's figures, or of the digits."""
    missing = _folder(context, "celeba64")[1]
    notes = (missing + "; digits instead",) if missing else ()
    return _trained(context, DIGITS if missing else "celeba64"), notes


def _data_of(context: Context, run: pathlib.Path) -> pathlib.Path | None:
    data = ImageRun.existing(run).read_config()["about"]["data"]
    return _folder(context, data)[0]


def _shown(
    path: pathlib.Path, run: pathlib.Path, name: str, title: str, notes: tuple[str, ...]
) -> Made:
    """A picture of `msign images` with what it is of."""
    found = RunDirectory(run, write=False).read_json("evaluation.json")
    data = ImageRun.existing(run).read_config()["about"]["data"]
    picture = matplotlib.image.imread(path)
    height, width = picture.shape[:2]
    figure = Figure(figsize=(8, 8 * height / width + 0.5), layout="constrained")
    axes = figure.subplots()
    axes.imshow(picture, cmap="gray")
    axes.set_axis_off()
    axes.set_title(f"{title}\n{data}, {found['bits_per_dim']:.3f} bits per dim.", fontsize="small")
    row = {"data": data, "ours": found["bits_per_dim"], "paper": BITS.get(data, (None,))[0]}
    return Made([row], {name: figure}, notes)
