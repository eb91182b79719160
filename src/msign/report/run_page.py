"""The report of a fit: certificate in words, fields, modes, marginals, data fit, how made."""

import json
import math
import os
import pathlib
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from msign.inference import Posterior
from msign.report import markup
from msign.report.contents import SAMPLES, Contents, contents_of
from msign.report.curves import LOWEST
from msign.report.data_fit import misfit_of
from msign.report.markup import Html, captioned, count, joined, section, tag
from msign.report.page import certificate, film, heading, tiles, write_page
from msign.report.posterior import all_figures, write_figures
from msign.report.style import as_svg
from msign.report.words import grade_of, is_missing_a_part, with_error, words
from msign.rundir import RunDirectory
from msign.weights import HEAVY


def write_report(posterior: Posterior, run: str | os.PathLike[str]) -> pathlib.Path:
    """Write figures and the page of a run to its directory; returns the page's path."""
    contents = contents_of(posterior)
    drawn = all_figures(contents)
    shown = {name: as_svg(figure, name.replace("_", " ")) for name, figure in drawn.items()}
    write_figures(drawn, contents.summary, pathlib.Path(run) / "figures")
    return write_page(run, f"msign: {contents.summary['problem']}", body(contents, shown, run))


def body(contents: Contents, figures: dict[str, Html], run: str | os.PathLike[str]) -> Html:
    """All of the page, with figures by their names."""
    posterior, summary = contents.posterior, contents.summary
    place, misfit = pathlib.Path(run), misfit_of(posterior.predictive)
    said = words(summary, misfit, shlex.quote(os.fspath(run)), refining(place))
    lattice = posterior.prior.lattice
    cells = " × ".join(map(str, lattice.shape))
    what = f"{cells} cells, {posterior.problem.scales} scales, dimension {lattice.dim}"
    return joined(
        [
            heading(summary["problem"], what),
            certificate(said),
            numbers(contents, run),
            fields(contents, figures),
            modes(contents, figures),
            marginals(contents, figures),
            data_fit(figures),
            weights(summary, figures),
            training(summary, posterior.records, figures),
            reproduce(posterior, pathlib.Path(run)),
            tag("footer", "Made by msign from the run's own files; nothing was simulated for it."),
        ]
    )


def refining(run: pathlib.Path) -> str | None:
    """The command that refines a run, with its problem's file; None if the run names no problem."""
    if not (run / "problem.json").exists():
        return None
    problem = str(RunDirectory(run, write=False).read_json("problem.json")["problem"])
    named = ["--problem", problem] if ".py" in problem else []
    return shlex.join(["msign", "refine", os.fspath(run), *named])


def numbers(contents: Contents, run: str | os.PathLike[str]) -> Html:
    """The summary in a few tiles, and in full."""
    s = contents.summary
    budget = RunDirectory(run).read_json("config.json").get("budget")
    allowed = f"of {count(budget)} allowed" if isinstance(budget, int) else "forward simulations"
    of_what = " of the part that was found" if is_missing_a_part(s) else ""
    worth = f"what samples are worth{of_what}"
    evidence, error = with_error(s["log_evidence"], s["log_evidence_stderr"])
    if grade_of(s) == "NOT RELIABLE" and not of_what:
        error = "of these weights alone: not to be trusted"
    items = [
        ("Effective sample size", f"{100 * s['ess_fraction']:.3g} %", worth),
        ("k-hat", f"{s['khat']:.2f}", _about_tail(s)),
        ("Jeffreys divergence", *_about_divergence(s)),
        ("Log evidence", evidence, f"{error}{of_what}"),
        ("Simulations", count(s["nfs"]), allowed),
        ("Time", _duration(s["seconds"]), f"{s['seconds'] / max(s['nfs'], 1) * 1e3:.3g} ms each"),
    ]
    rows = [(n.replace("_", " "), _plain(v)) for n, v in s.items() if not isinstance(v, dict)]
    rows = [(n, v) for n, v in rows if n != "stages"]
    full = tag("details", tag("summary", "All numbers"), markup.facts(rows))
    return tag("section", tiles(items), full, id="summary")


