"""Pictures of fields in one, two and three dimensions, with shared colours and their values."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from msign.priors import Prior
from msign.report.style import ACCENT, ALERT, FONT, INK, SOFT, WIDTH, legend, new_figure, plain

LARGEST_SIDE = 256  # cells of a picture; larger fields are shown by every k-th cell
MOST_CHANNELS = 3
SATURATED = 0.995  # part of the values that colours tell apart
COLUMNS = 3
LINES = ("-", "--", ":", "-.")


class Scale(NamedTuple):
    """Colours of values: from `low` to `high`."""

    colours: str
    low: float
    high: float


class Panel(NamedTuple):
    """A part of a field that can be drawn: a line or a plane of cells.

    Attributes:
        name: What part it is; empty where it is the whole field.
        values: `(n,)` or `(n, m)`.
        extent: Side lengths of it.
    """

    name: str
    values: np.ndarray
    extent: tuple[float, ...]


def value_scale(fields: np.ndarray) -> Scale:
    """Colours for fields: blue to red about zero where they have both signs."""
    low, high = np.quantile(fields, [1 - SATURATED, SATURATED])
    if low < 0 < high:
        limit = float(max(-low, high))
        return Scale("RdBu_r", -limit, limit)
    return Scale("viridis", float(low), float(high) if high > low else float(low) + 1)


def spread_scale(std: np.ndarray) -> Scale:
    """Colours for standard deviations, from zero."""
    return Scale("viridis", 0.0, float(std.max()) or 1.0)


def extent_of(prior: Prior) -> tuple[float, ...]:
    """Side lengths of the domain: the prior's own, or cells where it does not know them."""
    return tuple(getattr(prior, "extent", None) or map(float, prior.lattice.shape))


def panels(prior: Prior, field: np.ndarray) -> list[Panel]:
    """The whole of a field in one and two dimensions, three slices through the middle of others."""
    ndim, extent = prior.lattice.ndim, extent_of(prior)
    if field.ndim == ndim:
        return _slices(field, extent, "")
    count = field.shape[-1]
    return [
        panel
        for c in range(min(count, MOST_CHANNELS))
        for panel in _slices(field[..., c], extent, f"channel {c + 1} of {count}")
    ]


