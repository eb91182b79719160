"""The pictures of the documentation and of the README, from runs with seed 0.

    python docs/make_figures.py                 all of them
    python docs/make_figures.py NAME ...        some: examples, conditioning, network, stages,
                                                certificate, readme, concepts
    python docs/make_figures.py ancestors RUN   samples of a run at every scale (results)

Runs are kept in runs/gallery and are not made again while they are there; `msign run
examples/NAME.py --budget BUDGET --out runs/gallery/NAME` makes the same. At the end the numbers
that the gallery prints are printed.
"""

import functools
import io
import json
import pathlib
import sys
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import msign
from msign.experiments.problem_file import load_problem_file
from msign.noise import normal
from msign.problems.elliptic import patch_centres
from msign.report.contents import Contents, contents_of
from msign.report.curves import learning_curve
from msign.report.style import ACCENT, ALERT, FONT, INK, SOFT, plain
from msign.report.views import Panel, Scale, colour_bar, draw_plane, panels, value_scale
from msign.weights import lost_evidence, weight_report

ROOT = pathlib.Path(__file__).parents[1]
FIGURES, RUNS = ROOT / "docs" / "figures", ROOT / "runs" / "gallery"
BUDGETS = {
    "two_modes": 100_000,
    "deconvolution": 50_000,
    "threshold": 60_000,
    "cox": 60_000,
    "permeability": 120_000,
    "volume": 20_000,
}
SEED = 0


@functools.cache
def run_of(name: str) -> Contents:
    """What there is to show of an example's run, which is made if it is not there."""
    problem, out = load_problem_file(ROOT / "examples" / f"{name}.py"), RUNS / name
    if not (out / "posterior.json").exists():
        msign.fit(problem, BUDGETS[name], SEED, out=out)
    return contents_of(msign.Posterior.load(out, problem))


def example(name: str) -> Any:
    """The module of an example, as it was loaded with its problem."""
    run_of(name)
    return sys.modules[f"msign_problem_{name}"]


def new(columns: int, rows: int = 1, width: float = 2.1, height: float = 2.2) -> tuple[Figure, Any]:
    """A figure of small panels."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def plane(axes: Any, field: np.ndarray, scale: Scale, title: str) -> Any:
    """A field in the plane, with a title."""
    image = draw_plane(axes, Panel("", np.asarray(field), (1.0, 1.0)), scale)
    axes.set_title(title, fontsize=FONT, color=INK)
    return image


def save(figure: Figure, name: str) -> None:
    """Write a picture with a palette, which takes a third of the bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=110, facecolor="white")
    path = FIGURES / f"{name}.png"
    Image.open(buffer).convert("RGB").quantize(200, dither=Image.Dither.NONE).save(
        path, optimize=True
    )
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1024} KB", flush=True)


# --- the gallery ----------------------------------------------------------------------------------


def two_modes() -> Figure:
    shown = run_of("two_modes")
    figure, grid = new(5, width=2.1, height=2.35)
    values = value_scale(shown.fields)
    for k, mean in enumerate(shown.mode_means[:2]):
        share = shown.summary["mode_fractions"][k]
        plane(grid[0, k], mean, values, f"mean of mode {k + 1} ({share:.2f})")
    for k in range(2):
        image = plane(grid[0, 2 + k], shown.fields[k], values, f"sample {k + 1}")
    colour_bar(figure, image, list(grid[0, :4]))
    marginal(grid[0, 4], shown)
    return figure


def marginal(axes: Any, shown: Contents) -> None:
    """The measured average: histogram of samples and the exact density."""
    assert shown.exact is not None
    found = shown.functionals[0].of(shown.fields)
    axes.hist(found, 60, density=True, color=ACCENT, alpha=0.5, lw=0, label="samples")
    axes.plot(shown.exact.values, shown.exact.density, color=INK, lw=1, label="exact")
    plain(axes, "measured average")
    axes.set_yticks([])
    axes.legend(frameon=False, fontsize=FONT - 2, loc="upper center", ncols=2)
    axes.set_ylim(top=1.3 * shown.exact.density.max())


