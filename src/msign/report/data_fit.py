"""What the posterior predicts of the data, against the data."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from msign.inference.predictive import Predictive
from msign.report.style import ACCENT, INK, SOFT, legend, new_figure, plain
from msign.report.words import Misfit
from msign.weights import normalised

FEW = 60  # observations that are shown one by one
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
ORDINARY = 2.0  # standard deviations that noise seldom exceeds
BINS = 41
MOST_POINTS = 4000
MOST_TICKS = 15


def misfit_of(predictive: Predictive | None) -> Misfit | None:
    """Mean square of residuals over the posterior; None where these are not known."""
    if predictive is None:
        return None
    squares = predictive.residuals**2
    known = np.isfinite(squares).all(0)
    if not known.any():
        return None
    mean = normalised(predictive.log_weights) @ squares[:, known].mean(1)
    return Misfit(float(mean), int(known.sum()))


def weighted_quantiles(
    values: np.ndarray, weights: np.ndarray, levels: tuple[float, ...] = LEVELS
) -> np.ndarray:
    """Quantiles `(levels, m)` of the columns of `(n, m)` values with weights of sum one."""
    order = np.argsort(values, axis=0)
    sums = np.cumsum(weights[order], axis=0)
    index = [np.argmax(sums >= level * sums[-1], axis=0) for level in levels]
    ordered = np.take_along_axis(values, order, axis=0)
    return np.stack([np.take_along_axis(ordered, i[None], axis=0)[0] for i in index])


def predictive_figure(predictive: Predictive) -> Figure:
    """Data against new data that the posterior predicts, with 50 and 90 percent of these."""
    figure = new_figure(height=2.9)
    axes = figure.subplots()
    drawn = predictive.replicated if len(predictive.replicated) else predictive.predicted
    low, lower, middle, upper, high = weighted_quantiles(drawn, normalised(predictive.log_weights))
    data = predictive.data
    if len(data) <= FEW:
        x = np.arange(1, len(data) + 1)
        axes.vlines(x, low, high, color=ACCENT, lw=2, alpha=0.4, label="90 percent of predictions")
        axes.vlines(x, lower, upper, color=ACCENT, lw=5, alpha=0.7, label="50 percent")
        _medians(axes, x, middle)
        axes.plot(x, data, "o", ms=4, color=INK, label="data")
        _numbered(axes, len(data))
        plain(axes, "observation", "y")
    else:
        step = slice(None, None, -(-len(data) // MOST_POINTS))
        axes.vlines(data[step], low[step], high[step], color=ACCENT, lw=0.8, alpha=0.3)
        axes.plot(data[step], middle[step], ".", ms=2.5, color=ACCENT, label="median, 90 percent")
        ends = [data.min(), data.max()]
        axes.plot(ends, ends, color=INK, lw=1, ls="--", label="predicted as measured")
        plain(axes, "y", "predicted y")
    legend(figure, axes)
    return figure


def residual_figure(predictive: Predictive) -> Figure:
    """What is left of each observation in units of the noise, or of all against standard normal."""
    figure = new_figure(height=2.9)
    axes = figure.subplots()
    weights = normalised(predictive.log_weights)
    m = len(predictive.data)
    if m <= FEW:
        low, lower, middle, upper, high = weighted_quantiles(predictive.residuals, weights)
        x = np.arange(1, m + 1)
        axes.axhspan(-ORDINARY, ORDINARY, color=SOFT, alpha=0.18, lw=0)
        axes.axhline(0, color=SOFT, lw=0.8)
        axes.vlines(x, low, high, color=ACCENT, lw=2, alpha=0.4)
        axes.vlines(x, lower, upper, color=ACCENT, lw=5, alpha=0.7)
        _medians(axes, x, middle)
        _numbered(axes, m)
        plain(axes, "observation", "residual / noise")
        return figure
    mean = weights @ np.nan_to_num(predictive.residuals)
    limit = max(4.0, float(np.abs(mean).max()))
    bins = np.linspace(-limit, limit, BINS).tolist()
    axes.hist(mean, bins, density=True, color=ACCENT, alpha=0.5, lw=0)
    grid = np.linspace(-limit, limit, 300)
    normal = np.exp(-0.5 * grid**2) / np.sqrt(2 * np.pi)
    axes.plot(grid, normal, color=INK, lw=1, ls="--", label="noise alone")
    plain(axes, "mean residual / noise", "density")
    legend(figure, axes)
    return figure


def _medians(axes: Any, x: np.ndarray, middle: np.ndarray) -> None:
    """Medians as short bars, which are seen where an interval has no length."""
    axes.plot(x, middle, ls="none", marker="_", ms=9, mew=1.4, color=ACCENT)


def _numbered(axes: Any, m: int) -> None:
    """Places of m observations, counted from one."""
    axes.set_xlim(0.3, m + 0.7)
    step = -(-m // MOST_TICKS)
    axes.set_xticks(np.arange(1, m + 1, step))
