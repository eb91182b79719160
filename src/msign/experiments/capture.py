"""`msign capture`: which modes a trained posterior has found (paper, figure 4 and appendix F)."""

import itertools
import os
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from matplotlib.figure import Figure
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from msign.inference import Posterior
from msign.noise import as_array
from msign.priors.spectral import SpectralPrior
from msign.report.figures import draw_field, save_figures
from msign.weights import ess_fraction, normalised, pareto_khat

EIGENVECTORS = 10


class ScaleCapture(NamedTuple):
    """What samples of one scale say of its modes.

    Attributes:
        scale: l.
        u: Whitened coordinates `(n, d)`.
        fields: `(n, *shape)`.
        plane: Principal components `(n, 2)`.
        labels: K-means cluster of each, 0 or 1.
        sizes: Fraction of samples in cluster 1, and its importance-weighted mass.
        depth: Density half-way between the clusters over the lower peak (1: no valley).
        leading: Coordinates along the leading prior eigenvectors `(n, 10)` (or fewer).
        critical: Which of these separates the clusters best.
        ess_fraction: Of the weights.
        khat: Of the weights.
    """

    scale: int
    u: np.ndarray
    fields: np.ndarray
    plane: np.ndarray
    labels: np.ndarray
    sizes: tuple[float, float]
    depth: float
    leading: np.ndarray
    critical: int
    ess_fraction: float
    khat: float


def capture(posterior: Posterior, n: int = 4000, seed: int = 5) -> list[ScaleCapture]:
    """Samples of every trained scale in two clusters; n simulations at each scale."""
    return [_at_scale(posterior.stage(l), n, seed) for l in posterior.scales]


def leading_eigenvectors(prior: object, count: int = EIGENVECTORS) -> np.ndarray:
    """Which whitened coordinates belong to the prior's leading eigenvectors."""
    if not isinstance(prior, SpectralPrior):
        raise ValueError(f"prior must be a spectral one, got {type(prior).__name__}")
    return np.argsort(-np.asarray(prior.std), kind="stable")[:count]


def _at_scale(posterior: Posterior, n: int, seed: int) -> ScaleCapture:
    prior = posterior.problem.priors[posterior.scale - 1]
    u, log_weights = posterior.importance(n, seed)
    fields = np.asarray(prior.unwhiten(as_array(u)))
    plane = PCA(2, random_state=0).fit_transform(fields.reshape(n, -1))
    labels = KMeans(2, n_init=4, random_state=0).fit_predict(plane)
    leading = u[:, leading_eigenvectors(prior)]
    apart = np.abs(leading[labels == 1].mean(0) - leading[labels == 0].mean(0))
    critical = int(np.argmax(apart / leading.std(0)))
    if leading[labels == 1, critical].mean() < leading[labels == 0, critical].mean():
        labels = 1 - labels
    sizes = float(labels.mean()), float(normalised(log_weights) @ labels)
    depth = valley_depth(plane, labels)
    quality = ess_fraction(log_weights), pareto_khat(log_weights)
    return ScaleCapture(
        posterior.scale, u, fields, plane, labels, sizes, depth, leading, critical, *quality
    )


def valley_depth(x: np.ndarray, labels: np.ndarray) -> float:
    """Density between two clusters over its lower peak, on the line through their centres."""
    a, b = x[labels == 0].mean(0), x[labels == 1].mean(0)
    direction = (b - a) / max(np.linalg.norm(b - a), 1e-300)
    t = (x - a) @ direction / max(np.linalg.norm(b - a), 1e-300)
    density, edges = np.histogram(t, bins=np.linspace(-0.5, 1.5, 33))
    smooth = np.convolve(density, np.ones(3) / 3, "same")
    centres = 0.5 * (edges[1:] + edges[:-1])
    left, right = smooth[centres < 0.5].max(), smooth[centres >= 0.5].max()
    valley = smooth[(centres > 0.2) & (centres < 0.8)].min()
    return float(valley / max(min(left, right), 1e-300))


def capture_lines(found: list[ScaleCapture]) -> list[str]:
    """What was found, for people, line by line."""
    lines = ["scale  mode sizes      weighted         valley  ESS    k-hat  separating eigenvector"]
    for c in found:
        a, b = c.sizes
        lines.append(
            f"{c.scale:5d}  {1 - a:.3f} : {a:.3f}  {1 - b:.3f} : {b:.3f}  {c.depth:6.2f}  "
            f"{c.ess_fraction:.3f}  {c.khat:5.2f}  {c.critical + 1}"
        )
    return lines