def deconvolution() -> Figure:
    shown, own = run_of("deconvolution"), example("deconvolution")
    figure = Figure(figsize=(8.4, 3.0), layout="constrained")
    axes = figure.subplots()
    spectra = np.exp(shown.fields)
    low, high = np.quantile(spectra, [0.05, 0.95], axis=0)
    axes.fill_between(
        own.s, low, high, step="mid", color=ACCENT, alpha=0.25, lw=0, label="90 percent"
    )
    axes.step(own.s, spectra.mean(0), where="mid", color=ACCENT, label="mean")
    for field in spectra[:3]:
        axes.step(own.s, field, where="mid", color=SOFT, lw=0.6)
    axes.step(own.s, own.spectrum, where="mid", color=INK, ls="--", lw=1, label="truth")
    axes.plot(own.centres, own.readings, ".", ms=5, color=ALERT, label="readings")
    plain(axes, "channel, from 0 to 1", "spectrum exp(x)")
    axes.legend(frameon=False, fontsize=FONT - 1)
    return figure


def threshold() -> Figure:
    shown, own = run_of("threshold"), example("threshold")
    figure, grid = new(5)
    values = value_scale(own.truth)
    rows, columns = np.unravel_index(own.places, own.truth.shape)
    axes = grid[0, 0]
    plane(axes, np.zeros_like(own.truth), values, "100 answers")
    for answer, colour in ((1.0, ALERT), (0.0, ACCENT)):
        at = own.answers == answer
        axes.plot(own.s[rows[at]], own.s[columns[at]], "o", ms=3.2, color=colour)
    plane(grid[0, 1], own.truth, values, "truth")
    plane(grid[0, 2], shown.mean, values, "posterior mean")
    plane(grid[0, 3], shown.fields[0], values, "sample")
    wet = Scale("Blues", 0.0, 1.0)
    image = plane(grid[0, 4], (shown.fields > 0).mean(0), wet, "chance of a yes")
    colour_bar(figure, image, grid[0, 4])
    for axes in grid[0, 1:4]:
        axes.contour(own.s, own.s, own.truth.T, [0.0], colors=INK, linewidths=0.7)
    return figure


def cox() -> Figure:
    shown, own = run_of("cox"), example("cox")
    figure, grid = new(5)
    rates = Scale("viridis", 0.0, float(np.quantile(np.exp(own.truth), 0.99)))
    plane(grid[0, 0], own.counts, Scale("Greys", 0, own.counts.max()), f"{own.counts.sum()} trees")
    plane(grid[0, 1], np.exp(own.truth), rates, "true density")
    plane(grid[0, 2], np.exp(shown.fields).mean(0), rates, "posterior mean")
    image = plane(grid[0, 3], np.exp(shown.fields[0]), rates, "sample")
    colour_bar(figure, image, list(grid[0, :4]))
    spread = np.exp(shown.fields).std(0)
    image = plane(grid[0, 4], spread, Scale("magma", 0.0, spread.max()), "standard deviation")
    colour_bar(figure, image, grid[0, 4])
    return figure


def permeability() -> Figure:
    shown = run_of("permeability")
    assert shown.truth is not None
    figure, grid = new(6, width=1.9, height=2.1)
    values = value_scale(shown.fields)
    plane(grid[0, 0], shown.truth, values, "truth")
    for k, mean in enumerate(shown.mode_means[:2]):
        share = shown.summary["mode_fractions_weighted"][k]
        plane(grid[0, 1 + k], mean, values, f"mode {k + 1} ({share:.2f})")
    for k in range(2):
        image = plane(grid[0, 3 + k], shown.fields[k], values, f"sample {k + 1}")
    colour_bar(figure, image, list(grid[0, :5]))
    spread = Scale("viridis", 0.0, shown.std.max())
    image = plane(grid[0, 5], shown.std, spread, "standard deviation")
    colour_bar(figure, image, grid[0, 5])
    return figure


def volume() -> Figure:
    shown = run_of("volume")
    assert shown.truth is not None
    figure, grid = new(4, 3, height=1.9)
    prior = shown.posterior.prior
    values = Scale("RdBu_r", -1.0, 1.0)
    spread = Scale("viridis", 0.0, shown.std.max())
    columns = [("truth", shown.truth, values), ("mean", shown.mean, values)]
    columns += [("sample", shown.fields[0], values), ("standard deviation", shown.std, spread)]
    for k, (name, field, scale) in enumerate(columns):
        for row, panel in enumerate(panels(prior, field)):
            image = draw_plane(grid[row, k], panel, scale)
            if k == 0:
                grid[row, 0].set_ylabel(f"across {panel.name}", fontsize=FONT, color=INK)
        grid[0, k].set_title(name, fontsize=FONT, color=INK)
        if k == 2:
            colour_bar(figure, image, list(grid[:, :3].flat))
    colour_bar(figure, image, list(grid[:, 3]))
    return figure


# --- concepts -------------------------------------------------------------------------------------


