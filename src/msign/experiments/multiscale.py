"""The multiscale property (paper, figure 2): how much of F survives on coarser lattices."""

import os
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import jax.random as jr
import numpy as np
from matplotlib.figure import Figure

from msign import checks
from msign.problems import InverseProblem, Simulator
from msign.report.figures import draw_field, save_figures


class ScaleError(NamedTuple):
    """The discretisation error of F at one scale, over prior draws.

    Attributes:
        scale: l.
        relative: Mean of |F(B A x) - F(x)| / |F(x)|.
        in_noise: Root mean square of F(B A x) - F(x) in standard deviations of Gaussian noise; of
            a log-likelihood in nats, of other likelihoods NaN.
    """

    scale: int
    relative: float
    in_noise: float


def discretisation_errors(problem: InverseProblem, n: int = 100, seed: int = 0) -> list[ScaleError]:
    """Errors of all scales, coarse to fine, from n prior draws."""
    checks.integer("n", n, 1)
    x, simulator = problem.prior.sample(jr.key(seed), n), Simulator(problem)
    fine = simulator.observe(x)
    std = np.asarray(np.nan if problem.has_observations else 1.0)
    if problem.noise_cov is not None:
        std = np.sqrt(np.diag(problem.noise_cov))
    errors = []
    for scale in range(problem.scales, 0, -1):
        if scale < problem.scales:
            x = problem.priors[scale].lattice.pool(x)
        away = simulator.observe(x, scale) - fine
        relative = np.linalg.norm(away, axis=1) / np.linalg.norm(fine, axis=1)
        in_noise = float(np.sqrt(np.mean((away / std) ** 2)))
        errors.append(ScaleError(scale, float(relative.mean()), in_noise))
    return errors[::-1]


def multiscale_lines(errors: list[ScaleError]) -> list[str]:
    """The errors for people, line by line."""
    lines = ["scale  relative error of F  in units of the noise"]
    return lines + [f"{e.scale:5d}  {e.relative:19.2e}  {e.in_noise:21.3f}" for e in errors]


def multiscale_figure(problem: InverseProblem, field: np.ndarray) -> Figure:
    """A field and its coarser versions, with the relative error of F of each."""
    simulator = Simulator(problem)
    fields, fine = [field], simulator.observe(field[None])
    for prior in reversed(problem.priors[1:]):
        fields.append(np.asarray(prior.lattice.pool(fields[-1])))
    limit = float(np.abs(field).max())
    figure = Figure(figsize=(1.8 * len(fields), 2.3), layout="constrained")
    axes = figure.subplots(1, len(fields), squeeze=False)[0]
    for axis, coarse, scale in zip(axes, fields, range(problem.scales, 0, -1), strict=True):
        draw_field(axis, coarse, problem.prior.lattice.ndim, limit)
        away = np.linalg.norm(simulator.observe(coarse[None], scale) - fine)
        error = away / np.linalg.norm(fine)
        axis.set_title(f"l = {scale}\nerror of F {100 * error:.2g}%", fontsize="small")
    return figure


def run_multiscale(
    problem: InverseProblem,
    out: str | os.PathLike[str],
    n: int,
    seed: int,
    picture: Callable[[InverseProblem], Figure] | None = None,
) -> tuple[list[str], list[pathlib.Path]]:
    """Lines to print, and the paths of the pictures; `picture` draws the problem itself."""
    field = np.asarray(problem.prior.sample(jr.key(seed), 1))[0]
    figures = {"multiscale": multiscale_figure(problem, field)}
    if picture is not None:
        figures["problem"] = picture(problem)
    lines = multiscale_lines(discretisation_errors(problem, n, seed))
    return lines, save_figures(figures, out)
