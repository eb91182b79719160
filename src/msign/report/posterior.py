"""Figures of a run: learning curve, samples at every scale, the marginal that matters most."""

import os
import pathlib
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from msign.inference import Posterior
from msign.report.figures import save_figures


def write_figures(posterior: Posterior, folder: str | os.PathLike[str]) -> list[pathlib.Path]:
    """Write all figures of a posterior as PNG files; returns their paths."""
    figures = {
        "learning_curve": learning_curve(posterior.records),
        "samples": sample_grid(posterior),
        "marginal": marginal(posterior),
    }
    return save_figures(figures, folder)


def learning_curve(records: list[dict[str, Any]]) -> Figure:
    """Held-out Jeffreys estimate of every round against simulations used, one colour per scale."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for scale in sorted({r["scale"] for r in records}):
        rows = [r for r in records if r["scale"] == scale]
        x, y = [r["nfs"] for r in rows], [max(r["jeffreys"], 1e-5) for r in rows]
        axes.plot(x, y, "o-", ms=4, label=f"scale {scale}")
    axes.set_yscale("log")
    axes.set_xlabel("forward simulations")
    axes.set_ylabel("Jeffreys divergence (held-out estimate)")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    return figure


def sample_grid(posterior: Posterior, columns: int = 5, seed: int = 0) -> Figure:
    """The same samples at every scale, one row each: coarse fields and what becomes of them."""
    scales = list(range(1, posterior.scale + 1))
    fields = [posterior.sample(columns, seed, scale=l) for l in scales]
    ndim = posterior.problem.prior.lattice.ndim
    height = 1.6 if ndim > 1 else 1.0
    figure = Figure(figsize=(1.6 * columns + 0.8, height * len(scales)), layout="constrained")
    axes = figure.subplots(len(scales), columns, squeeze=False)
    limit = max(float(np.abs(f).max()) for f in fields)
    for row, (scale, batch) in enumerate(zip(scales, fields, strict=True)):
        for column, field in enumerate(batch):
            draw_field(axes[row, column], field, posterior.problem.prior.lattice.ndim, limit)
        axes[row, 0].set_ylabel(f"scale {scale}")
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


def marginal(posterior: Posterior, n: int = 20_000, seed: int = 0) -> Figure:
    """Histogram along the most informed direction, beside the prior and, if known, the truth."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    n = min(n, max(1000, 2**27 // posterior.problem.dim))
    u, _ = posterior.whitened_samples(n, seed)
    reference = posterior.problem.reference
    if reference is not None:
        t, name = reference.critical_values(u), "t along the critical direction"
    else:
        s = np.asarray(posterior.variables.reduce(jnp.asarray(u)))
        t, name = s[:, 0], "whitened coordinate along the most informed direction"
    grid = np.linspace(t.min() - 0.1 * np.ptp(t), t.max() + 0.1 * np.ptp(t), 600)
    axes.hist(t, bins=100, density=True, alpha=0.5, label="msign samples")
    if reference is not None:
        axes.plot(grid, reference.critical_density(grid), "k-", lw=1.2, label="exact posterior")
    else:
        axes.plot(grid, np.exp(-0.5 * grid**2) / np.sqrt(2 * np.pi), "k:", lw=1, label="prior")
    axes.set_xlabel(name)
    axes.set_ylabel("density")
    axes.legend()
    return figure
