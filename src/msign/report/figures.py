"""Figures, drawn with Matplotlib's object interface: no global state, no display."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import ArrayLike
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from msign import checks
from msign.archive import atomic_write


def field_rows(rows: Sequence[ArrayLike], labels: Sequence[str], title: str = "") -> Figure:
    """One row of fields per entry, all in one colour scale, symmetric about zero.

    Colours saturate for one value in 200 of the last row.

    Args:
        rows: Arrays `(columns, height, width)`; sides may differ between rows.
        labels: One label per row.
        title: Of the figure.
    """
    fields = [np.asarray(row) for row in rows]
    for row in fields:
        if row.ndim != 3:
            raise ValueError(f"rows must have shape (columns, height, width), got {row.shape}")
    if len(labels) != len(fields):
        raise ValueError(f"labels must have {len(fields)} entries, got {labels!r}")
    columns = max(len(row) for row in fields)
    limit = float(np.quantile(np.abs(fields[-1]), 0.995))
    figure = Figure(figsize=(1.5 * columns + 1.3, 1.5 * len(fields) + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(fields), columns, squeeze=False)
    image = None
    for line, row, label in zip(axes, fields, labels, strict=True):
        for axis in line:
            axis.set(xticks=[], yticks=[])
        for axis, field in zip(line, row, strict=False):
            image = axis.imshow(field, cmap="RdBu_r", vmin=-limit, vmax=limit)
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
    if image is not None:
        figure.colorbar(image, ax=axes, shrink=0.6, aspect=30, extend="both")
    if title:
        figure.suptitle(title, fontsize="medium")
    return figure


def draw_field(axes: Any, field: np.ndarray, ndim: int, limit: float) -> Any:
    """One field: a line in 1-D, an image in 2-D, the middle slice in 3-D."""
    axes.set_xticks([])
    axes.set_yticks([])
    field = field if field.ndim == ndim else field[..., 0]
    if ndim == 1:
        centres = (np.arange(len(field)) + 0.5) / len(field)
        axes.set_ylim(-limit, limit)
        return axes.plot(centres, field, drawstyle="steps-mid", lw=1)[0]
    image = field if ndim == 2 else field[len(field) // 2]
    return axes.imshow(image.T, origin="lower", cmap="RdBu_r", vmin=-limit, vmax=limit)


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int = 120) -> None:
    """Write a PNG file, which takes its name only when complete.

    The same file as by `Figure.savefig`, which draws everything twice.
    """
    checks.integer("dpi", dpi, 1)
    before = figure.dpi
    figure.dpi = dpi
    try:
        with atomic_write(path) as file:
            FigureCanvasAgg(figure).print_png(file)
    finally:
        figure.dpi = before


def save_figures(
    figures: Mapping[str, Figure], folder: str | os.PathLike[str]
) -> list[pathlib.Path]:
    """Write figures by name to a folder, made if it does not exist; returns their paths."""
    target = pathlib.Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = [target / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        save_figure(figure, path)
    return paths