def conditioning() -> Figure:
    """One coarse prior field and four refinements of it."""
    prior = msign.LaplacePrior((32, 32), alpha=0.5, beta=4.0)
    middle = prior.coarsen()
    coarse = np.asarray(middle.coarsen().sample(jax.random.key(5), 1))[0]
    figure, grid = new(6, width=1.8, height=1.9)
    fields = []
    for k in range(4):
        field = coarse
        for i, fine in enumerate((middle, prior)):
            layer = fine.conditioning()
            missing = fine.lattice.dim - field.size
            noise = normal(jax.random.fold_in(jax.random.key(k), i), (missing,))
            field = np.asarray(layer.upsample(field, noise))
        fields.append(field)
    values = value_scale(np.stack(fields))
    plane(grid[0, 0], coarse, values, "coarse, 8 x 8")
    for k, field in enumerate(fields):
        plane(grid[0, 1 + k], field, values, f"refined, noise {k + 1}")
    again = middle.lattice.pool(prior.lattice.pool(fields[3]))
    assert np.allclose(again, coarse, atol=1e-4)
    plane(grid[0, 5], np.asarray(again), values, "number 4, averaged")
    return figure


def network() -> Figure:
    """A posterior sample between the layers."""
    shown = run_of("permeability")
    scales = sorted(shown.refined)
    figure, grid = new(len(scales), width=2.1, height=2.6)
    for l, axes in zip(scales, grid[0], strict=True):
        field = shown.refined[l][0]
        plane(axes, field, shown.values, f"scale {l}: {' x '.join(map(str, field.shape))}")
        text = "$z_1 \\to F_1$" if l == 1 else f"$u_{l - 1}, z_{l} \\to R_{l} \\to F_{l}$"
        axes.set_xlabel(text, fontsize=FONT + 1, color=INK)
    return figure


def stages() -> Figure:
    """The learning curve of all stages."""
    posterior = run_of("two_modes").posterior
    figure = learning_curve(posterior.records, posterior.stages, posterior.config)
    figure.set_size_inches(7.5, 3.4)
    return figure


def certificate() -> Figure:
    """Weights of four models of the synthetic posterior along its one direction that matters."""
    reference = msign.problems.synthetic(size=16).reference
    prior_log = functools.partial(log_normal, mean=0.0, std=1.0)
    exact = reference.sample(jax.random.key(SEED), 20_000)[:, reference.critical_index()]
    at, std = np.abs(exact).mean(), np.abs(exact).std()
    evidence = reference.log_evidence()
    rng = np.random.default_rng(SEED)
    figure, grid = new(4, width=2.4, height=2.5)
    models = (
        ("both modes, a little wide", (-at, at), 1.15 * std),
        ("the prior", (0.0,), 1.0),
        ("both modes, far too narrow", (-at, at), 0.4 * std),
        ("one mode of the two", (at,), 1.15 * std),
    )
    for axes, (name, centres, width) in zip(grid[0], models, strict=True):
        u = rng.choice(centres, 20_000) + width * rng.normal(size=20_000)
        model = np.logaddexp.reduce([log_normal(u, c, width) for c in centres], 0)
        values = reference.critical_values(np.eye(256)[reference.critical_index()]) * u
        log_likelihood = -0.5 * ((values**2 - 1) / reference.gamma) ** 2
        log_weights = log_likelihood + prior_log(u) - (model - np.log(len(centres)))
        report = weight_report(log_weights)
        lost = lost_evidence(report, evidence, 0.01)
        grade = "NOT RELIABLE" if lost else report.grade
        away = np.clip(log_weights - report.log_evidence, -12, 6)
        axes.hist(away, np.linspace(-12, 6, 55), color=ALERT if "NOT" in grade else ACCENT, lw=0)
        axes.axvline(0, color=INK, lw=0.8, ls="--")
        axes.set_yscale("log")
        axes.set_yticks([])
        axes.minorticks_off()
        plain(axes, "log-weight")
        told = f", lost {lost:.2f}" if lost else f", k-hat {report.khat:.2f}"
        axes.set_title(
            f"{name}\n{grade}\nESS {100 * report.ess_fraction:.2g} percent{told}",
            fontsize=FONT - 1,
            color=INK,
        )
    return figure


def log_normal(u: np.ndarray, mean: float, std: float) -> np.ndarray:
    """Log-density of a normal distribution."""
    return -0.5 * ((u - mean) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))


# --- the README -----------------------------------------------------------------------------------