def clusters_figure(posterior: Posterior, found: list[ScaleCapture]) -> Figure:
    """At every scale: samples in the plane of their principal components, and cluster means."""
    figure = Figure(figsize=(7.5, 2.3 * len(found)), layout="constrained")
    axes = figure.subplots(len(found), 3, squeeze=False)
    ndim = posterior.problem.prior.lattice.ndim
    for line, c in zip(axes, found, strict=True):
        for k, colour in enumerate(("tab:blue", "tab:orange")):
            line[0].plot(*c.plane[c.labels == k].T, ".", ms=1, color=colour)
        line[0].set(xticks=[], yticks=[], ylabel=f"scale {c.scale}")
        means = [c.fields[c.labels == k].mean(0) for k in (0, 1)]
        limit = float(max(np.abs(m).max() for m in means))
        for k in (0, 1):
            picture = draw_field(line[1 + k], means[k], ndim, limit)
            share = c.sizes[0] if k else 1 - c.sizes[0]
            line[1 + k].set_title(f"mean of {100 * share:.1f}%", fontsize="small")
        if ndim > 1:
            figure.colorbar(picture, ax=line[2])
    return figure


def marginals_figure(found: list[ScaleCapture]) -> Figure:
    """Marginals along the prior's leading eigenvectors, one row a scale; the prior dotted."""
    figure = Figure(figsize=(1.5 * EIGENVECTORS, 1.4 * len(found)), layout="constrained")
    axes = figure.subplots(len(found), EIGENVECTORS, squeeze=False, sharex=True)
    grid = np.linspace(-5, 5, 200)
    for line, c in zip(axes, found, strict=True):
        for k, axis in enumerate(line):
            axis.set(yticks=[], xlim=(-5, 5))
            if k >= c.leading.shape[1]:
                axis.set_axis_off()
                continue
            colour = "tab:orange" if k == c.critical else "tab:blue"
            axis.hist(c.leading[:, k], bins=60, density=True, color=colour, alpha=0.6)
            axis.plot(grid, np.exp(-0.5 * grid**2) / np.sqrt(2 * np.pi), "k:", lw=0.8)
        line[0].set_ylabel(f"scale {c.scale}")
    for k, axis in enumerate(axes[0]):
        axis.set_title(f"eigenvector {k + 1}", fontsize="small")
    return figure


def necessity_figure(posterior: Posterior, found: list[ScaleCapture], seed: int = 6) -> Figure:
    """One mode under the prior-conditioned, untrained model and under the trained one.

    The mean of cluster 1 at the finest scales: q~_l, the coarser model refined by the prior alone,
    beside the trained model, and their difference (appendix F).
    """
    pairs = list(itertools.pairwise(found))[-3:]
    figure = Figure(figsize=(7.5, 2.3 * len(pairs)), layout="constrained")
    axes = figure.subplots(len(pairs), 3, squeeze=False)
    ndim = posterior.problem.prior.lattice.ndim
    for line, (coarse, fine) in zip(axes, pairs, strict=True):
        prior = posterior.problem.priors[fine.scale - 1]
        noise = jr.normal(jr.key(seed), (len(coarse.u), fine.u.shape[1] - coarse.u.shape[1]))
        joined = jnp.concatenate([jnp.asarray(coarse.u), noise], 1)
        refined = np.asarray(prior.unwhiten(jax.vmap(prior.rotation().transform)(joined)))
        before = refined[coarse.labels == 1].mean(0)
        after = fine.fields[fine.labels == 1].mean(0)
        limit = float(max(np.abs(before).max(), np.abs(after).max()))
        names = (f"untrained $\\tilde q_{fine.scale}$", f"trained $q_{fine.scale}$", "difference")
        for axis, name, field in zip(line, names, (before, after, after - before), strict=True):
            picture = draw_field(axis, field, ndim, limit)
            axis.set_title(f"{name}, up to {np.abs(field).max():.2f}", fontsize="small")
        if ndim > 1:
            figure.colorbar(picture, ax=line[2])
        line[0].set_ylabel(f"scale {fine.scale}")
    return figure


def run_capture(
    posterior: Posterior, out: str | os.PathLike[str], n: int, seed: int
) -> tuple[list[str], list[pathlib.Path]]:
    """Lines to print, and the paths of the pictures."""
    found = capture(posterior, n, seed)
    figures = {
        "clusters": clusters_figure(posterior, found),
        "eigenvectors": marginals_figure(found),
    }
    if len(found) > 1:
        figures["necessity"] = necessity_figure(posterior, found)
    return capture_lines(found), save_figures(figures, out)
