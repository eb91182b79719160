"""Figure 4 (b) and the necessity of training (appendix F): what trained networks look like."""

import numpy as np
from matplotlib.figure import Figure
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from msign.experiments.capture import capture, clusters_figure, necessity_figure
from msign.experiments.compare import OWN
from msign.experiments.paper.base import Context, Made
from msign.experiments.paper.rivals import compared, setting_of
from msign.inference import Posterior
from msign.report.figures import draw_field
from msign.report.paper_values import LEARNING
from msign.samplers import SAMPLERS

RIVALS = ("hmc", "svgd")  # whose clusters stand beside those of MsIGN


def posterior_of(context: Context, name: str) -> Posterior:
    """What `fit` has learned in the comparison on a problem."""
    compared(context, name)
    run = context.work(f"compare-{name}") / f"{OWN}-{context.seeds[0]}"
    return Posterior.load(run, setting_of(context, name)[0])


def clusters(context: Context) -> Made:
    """Figure 4 (b): samples in the plane of their principal components, and cluster means."""
    posterior = posterior_of(context, "elliptic")
    problem, setting = setting_of(context, "elliptic")
    seed, found = context.seeds[0], capture(posterior, context.samples)
    fields = {"MsIGN": posterior.sample(context.samples, seed)}
    for name in RIVALS:
        context.say(f"clusters of {name}")
        budget, n = setting.budget, setting.n
        fields[name.upper()] = SAMPLERS[name].run(problem, problem.scales, budget, n, seed).fields
    figure, shares = _beside(fields)
    figure.suptitle(
        f"Elliptic problem, d = {problem.dim}, {setting.budget:,} simulations, {setting.n} samples",
        fontsize="small",
    )
    rows = [
        {
            "method": name,
            "scale": problem.scales,
            "ours": share,
            "paper": {"MsIGN": "balanced", "HMC": "less balanced"}.get(name, "one mode"),
        }
        for name, share in shares.items()
    ]
    rows += [
        {"method": "MsIGN", "scale": c.scale, "ours": c.sizes[0], "weighted": c.sizes[1]}
        for c in found
    ]
    note = "ours: part of the samples in the second cluster, one half in the posterior itself"
    scales = clusters_figure(posterior, found)
    return Made(rows, {"clusters": figure, "clusters_of_scales": scales}, (note,))


def _beside(fields: dict[str, np.ndarray]) -> tuple[Figure, dict[str, float]]:
    """Clusters of every method in its own plane, the two means beside; parts in the second."""
    figure = Figure(figsize=(7.5, 2.3 * len(fields)), layout="constrained")
    axes = figure.subplots(len(fields), 3, squeeze=False)
    shares = {}
    for line, (name, x) in zip(axes, fields.items(), strict=True):
        plane = PCA(2, random_state=0).fit_transform(x.reshape(len(x), -1))
        labels = KMeans(2, n_init=4, random_state=0).fit_predict(plane)
        half = x.shape[-1] // 2  # the mode that is larger for small s2 comes first
        if x[labels == 1][..., :half].mean() > x[labels == 0][..., :half].mean():
            labels = 1 - labels
        shares[name] = float(labels.mean())
        means = [x[labels == k].mean(0) for k in (0, 1)]
        limit = float(max(np.abs(m).max() for m in means))
        for k, colour in enumerate(("tab:blue", "tab:orange")):
            line[0].plot(*plane[labels == k].T, ".", ms=1, color=colour)
            picture = draw_field(line[1 + k], means[k], 2, limit)
            part = shares[name] if k else 1 - shares[name]
            line[1 + k].set_title(f"mean of {100 * part:.1f}%", fontsize="small")
        line[0].set(xticks=[], yticks=[], ylabel=name)
        figure.colorbar(picture, ax=line[2])
    axes[0, 0].set_title("principal components", fontsize="small")
    return figure, shares


def necessity(context: Context) -> Made:
    """Learning curve of the last stage (synthetic), modes before and after training (elliptic)."""
    synthetic, elliptic = (posterior_of(context, name) for name in ("synthetic", "elliptic"))
    last = [r for r in synthetic.records if r["scale"] == synthetic.scale]
    start, end = last[0]["jeffreys"], min(r["jeffreys"] for r in last)
    rows = [
        {"quantity": "Jeffreys divergence at the start of the last stage", "ours": start}
        | {"paper": LEARNING[0]},
        {"quantity": "and at its end", "ours": end, "paper": LEARNING[1]},
    ]
    found = capture(elliptic, context.samples)
    modes = necessity_figure(elliptic, found)
    modes.suptitle(
        "Elliptic problem: mean of one cluster, before and after training of a scale",
        fontsize="small",
    )
    for stage in elliptic.stages[1:]:
        rows.append(
            {
                "quantity": f"elliptic, scale {stage['scale']}: effective size of q~",
                "ours": stage["ess_fraction_start"],
            }
        )
        rows.append({"quantity": "and after training", "ours": stage["ess_fraction"]})
    notes = ("estimates by fresh fields; the paper's problem has d = 4096",)
    return Made(rows, {"learning": _curve(synthetic), "modes": modes}, notes)


def _curve(posterior: Posterior) -> Figure:
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    for scale in posterior.scales:
        rounds = [r for r in posterior.records if r["scale"] == scale]
        x, y = [r["nfs"] for r in rounds], [max(r["jeffreys"], 1e-6) for r in rounds]
        axes.plot(x, y, "o-", ms=3, lw=1, label=f"l = {scale}")
    axes.set(yscale="log", xlabel="forward simulations", ylabel="Jeffreys divergence, held out")
    axes.legend(fontsize="x-small", ncols=2)
    axes.set_title(
        f"MsIGN on the synthetic problem, d = {posterior.prior.lattice.dim}; "
        f"the paper at l = 6: {LEARNING[0]:g} to {LEARNING[1]:g}",
        fontsize="small",
    )
    return figure