def readme() -> Figure:
    """Truth, data, modes, spread and certificate; below, a sample being refined."""
    shown = run_of("permeability")
    posterior, summary = shown.posterior, shown.summary
    assert shown.truth is not None
    figure, grid = new(6, 2, width=2.05, height=2.2)
    values = value_scale(shown.fields)
    plane(grid[0, 0], shown.truth, values, "truth")
    pressures(grid[0, 1], posterior.problem.data)
    for i, mean in enumerate(shown.mode_means[:2]):
        share = summary["mode_fractions_weighted"][i]
        plane(grid[0, 2 + i], mean, values, f"mode {i + 1}: {100 * share:.0f} percent")
    plane(grid[0, 4], shown.std, Scale("viridis", 0.0, shown.std.max()), "standard deviation")
    axes = grid[0, 5]
    log_weights = posterior.certificates[posterior.scale].log_weights - summary["log_evidence"]
    axes.hist(np.clip(log_weights, -4, 4), 50, color=ACCENT, alpha=0.6, lw=0)
    axes.axvline(0, color=INK, lw=0.8, ls="--")
    plain(axes, "log-weight of a sample")
    axes.set_yticks([])
    grade = summary["verdict"].partition(":")[0]
    ess = 100 * summary["ess_fraction"]
    axes.set_title(f"certificate: {grade}\n{ess:.0f} percent effective", fontsize=FONT, color=INK)
    scales = sorted(shown.refined)
    for l, axes in zip(scales, grid[1], strict=False):
        field = shown.refined[l][0]
        size = " x ".join(map(str, field.shape))
        plane(axes, field, values, f"one sample, {size}" if l == 1 else f"refined to {size}")
    plane(grid[1, 5], shown.refined[scales[-1]][1], values, "another sample")
    return figure


def ancestors(run: str, count: int = 5) -> Figure:
    """The same samples of a run at every scale, the coarsest above."""
    posterior = msign.Posterior.load(run)
    rows = [posterior.sample(count, SEED, scale=l) for l in posterior.scales]
    scale = value_scale(rows[-1])
    figure, axes = new(count, len(rows), 1.6, 1.6)
    for fields, row in zip(rows, axes, strict=True):
        for field, place in zip(fields, row, strict=True):
            image = plane(place, field, scale, "")
        row[0].set_ylabel(" x ".join(map(str, field.shape)), fontsize=FONT, color=INK)
    colour_bar(figure, image, axes)
    return figure


def pressures(axes: Any, data: np.ndarray) -> None:
    """The patches over which the pressure is averaged, in the colours of the data."""
    places = [
        (column, 0.5 + sign * offset, value)
        for (column, offset), value in zip(patch_centres(), data, strict=True)
        for sign in (-1, 1)
    ]
    s1, s2, values = np.array(places).T
    axes.scatter(s1, s2, c=values, cmap="cividis", marker="s", s=110, lw=0)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[], aspect="equal")
    axes.set_facecolor("#eef0f2")
    axes.spines[:].set_visible(False)
    axes.set_title("data: 15 pressures", fontsize=FONT, color=INK)


CONCEPTS = {
    "concept_conditioning": conditioning,
    "concept_network": network,
    "concept_stages": stages,
    "certificate": certificate,
}
GALLERY = {
    f"gallery_{f.__name__}": f
    for f in (two_modes, permeability, cox, deconvolution, threshold, volume)
}
ALL = {**GALLERY, **CONCEPTS, "readme": readme}


def main() -> None:
    if sys.argv[1:2] == ["ancestors"]:
        save(ancestors(sys.argv[2]), "elliptic_ancestors")
        return
    wanted = sys.argv[1:] or list(ALL)
    wanted += list(CONCEPTS) * ("concepts" in wanted)
    names = [n for n in ALL if n in wanted or n.partition("_")[2] in wanted]
    if not names:
        sys.exit(f"NAME must be one of {', '.join(ALL)}, got {wanted}")
    for name in names:
        save(ALL[name](), name)
    print(
        "| problem | cells | flow | simulations | seconds | effective sample size | k-hat | modes |"
    )
    for name in BUDGETS:
        if (RUNS / name / "summary.json").exists():
            found = json.loads((RUNS / name / "summary.json").read_text())
            shares = ":".join(f"{f:.2f}" for f in found["mode_fractions_weighted"])
            print(
                f"| {name} | {found['dimension']} | {found['flow']} | {found['nfs']:,} | "
                f"{found['seconds']:.0f} | {found['ess_fraction']:.2f} | {found['khat']:.2f} | "
                f"{shares} |"
            )


if __name__ == "__main__":
    main()
