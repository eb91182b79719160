"""`msign modes`: how many modes a posterior has at every scale, as in the paper's appendix F."""

import os
import pathlib
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from msign.diagnostics.maximum import Maximum, find_maxima, profile
from msign.problems import InverseProblem
from msign.report.figures import draw_field, save_figures


class ScaleModes(NamedTuple):
    """The maxima found at one scale.

    Attributes:
        scale: l.
        maxima: The highest first.
        mirrored: Whether the problem's symmetry maps the two highest to each other.
        barrier: Highest negative log posterior on the segment between the two highest, above the
            lower of them.
        coefficients: Of the truth in each maximum as functions on the domain, where it is known.
        line: Positions and negative log posterior along the line through the two highest.
    """

    scale: int
    maxima: list[Maximum]
    mirrored: bool
    barrier: float
    coefficients: list[float]
    line: tuple[np.ndarray, np.ndarray] | None


def certify_modes(
    problem: InverseProblem, starts: int = 12, seed: int = 0, tolerance: float = 0.1
) -> list[ScaleModes]:
    """Search for maxima at every scale of the problem, without inflated noise."""
    plain = problem.without_inflation()
    return [_at_scale(plain, l, starts, seed, tolerance) for l in range(1, plain.scales + 1)]


def _at_scale(
    problem: InverseProblem, scale: int, starts: int, seed: int, tolerance: float
) -> ScaleModes:
    maxima = find_maxima(problem, scale, starts, seed, same=tolerance)
    coefficients: list[float] = []
    if problem.truth is not None:
        pooled, norm = problem.truth, np.mean(problem.truth**2)
        for prior in reversed(problem.priors[scale:]):
            pooled = np.asarray(prior.lattice.pool(pooled))
        coefficients = [float(np.mean(m.field * pooled) / norm) for m in maxima]
    if len(maxima) < 2:
        return ScaleModes(scale, maxima, False, 0.0, coefficients, None)
    a, b = maxima[0], maxima[1]
    t, values = profile(problem, scale, a.u, b.u)
    barrier = values[(t >= 0) & (t <= 1)].max() - max(a.value, b.value)
    mirrored = False
    if problem.symmetry is not None:
        away = np.linalg.norm(problem.symmetry(a.field) - b.field)
        mirrored = bool(away < tolerance * np.linalg.norm(b.field))
    return ScaleModes(scale, maxima, mirrored, float(barrier), coefficients, (t, values))


def mode_lines(found: list[ScaleModes]) -> list[str]:
    """What was found, for people, line by line."""
    lines = ["scale  maxima  searches     mirrored  -log posterior    barrier  truth coefficient"]
    for s in found:
        counts = "+".join(str(m.searches) for m in s.maxima)
        values = " ".join(f"{m.value:.2f}" for m in s.maxima[:2])
        truth = " ".join(f"{c:+.3f}" for c in s.coefficients[:2])
        lines.append(
            f"{s.scale:5d}  {len(s.maxima):6d}  {counts:11s}  {'yes' if s.mirrored else 'no':8s}  "
            f"{values:16s}  {s.barrier:7.2f}  {truth}"
        )
    return lines


def modes_figure(found: list[ScaleModes]) -> Figure:
    """The two highest maxima of every scale, and the posterior along the line through them."""
    rows = [s for s in found if s.line is not None]
    figure = Figure(figsize=(9, 1.9 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), 3, squeeze=False, width_ratios=(1, 1, 1.6))
    for line, s in zip(axes, rows, strict=True):
        limit = float(np.abs(s.maxima[0].field).max())
        for axis, maximum in zip(line[:2], s.maxima, strict=False):
            image = draw_field(axis, maximum.field, maximum.field.ndim, limit)
        figure.colorbar(image, ax=line[1])
        line[0].set_ylabel(f"scale {s.scale}")
        assert s.line is not None
        t, values = s.line
        top = s.maxima[0].value + 3 * max(s.barrier, 1.0)
        line[2].plot(t, np.minimum(values, 1.05 * top), "k-", lw=1)
        line[2].set_ylim(s.maxima[0].value - 0.1 * (top - s.maxima[0].value), top)
        line[2].set_title(f"-log posterior, barrier {s.barrier:.1f} nats", fontsize="small")
    axes[-1, 2].set_xlabel("position on the line through both maxima")
    return figure


def run_modes(
    problem: InverseProblem, out: str | os.PathLike[str], starts: int, seed: int
) -> tuple[list[str], pathlib.Path | None]:
    """Lines to print, and the path of the picture (None where a scale has a single maximum)."""
    found = certify_modes(problem, starts, seed)
    if all(s.line is None for s in found):
        return mode_lines(found), None
    return mode_lines(found), save_figures({"modes": modes_figure(found)}, out)[0]