def _slices(field: np.ndarray, extent: tuple[float, ...], name: str) -> list[Panel]:
    if field.ndim < 3:
        return [Panel(name, _thinned(field), extent)]
    found = []
    for axis in range(3):
        kept = tuple(e for i, e in enumerate(extent) if i != axis)
        plane = np.take(field, field.shape[axis] // 2, axis)
        title = " ".join(filter(None, [name, f"axis {axis + 1}"]))
        found.append(Panel(title, _thinned(plane), kept))
    return found


def _thinned(plane: np.ndarray) -> np.ndarray:
    steps = tuple(slice(None, None, -(-side // LARGEST_SIDE)) for side in plane.shape)
    return plane if plane.ndim == 1 else plane[steps]


def draw_plane(axes: Any, panel: Panel, scale: Scale, ticks: bool = False) -> Any:
    """A plane of cells; the first axis goes to the right, the second upwards."""
    image = axes.imshow(
        panel.values.T,
        origin="lower",
        cmap=scale.colours,
        vmin=scale.low,
        vmax=scale.high,
        extent=(0, panel.extent[0], 0, panel.extent[1]),
        interpolation="none",
    )
    plain(axes)
    axes.spines[:].set_visible(False)
    axes.set_xticks([0, panel.extent[0]] if ticks else [])
    axes.set_yticks([0, panel.extent[1]] if ticks else [])
    return image


def draw_line(axes: Any, panel: Panel, **options: Any) -> None:
    """Cells of a line, each as a step."""
    n = len(panel.values)
    edges = np.linspace(0, panel.extent[0], n + 1)
    axes.stairs(panel.values, edges, baseline=None, **options)


def colour_bar(figure: Figure, image: Any, axes: Any) -> None:
    """The values of colours, beside what they are used in."""
    bar = figure.colorbar(image, ax=axes, shrink=0.85, aspect=22, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=FONT - 1.5, color=SOFT, length=2)


def planes_figure(
    prior: Prior, named: Sequence[tuple[str, np.ndarray, Scale]], shared: bool = False
) -> Figure:
    """Fields beside each other, each with the values of its colours; all slices of one in a row.

    `shared` is for fields of one scale: one bar for all of them.
    """
    shown = [(name, scale, panels(prior, field)) for name, field, scale in named]
    tiles = [(_title(name, p.name), p, scale) for name, scale, parts in shown for p in parts]
    columns = len(shown[0][2]) if len(shown[0][2]) > 1 else min(len(tiles), COLUMNS - 1)
    rows = -(-len(tiles) // columns)
    width = 2.0 * columns + (0.6 if shared else 0.4 * columns)
    figure = new_figure(width, rows * (2.0 * _ratio(tiles[0][1]) + 0.3))
    grid = figure.subplots(rows, columns, squeeze=False)
    image: Any = None
    for axes in grid.flat:
        axes.set_axis_off()
    for k, (axes, (title, panel, scale)) in enumerate(zip(grid.flat, tiles, strict=False)):
        axes.set_axis_on()
        image = draw_plane(axes, panel, scale, ticks=k == 0)
        axes.set_title(title, fontsize=FONT, color=INK, loc="left")
        if not shared:
            colour_bar(figure, image, axes)
    if shared:
        colour_bar(figure, image, list(grid.flat))
    return figure


def _title(name: str, part: str) -> str:
    return ", ".join(filter(None, [name, part]))


def _ratio(panel: Panel) -> float:
    """Height over width of a picture of it, within reason."""
    return float(np.clip(panel.extent[1] / panel.extent[0], 0.4, 2.0))


def lines_figure(
    prior: Prior, curves: Sequence[tuple[str, np.ndarray]], limits: tuple[float, float]
) -> Figure:
    """Fields of a line over each other, one panel for each channel."""
    first = panels(prior, curves[0][1])
    figure = new_figure(1.5 * WIDTH, 2.6 * len(first) + 0.2)
    grid = figure.subplots(len(first), 1, squeeze=False)[:, 0]
    for i, axes in enumerate(grid):
        for k, (name, field) in enumerate(curves):
            panel = panels(prior, field)[i]
            colour = (ACCENT, ALERT, SOFT, INK)[k % 4]
            style = LINES[(k // 4) % len(LINES)]
            draw_line(axes, panel, color=colour, ls=style, lw=1.2, label=name or None)
        axes.set_ylim(limits)
        plain(axes, "position", "x", first[i].name)
    return figure


def samples_figure(prior: Prior, fields: np.ndarray, values: Scale) -> Figure:
    """A few fields in one scale of colours."""
    if prior.lattice.ndim == 1:
        room = 0.05 * (values.high - values.low)
        return lines_figure(
            prior, [("", f) for f in fields], (values.low - room, values.high + room)
        )
    shown = [panels(prior, f)[0] for f in fields]
    rows = -(-len(shown) // COLUMNS)
    figure = new_figure(1.2 * WIDTH, rows * 1.7 * _ratio(shown[0]) + 0.1)
    grid = figure.subplots(rows, COLUMNS, squeeze=False)
    image: Any = None
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, panel in zip(grid.flat, shown, strict=False):
        image = draw_plane(axes, panel, values)
    colour_bar(figure, image, list(grid.flat))
    return figure


def estimate_figure(
    prior: Prior,
    mean: np.ndarray,
    std: np.ndarray,
    band: np.ndarray,
    truth: np.ndarray | None,
    values: Scale,
) -> Figure:
    """Mean, standard deviation, credible band and, where it is known, the truth.

    `band` are the lower and the upper end of 90 percent of the posterior, cell by cell `(2, ...)`,
    `values` the colours of all fields, samples among them.
    """
    if prior.lattice.ndim > 1:
        named = [
            ("mean", mean, values),
            ("standard deviation", std, spread_scale(std)),
            ("5 percent quantile", band[0], values),
            ("95 percent quantile", band[1], values),
        ]
        known = [] if truth is None else [("truth", truth, values)]
        return planes_figure(prior, [*named, *known])
    first = panels(prior, mean)
    figure = new_figure(1.5 * WIDTH, 2.8 * len(first) + 0.2)
    grid = figure.subplots(len(first), 1, squeeze=False)[:, 0]
    for i, axes in enumerate(grid):
        low, high = (panels(prior, b)[i] for b in band)
        edges = np.linspace(0, low.extent[0], len(low.values) + 1)
        filled = {"fill": True, "color": ACCENT, "alpha": 0.25}
        label = "90 percent of the posterior"
        axes.stairs(high.values, edges, baseline=low.values, label=label, **filled)
        draw_line(axes, first[i], color=ACCENT, lw=1.8, label="mean")
        if truth is not None:
            draw_line(axes, panels(prior, truth)[i], color=INK, lw=1.2, ls="--", label="truth")
        plain(axes, "position", "x", first[i].name)
    legend(figure, grid[0])
    return figure