def _about_tail(summary: dict[str, Any]) -> str:
    """What k-hat means: a heavy tail of weights that are all alike does no harm."""
    largest = np.exp(summary["worst_log_weight"])
    if summary["khat"] > HEAVY and grade_of(summary) == "GOOD":
        return f"heavy, but harmless: no weight above {largest:.3g} times the mean"
    return f"tail of weights; above {HEAVY} is heavy"


def _about_divergence(summary: dict[str, Any]) -> tuple[str, str]:
    """The divergence and its error; a bound where it is smaller than that, or negative."""
    found, error = summary["jeffreys"], summary["jeffreys_stderr"]
    if is_missing_a_part(summary):
        return "large", "a part of the posterior has no samples"
    if not np.isfinite(found):
        return "infinite", "some samples cannot be simulated"
    if found < error:
        return f"< {max(found, 0) + 2 * error:.1g}", "nats from the posterior, too small to measure"
    spread = f"{error:.0f}" if error >= 10 else f"{error:.1g}"
    return _nats(found), f"± {spread} nats from the posterior"


def _nats(divergence: float) -> str:
    """A divergence with two digits, or whole where it is large."""
    return count(divergence) if 10 <= divergence < math.inf else f"{divergence:.2g}"


def fields(contents: Contents, figures: dict[str, Html]) -> Html:
    """Mean, spread, samples through the scales."""
    posterior = contents.posterior
    shown = ["Mean, standard deviation and the middle 90 percent of the posterior, cell by cell"]
    if posterior.prior.lattice.ndim == 1:
        shown = ["Mean of the posterior and its middle 90 percent, cell by cell"]
    if contents.truth is not None:
        shown.append("with the field behind the data")
    if posterior.prior.lattice.ndim == 3:
        shown.append("in slices through the middle, across each axis")
    frames = []
    for scale in contents.refined:
        cells = " × ".join(map(str, posterior.problem.priors[scale - 1].lattice.shape))
        name = "samples" if scale == posterior.scale else f"samples_{scale}"
        frames.append((f"scale {scale}: {cells} cells", figures[name]))
    caption = (
        f"{SAMPLES} samples. The slider goes from the coarsest scale to the finest: the same "
        "samples, refined, as `posterior.sample(n, seed, scale=l)` gives them."
    )
    kind = None if posterior.prior.lattice.ndim == 2 else "whole"
    about = f"{', '.join(shown)}."
    if len(contents.mode_means) > 1:
        about += " The mean of several modes need not look like any of them: see Modes."
    estimate = captioned(figures["estimate"], about, class_=kind)
    samples = captioned(film(frames), caption, class_=kind)
    return section("fields", "Fields", tag("div", estimate, samples, class_="pictures"))


def modes(contents: Contents, figures: dict[str, Html]) -> Html:
    """Shares and means of modes."""
    s = contents.summary
    columns = (
        s["mode_fractions"],
        s["mode_fractions_stderr"],
        s["mode_fractions_weighted"],
        s["mode_fractions_weighted_stderr"],
    )
    rows = [
        (k + 1, f"{a:.3f} ± {b:.3f}", f"{c:.3f} ± {d:.3f}")
        for k, (a, b, c, d) in enumerate(zip(*columns, strict=True))
    ]
    if "modes" not in figures:
        rest = " A part of the posterior is missing from them." if is_missing_a_part(s) else ""
        return section("modes", "Modes", tag("p", f"The samples have one mode.{rest}"))
    listed = markup.table(("mode", "share of samples", "share of their weights"), rows)
    caption = "Mean field of each mode, in one scale of colours."
    return section("modes", "Modes", listed, captioned(figures["modes"], caption))


def marginals(contents: Contents, figures: dict[str, Html]) -> Html:
    """What single numbers of the field are."""
    names = [n for n in figures if n.startswith("marginal")]
    pictures = [
        captioned(figures[name], f"{functional.name}: {functional.about}.")
        for name, functional in zip(names, contents.functionals, strict=True)
    ]
    return section("marginals", "Marginals", tag("div", *pictures, class_="pictures"))


