"""How training went, and what its weights are worth."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from msign.inference.config import FitConfig
from msign.report.style import ACCENT, ALERT, INK, legend, new_figure, numbered, plain

LOWEST = 1e-5  # divergence that a logarithmic axis shows
BINS = 60
SHOWN_RANGE = 40.0  # nats of log-weights that are shown


def learning_curve(records: Sequence[dict[str, Any]], config: FitConfig) -> Figure:
    """Held-out divergence of every round against simulations used, and what each stage aims at."""
    figure = new_figure(height=3.2)
    axes = figure.subplots()
    scales = sorted({r["scale"] for r in records})
    begins = [min(r["nfs"] for r in records if r["scale"] == scale) for scale in scales]
    end = max(r["nfs"] for r in records)
    ends = [*begins[1:], end + (end == begins[-1]) * max(1, end // 20)]  # of one round: a little
    before = 0.0
    for scale, begin, until in zip(scales, begins, ends, strict=True):
        rows = [r for r in records if r["scale"] == scale]
        x = np.array([r["nfs"] for r in rows], float)
        y = np.array([r["jeffreys"] for r in rows], float)
        finite = np.isfinite(y)
        label = "held-out estimate" if scale == scales[0] else None
        shown = np.maximum(y[finite], LOWEST)
        axes.plot(x[finite], shown, "o-", ms=3.5, lw=1.3, color=ACCENT, label=label)
        aim = config.tolerance
        if scale != scales[-1]:
            aim = config.stepping_stone(before)
        before = float(np.min(y[finite], initial=np.inf))
        label = "good enough for the stage" if scale == scales[0] else None
        axes.plot([begin, until], [aim, aim], "--", lw=1.1, color=ALERT, label=label)
        first = scale == scales[0]
        numbered(axes, f"scale {scale}" if first else str(scale), begin, line=not first)
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    plain(axes, "forward simulations", "Jeffreys divergence")
    legend(figure, axes)
    return figure


def weights_figure(log_weights: np.ndarray, log_evidence: float) -> Figure:
    """Histogram of log-weights, zero where a sample counts as one."""
    figure = new_figure(height=2.7)
    axes = figure.subplots()
    away = np.asarray(log_weights, np.float64) - log_evidence
    away = np.clip(away[np.isfinite(away)], -SHOWN_RANGE, SHOWN_RANGE)
    if len(away):
        bins = BINS if np.ptp(away) > 0 else [away[0] - 0.5, away[0] + 0.5]
        axes.hist(away, bins, color=ACCENT, alpha=0.55, lw=0)
    axes.axvline(0, color=INK, lw=1, ls="--")
    axes.set_yscale("log")
    plain(axes, "log-weight (0: counts as one sample)", "samples")
    return figure
