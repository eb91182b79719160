"""Appendix B: landscapes of the divergences between mixtures of two Gaussians."""

import numpy as np
from matplotlib.figure import Figure

from msign.experiments.landscape import Landscape, landscape, local_minima
from msign.experiments.paper.base import Context, Made

MU, SIGMA = 1.5, 0.25  # the paper's
NAMES = {"reverse_kl": "KL(p || q)", "forward_kl": "KL(q || p)", "jeffreys": "Jeffreys"}
LEVELS = 25
NEAR = 0.1  # of the centres of q, to be called those


def landscapes(context: Context) -> Made:
    """Surfaces, their local minima, and the densities at one that lacks a mode."""
    found = landscape(MU, SIGMA, n=61 if context.quick else 201)
    rows = []
    for name, label in NAMES.items():
        minima = local_minima(getattr(found, name), found.centres)
        lacking = sum(not _is_global(m) for m in minima)
        paper = {"reverse_kl": 2, "jeffreys": 0}.get(name)
        rows.append(
            {
                "divergence": label,
                "global minima": len(minima) - lacking,
                "ours": lacking,
                "paper": paper,
            }
        )
    note = "ours and paper: local minima beside the two global ones"
    return Made(rows, {"landscape": _figure(found)}, (note,))


def _is_global(minimum: tuple[float, float]) -> bool:
    return bool(np.allclose(sorted(minimum), (-MU, MU), atol=NEAR))


def _figure(found: Landscape) -> Figure:
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots(2, 2)
    for axis, (name, label) in zip(axes.flat, NAMES.items(), strict=False):
        surface = getattr(found, name)
        picture = axis.contourf(found.centres, found.centres, surface.T, LEVELS, cmap="viridis")
        figure.colorbar(picture, ax=axis, label="nats")
        for minimum in local_minima(surface, found.centres):
            colour = "gold" if _is_global(minimum) else "lime"
            axis.plot(*minimum, "x", color=colour, ms=10, mew=2.5)
        axis.set(title=label, xlabel=r"$\theta_1$", ylabel=r"$\theta_2$")
    line = np.linspace(-3, 3, 400)
    last = axes[1, 1]
    last.plot(line, _mixture(line, MU, -MU), "k-", label="q")
    last.plot(line, _mixture(line, MU, MU), "g--", label=r"$p_\theta$, $\theta$ = (1.5, 1.5)")
    last.set(title="at a local minimum of KL(p || q)", xlabel="x", ylabel="density")
    last.legend(fontsize="small")
    figure.suptitle(
        f"Mixtures of two Gaussians of width {SIGMA}; q has its centres at ±{MU}. "
        "Gold: global minima, green: others",
        fontsize="small",
    )
    return figure


def _mixture(x: np.ndarray, a: float, b: float) -> np.ndarray:
    bells = [np.exp(-0.5 * ((x - c) / SIGMA) ** 2) for c in (a, b)]
    return np.asarray(sum(bells) / (2 * SIGMA * np.sqrt(2 * np.pi)))