def data_fit(figures: dict[str, Html]) -> Html:
    """Predictions against data."""
    if "predictive" not in figures:
        return section(
            "data", "Data fit", tag("p", "There are no observations to predict, or none was kept.")
        )
    pictures = (
        captioned(figures["predictive"], "New data as the posterior predicts them, and the data."),
        captioned(
            figures["residuals"],
            "What is left of the data, in units of their noise: within ± 2 where they fit.",
        ),
    )
    return section("data", "Data fit", tag("div", *pictures, class_="pictures"))


def weights(summary: dict[str, Any], figures: dict[str, Html]) -> Html:
    """Importance weights of the certificate."""
    caption = (
        f"Log-weights of {count(summary['certificate_size'])} samples that training never saw. "
        "The narrower about zero, the closer the model is to the posterior; a tail to the right "
        "are places that it visits too seldom."
    )
    picture = captioned(figures["weights"], caption)
    return section("weights", "Importance weights", picture)


def training(
    summary: dict[str, Any], records: Sequence[dict[str, Any]], figures: dict[str, Html]
) -> Html:
    """What each stage did."""
    head = ("scale", "dimension", "trained", "rounds", "nFS", "seconds", "J before", "J after")
    rows = [
        (
            st["scale"],
            count(st["dimension"]),
            count(st["variables"]),
            st["rounds"],
            count(st["nfs"]),
            f"{st['seconds']:.1f}",
            _nats(st["jeffreys_start"]),
            _nats(st["jeffreys"]),
            f"{100 * st['ess_fraction']:.3g} %",
            f"{st['khat']:.2f}",
        )
        for st in summary["stages"]
    ]
    parts: list[Html] = []
    if "learning_curve" in figures:
        caption = (
            "Divergence from the posterior of each scale, by fields that the model was not trained "
            "on. A stage ends below its line, or when rounds bring nothing any more."
        )
        if any(r["jeffreys"] < LOWEST for r in records):
            caption += f" What is below {LOWEST:g} is drawn there."
        parts = [captioned(figures["learning_curve"], caption)]
    note = (
        "J is the Jeffreys divergence in nats, nFS the forward simulations of the stage; trained "
        "are the variables that its flow moves."
    )
    listed = markup.table((*head, "ESS", "k-hat"), rows)
    return section("stages", "Stages and timings", *parts, listed, tag("p", note))


def reproduce(posterior: Posterior, run: pathlib.Path) -> Html:
    """Commands, configuration and versions."""
    files = RunDirectory(run)
    config = files.read_json("config.json")
    found = [
        "import json, msign",
        'saved = json.load(open("config.json"))',
        'config = msign.FitConfig.from_json(saved["fit"])',
        f"posterior = msign.fit(problem, budget={config.get('budget')!r}, "
        f"seed={posterior.seed!r}, config=config)",
    ]
    parts = []
    if (run / "problem.json").exists():
        origin = files.read_json("problem.json")
        parts.append(tag("pre", tag("code", _command(origin, config))))
        found[1:1] = _made(origin)
    parts.append(tag("pre", tag("code", "\n".join(found))))
    told = [("Configuration", config)]
    if (run / "environment.json").exists():
        told.append(("Versions", files.read_json("environment.json")))
    blocks = (
        tag("details", tag("summary", name), tag("pre", json.dumps(values, indent=1)))
        for name, values in told
    )
    text = "Same seed, same budget and same versions give the same numbers."
    return section("reproduce", "How to reproduce", tag("p", text), *parts, *blocks)


def _command(origin: dict[str, Any], config: dict[str, Any]) -> str:
    """The call of `msign run`, with every word quoted for a shell."""
    words = ["msign", "run", str(origin["problem"])]
    for name, value in (origin["options"] | origin.get("training", {})).items():
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)]
    words += ["--budget", str(config.get("budget")), "--seed", str(config["seed"])]
    return " ".join(map(shlex.quote, words))


def _made(origin: dict[str, Any]) -> list[str]:
    """The line of Python that makes a problem of ours; the user makes one of a file."""
    name, options = str(origin["problem"]), origin["options"]
    if not all(word.isidentifier() for word in (name, *options)):
        return []
    given = ", ".join(f"{option}={value!r}" for option, value in options.items())
    return [f"problem = msign.problems.{name}({given})"]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(_plain(v) for v in value)
    return str(value)
