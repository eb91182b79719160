"""Figures of a run: fields, modes, marginals, data fit, weights, how training went."""

import os
import pathlib
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from msign.report.contents import Contents
from msign.report.curves import learning_curve, weights_figure
from msign.report.data_fit import predictive_figure, residual_figure
from msign.report.figures import save_figures
from msign.report.marginals import marginal_figure
from msign.report.style import legend, titled
from msign.report.views import (
    estimate_figure,
    lines_figure,
    planes_figure,
    samples_figure,
    value_scale,
)
from msign.report.words import grade_of


def write_figures(
    figures: dict[str, Figure], summary: dict[str, Any], folder: str | os.PathLike[str]
) -> list[pathlib.Path]:
    """Write figures as PNG files, each with the verdict in its title; returns their paths."""
    title = (
        f"{summary['problem']}: {grade_of(summary)}, effective sample size "
        f"{100 * summary['ess_fraction']:.3g} percent"
    )
    return save_figures({name: titled(f, title) for name, f in figures.items()}, folder)


def all_figures(contents: Contents) -> dict[str, Figure]:
    """All figures by their names: those of samples at every scale, and of several modes, too."""
    posterior = contents.posterior
    found = {"estimate": estimate(contents)}
    for scale in contents.refined:
        finest = scale == posterior.scale
        found["samples" if finest else f"samples_{scale}"] = samples(contents, scale)
    if len(contents.mode_means) > 1:
        found["modes"] = modes(contents)
    for i in range(len(contents.functionals)):
        found["marginal" if i == 0 else f"marginal_{i + 1}"] = marginal(contents, i)
    if posterior.predictive is not None:
        found["predictive"] = predictive_figure(posterior.predictive)
        found["residuals"] = residual_figure(posterior.predictive)
    log_weights = posterior.certificates[posterior.scale].log_weights
    found["weights"] = weights_figure(log_weights, contents.summary["log_evidence"])
    if posterior.records:
        curve = learning_curve(posterior.records, posterior.config)
        found["learning_curve"] = curve
    return found


def estimate(contents: Contents) -> Figure:
    """Mean, standard deviation or credible band, truth."""
    prior = contents.posterior.prior
    given = contents.mean, contents.std, contents.band, contents.truth
    return estimate_figure(prior, *given, contents.values)


def samples(contents: Contents, scale: int) -> Figure:
    """A few samples as they are at a scale."""
    prior = contents.posterior.problem.priors[scale - 1]
    return samples_figure(prior, contents.refined[scale], contents.values)


def modes(contents: Contents) -> Figure:
    """The mean of each mode."""
    prior, means = contents.posterior.prior, contents.mode_means
    names = [f"mode {k + 1}" for k in range(len(means))]
    if prior.lattice.ndim == 1:
        low, high = contents.values.low, contents.values.high
        figure = lines_figure(prior, list(zip(names, means, strict=True)), (low, high))
        legend(figure, figure.axes[0])
        return figure
    values = value_scale(np.nan_to_num(np.stack(means)))
    columns = [(name, mean, values) for name, mean in zip(names, means, strict=True)]
    return planes_figure(prior, columns, shared=True)


def marginal(contents: Contents, index: int) -> Figure:
    """One of the marginals."""
    exact = contents.exact if index == 0 else None
    given = contents.functionals[index], contents.posterior.prior, contents.fields
    return marginal_figure(*given, exact, contents.truth)
