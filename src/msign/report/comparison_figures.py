"""Figures of a comparison: marginals along the critical direction, errors of moments."""

import textwrap
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from msign.report.comparison import CONFIDENCE, LABELS, MOMENTS, Comparison

BINS = 50
LETTERS = 13  # of a title to an inch of a figure
SHIFT = 0.03  # between methods at one scale, so that bars do not hide each other


def marginals_figure(found: Comparison) -> Figure:
    """Marginals along the critical direction: a row per scale, a column per method."""
    methods = [m for m in found.methods if m != "exact"]
    figure = Figure(
        figsize=(1.7 * len(methods) + 0.6, 1.5 * len(found.scales) + 0.9), layout="constrained"
    )
    axes = figure.subplots(len(found.scales), len(methods), squeeze=False)
    for line, scale in zip(axes, found.scales, strict=True):
        truth = np.array(found.critical[scale]["marginal"]["values"])
        low, high = (float(q) for q in np.quantile(truth, [0.001, 0.999]))
        beside = 0.15 * (high - low)
        bins = np.linspace(low - beside, high + beside, BINS + 1)
        height = np.histogram(truth, bins, density=True)[0].max()
        for axis, method in zip(line, methods, strict=True):
            axis.hist(truth, bins, density=True, color="0.8")
            for run in found.of(method, scale):
                values = np.clip(run["values"], bins[0], bins[-1])
                axis.hist(values, bins, density=True, histtype="step", lw=0.9)
            letters = "".join(r["letter"] for r in found.of(method, scale)) or "-"
            axis.text(0.03, 0.95, letters, transform=axis.transAxes, va="top", fontsize="small")
            axis.set(yticks=[], ylim=(0, 1.7 * height), xlim=(bins[0], bins[-1]))
            axis.tick_params(labelsize="x-small")
        line[0].set_ylabel(f"scale {scale}")
    for axis, method in zip(axes[0], methods, strict=True):
        axis.set_title(LABELS[method], fontsize="small")
    source = found.critical[found.scales[-1]]["source"]
    what = f"Marginal along the critical direction; lines: seeds; grey: {source}"
    wrapped = textwrap.fill(what, int(LETTERS * figure.get_figwidth()))
    figure.suptitle(f"{found.title()}\n{wrapped}", fontsize="small")
    return figure


def errors_figure(found: Comparison, rows: list[dict[str, Any]]) -> Figure:
    """Root mean square errors of moments against the scale, with confidence intervals."""
    figure = Figure(figsize=(11, 3.9), layout="constrained")
    axes = figure.subplots(1, 3)
    for axis, name in zip(axes, MOMENTS, strict=True):
        for k, method in enumerate(found.methods):
            own = [r for r in rows if r["method"] == method and r[f"rmse_{name}"] is not None]
            if not own:
                continue
            style = {"color": "k", "ls": "--"} if method == "exact" else {"color": f"C{k}"}
            half = np.nan_to_num([r[f"rmse_{name}_ci"] for r in own])
            centre = np.array([r[f"rmse_{name}"] for r in own])
            lower = np.minimum(half, 0.9 * centre)  # a logarithmic axis has no zero
            axis.errorbar(
                [r["scale"] + SHIFT * (k - 0.5 * len(found.methods)) for r in own],
                centre,
                [lower, half],
                marker="o",
                ms=3,
                lw=1.1,
                capsize=2,
                label=LABELS[method],
                **style,
            )
        axis.set(yscale="log", xlabel="scale", title=f"RMSE of the {name}", xticks=found.scales)
        axis.grid(alpha=0.3)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize="small")
    bars = (
        f"; bars: {100 * CONFIDENCE:.0f}% intervals over seeds"
        if "1 seed" not in found.title()
        else ""
    )
    figure.suptitle(f"{found.title()}{bars}", fontsize="small")
    return figure
