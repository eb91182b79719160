"""The elliptic problem in one picture: truth, load, measurement patches and data."""

import numpy as np
from matplotlib.figure import Figure

from msign.problems.elliptic import load, observation_patches, patch_centres, truth
from msign.problems.inverse import InverseProblem


def elliptic_figure(problem: InverseProblem) -> Figure:
    """Truth, load and numbered patches as in the paper's appendix F, and the data."""
    size = problem.prior.lattice.shape[0]
    figure = Figure(figsize=(14, 3.4), layout="constrained")
    axes = figure.subplots(1, 4)
    s = (np.arange(size) + 0.5) / size
    panels = [
        ("truth x", truth(size), "RdBu_r"),
        ("load f", load(*np.meshgrid(s, s, indexing="ij")), "RdBu_r"),
    ]
    for axis, (name, values, colours) in zip(axes, panels, strict=False):
        limit = np.abs(values).max()
        picture = axis.imshow(
            values.T,
            origin="lower",
            cmap=colours,
            extent=(0, 1, 0, 1),
            vmin=-limit,
            vmax=limit,
        )
        figure.colorbar(picture, ax=axis)
        axis.set(title=name, xlabel="$s_1$", ylabel="$s_2$")
    shown = (observation_patches(size) > 0).any(0)
    axes[2].imshow(shown.T, origin="lower", cmap="Greys", vmax=3, extent=(0, 1, 0, 1))
    for k, (column, offset) in enumerate(patch_centres(), start=1):
        for s2 in {0.5 - offset, 0.5 + offset}:
            axes[2].text(column, s2, str(k), ha="center", va="center", fontsize="small")
    axes[2].axhline(0.5, color="tab:orange", ls="--", lw=1)
    axes[2].set(title="measurement patches", xlabel="$s_1$", ylabel="$s_2$")
    assert problem.noise_cov is not None
    std = np.sqrt(np.diag(problem.noise_cov))
    axes[3].errorbar(np.arange(1, len(problem.data) + 1), problem.data, 2 * std, fmt="k.")
    axes[3].set(title="data and noise (two std)", xlabel="k", ylabel="$y_k$")
    return figure
