"""Figures of a comparison: marginals along the critical direction, errors of moments."""

import textwrap
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from msign.report.comparison import CONFIDENCE, LABELS, MOMENTS, Comparison

BINS = 50
LETTERS = 13  # of a title to an inch of a figure
NARROWEST = 7.0  # inches that a title needs
COLUMNS = 5  # of panels, where there is one scale
SPAN = 3.0  # factor to either side that a logarithmic axis has at least
SHIFT = 0.03  # between methods at one scale, so that bars do not hide each other


def marginals_figure(found: Comparison) -> Figure:
    """Marginals along the critical direction: a row per scale, a column per method.

    Of one scale alone the methods go over several rows.
    """
    methods = [m for m in found.methods if m != "exact"]
    wide = len(methods) if len(found.scales) > 1 else min(len(methods), COLUMNS)
    panels = [(scale, method) for scale in found.scales for method in methods]
    rows = -(-len(panels) // wide)
    size = max(1.7 * wide + 0.6, NARROWEST), 1.5 * rows + 1.1
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, wide, squeeze=False).ravel()
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    for axis, (scale, method) in zip(axes, panels, strict=False):
        truth = np.array(found.critical[scale]["marginal"]["values"])
        low, high = (float(q) for q in np.quantile(truth, [0.001, 0.999]))
        beside = 0.15 * (high - low)
        bins = np.linspace(low - beside, high + beside, BINS + 1)
        height = np.histogram(truth, bins, density=True)[0].max()
        axis.hist(truth, bins, density=True, color="0.8")
        for run in found.of(method, scale):
            values = np.clip(run["values"], bins[0], bins[-1])
            axis.hist(values, bins, density=True, histtype="step", lw=0.9)
        letters = "".join(r["letter"] for r in found.of(method, scale)) or "-"
        axis.text(0.03, 0.95, letters, transform=axis.transAxes, va="top", fontsize="small")
        axis.set(yticks=[], ylim=(0, 1.7 * height), xlim=(bins[0], bins[-1]))
        axis.tick_params(labelsize="x-small")
        if len(found.scales) == 1 or scale == found.scales[0]:
            axis.set_title(LABELS[method], fontsize="small")
        if method == methods[0]:
            axis.set_ylabel(f"scale {scale}")
    figure.supxlabel("value along the critical direction", fontsize="small")
    source = found.critical[found.scales[-1]]["source"]
    what = (
        f"Marginal density along the critical direction. Lines: seeds, a letter for each (T, I, F "
        f"by the rule of the table); grey: {source}"
    )
    wrapped = textwrap.fill(what, int(LETTERS * figure.get_figwidth()))
    figure.suptitle(f"{found.title()}\n{wrapped}", fontsize="small")
    return figure


def errors_figure(found: Comparison, rows: list[dict[str, Any]]) -> Figure:
    """Root mean square errors of moments against the scale; of one scale alone, by method.

    With confidence intervals where there are several seeds.
    """
    figure = _by_scale(found, rows) if len(found.scales) > 1 else _by_method(found, rows)
    bars = (
        f"; bars: {100 * CONFIDENCE:.0f}% intervals over seeds" if found.seeds() != "1 seed" else ""
    )
    truth = "; dashed: as many exact samples" if "exact" in found.methods else ""
    figure.suptitle(f"{found.title()}{truth}{bars}", fontsize="small")
    return figure


def _bars(own: list[dict[str, Any]], name: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """Errors and the lengths of their bars, down and up."""
    half = np.nan_to_num([r[f"rmse_{name}_ci"] for r in own])
    centre = np.array([r[f"rmse_{name}"] for r in own])
    return centre, [np.minimum(half, 0.9 * centre), half]  # a logarithmic axis has no zero


def _spread(limits: tuple[float, float]) -> tuple[float, float]:
    """Limits of a logarithmic axis that is long enough not to show digits of no account."""
    middle = np.sqrt(limits[0] * limits[1])
    return min(limits[0], middle / SPAN), max(limits[1], middle * SPAN)


def _plain_numbers(axis: Axis) -> None:
    """A logarithmic axis with numbers as people write them, few enough to be read."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _by_scale(found: Comparison, rows: list[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(11, 3.9), layout="constrained")
    axes = figure.subplots(1, 3)
    for axis, name in zip(axes, MOMENTS, strict=True):
        for k, method in enumerate(found.methods):
            own = [r for r in rows if r["method"] == method and r[f"rmse_{name}"] is not None]
            if not own:
                continue
            style = {"color": "k", "ls": "--"} if method == "exact" else {"color": f"C{k}"}
            places = [r["scale"] + SHIFT * (k - 0.5 * len(found.methods)) for r in own]
            label = LABELS[method]
            given = {"marker": "o", "ms": 3, "lw": 1.1, "capsize": 2, "label": label, **style}
            axis.errorbar(places, *_bars(own, name), **given)
        axis.set(yscale="log", xlabel="scale", title=f"RMSE of the {name}", xticks=found.scales)
        axis.set_ylim(*_spread(axis.get_ylim()))
        _plain_numbers(axis.yaxis)
        axis.grid(alpha=0.3)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize="small")
    return figure


def _by_method(found: Comparison, rows: list[dict[str, Any]]) -> Figure:
    known = [r for r in rows if r["rmse_mean"] is not None]
    figure = Figure(figsize=(10, 0.24 * len(known) + 1.6), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    for axis, name in zip(axes, MOMENTS, strict=True):
        centre, bars = _bars(known, name)
        axis.errorbar(centre, range(len(known)), xerr=bars, fmt="o", ms=4, lw=1.1, capsize=2)
        for row, value in zip(known, centre, strict=True):
            if row["method"] == "exact":
                axis.axvline(value, color="k", ls="--", lw=0.8)
        axis.set(xscale="log", xlabel=f"RMSE of the {name}", ylim=(len(known) - 0.5, -0.5))
        axis.set_xlim(*_spread(axis.get_xlim()))
        _plain_numbers(axis.xaxis)
        axis.grid(alpha=0.3)
    axes[0].set_yticks(range(len(known)), [LABELS[r["method"]] for r in known])
    return figure
