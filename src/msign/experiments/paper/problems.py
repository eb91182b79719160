"""Figures of the two problems themselves: nothing is trained for them."""

import jax.random as jr
import numpy as np

from msign.experiments.modes import certify_modes, modes_figure
from msign.experiments.multiscale import discretisation_errors, multiscale_figure
from msign.experiments.paper.base import Context, Made
from msign.problems import elliptic
from msign.problems.elliptic import load, observation_patches
from msign.report.elliptic import elliptic_figure

STARTS = 12  # searches for maxima at every scale


def multiscale(context: Context) -> Made:
    """Figure 2: the relative error of F on coarser fields."""
    problem = elliptic(context.size)
    field = np.asarray(problem.prior.sample(jr.key(0), 1))[0]
    figure = multiscale_figure(problem, field)
    figure.suptitle(
        f"Elliptic problem, {context.size} x {context.size} cells: one draw of the prior, pooled",
        fontsize="small",
    )
    rows = [
        {"scale": e.scale, "ours": e.relative, "in noise": e.in_noise, "paper": "drops with l"}
        for e in discretisation_errors(problem)
    ]
    note = "ours: mean relative error of F over 100 draws of the prior; the paper gives no numbers"
    return Made(rows, {"multiscale": figure}, (note,))


def force(context: Context) -> Made:
    """Appendix F: the 15 measurement functions, and the force."""
    problem = elliptic(context.size)
    patches, s = observation_patches(context.size), (np.arange(context.size) + 0.5) / context.size
    f = load(*np.meshgrid(s, s, indexing="ij"))
    rows = [
        {"quantity": "measurement functions", "ours": len(patches), "paper": 15},
        *(
            {
                "quantity": f"L2 norm of function {k}",
                "ours": float(np.sqrt(np.mean(patch**2))),
                "paper": 1.0,
            }
            for k, patch in enumerate(patches, start=1)
        ),
        {
            "quantity": "asymmetry of the force in s2",
            "ours": float(np.abs(f - f[:, ::-1]).max()),
            "paper": 0.0,
        },
    ]
    note = (
        "f4 is (0.7, 0.7) here: the paper prints the centre of f3 twice, which would break the "
        "symmetry that it states; it gives no numbers of where patches lie: 5 x 3 of side 1/8 here"
    )
    return Made(rows, {"force": elliptic_figure(problem)}, (note,))


def maxima(context: Context) -> Made:
    """Appendix F: all searches end in two mirrored maxima, with a barrier between them."""
    found = certify_modes(elliptic(context.size), STARTS)
    rows = [
        {
            "scale": s.scale,
            "ours": len(s.maxima),
            "paper": 2 if s.scale == len(found) else None,
            "searches that ended there": tuple(m.searches for m in s.maxima),
            "mirrored": s.mirrored,
            "barrier in nats": s.barrier,
        }
        for s in found
    ]
    figures = {}
    if any(s.line is not None for s in found):
        figures["maxima"] = modes_figure(found)
        figures["maxima"].suptitle(
            f"Elliptic problem, {context.size} x {context.size} cells: the two highest maxima of "
            f"{STARTS} searches, and the line through them",
            fontsize="small",
        )
    note = "ours: maxima found; the paper certifies the finest scale and gives no barrier"
    return Made(rows, figures, (note,))
