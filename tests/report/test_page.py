"""The page of a run, made from its directory alone."""

import html.parser
import json
import pathlib
import re
import shutil
import zipfile

import numpy as np
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from msign import Posterior
from msign.cli import app
from msign.report.markup import Html
from msign.report.page import assembled, film
from msign.report.run_page import _about_divergence, refining, reproduce, write_report
from msign.report.words import words
from msign.weights import weight_report
from report.untrained import SHAPES, problem_on, untrained

SECTIONS = ("certificate", "summary", "fields", "modes", "marginals", "data", "weights", "stages")


class Tags(html.parser.HTMLParser):
    """All elements and the attributes that could load or run something."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[str] = []
        self.ids: list[str] = []
        self.sources: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href") and not value.startswith("#"):
                self.sources.append(value)
            if name.startswith("on"):
                self.handlers.append(name)


@pytest.mark.parametrize("name", SHAPES)
def test_every_part_is_there_and_nothing_is_fetched(pages, name):
    tags = Tags(pages[name].read_text())
    assert set(SECTIONS) <= set(tags.ids)
    assert len(set(tags.ids)) == len(tags.ids)
    assert tags.found.count("script") == 1 and not tags.handlers
    assert all(source.startswith("data:") for source in tags.sources)
    assert tags.found.count("svg") >= 10


@pytest.mark.parametrize("name", SHAPES)
def test_a_name_is_text_and_every_figure_is_a_file_as_well(pages, saved, name):
    page = pages[name].read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    figures = {path.stem for path in (saved[name] / "figures").glob("*.png")}
    assert {"estimate", "samples", "samples_1", "marginal", "predictive", "residuals"} <= figures
    assert {"weights", "learning_curve"} <= figures


@pytest.mark.parametrize("grade", ["ROUGH", "NOT RELIABLE"])
def test_verdict_summary_and_page_tell_the_same_numbers(grade):
    """Of log-weights with the quantiles of a normal distribution, as wide as makes the grade."""
    posterior = untrained(problem_on(SHAPES["line"]))
    held_out = posterior.certificates[2]
    n = len(held_out.log_weights)
    quantiles = norm.ppf((np.arange(n) + 0.5) / n)
    candidates = (deviation * quantiles for deviation in np.linspace(1.5, 6, 91))
    log_weights = next(w for w in candidates if weight_report(w).grade == grade)
    posterior.certificates[2] = held_out._replace(log_weights=log_weights)
    summary = posterior.summary()

    def numbers(text):
        return set(re.findall(r"(?:budget|draws)[ =](\d+)", text))

    told = numbers(" ".join(words(summary).steps))
    assert told == numbers(summary["verdict"]) <= {str(v) for v in summary["try"].values()}
    assert len(told) == 2


def test_a_divergence_within_its_error_is_a_bound_and_none_is_negative():
    def told(found, error, lost=0.0):
        weights = {"ess_fraction": 0.9, "khat": 0.1, "worst_log_weight": 0.1}
        numbers = {"jeffreys": found, "jeffreys_stderr": error, "lost_evidence": lost}
        return _about_divergence({**weights, **numbers})[0]

    assert told(-3e-5, 4.4e-4) == "< 0.0009"
    assert told(2e-4, 4.4e-4) == "< 0.001"
    assert told(0.31, 0.02) == "0.31"
    assert told(393.2, 3.0) == "393"
    assert told(5212.3, 130.0) == "5\u202f212"
    assert told(np.inf, np.nan) == "infinite"
    assert told(0.003, 0.002, lost=0.7) == "large"  # its own samples cannot see that


def test_an_evidence_that_is_not_to_be_trusted_is_not_given_an_error(tmp_path):
    posterior = untrained(problem_on(SHAPES["line"]))
    held_out = posterior.certificates[2]
    spread = held_out._replace(log_weights=np.linspace(0, 5000, len(held_out.log_weights)))
    posterior.certificates[2] = spread
    posterior.save(tmp_path)
    page = write_report(posterior, tmp_path).read_text()
    assert "not to be trusted" in page and "e+0" not in page.split("All numbers")[0]


def test_the_script_that_may_run_is_the_page_s_own():
    page = assembled("t", film([("a", Html("x")), ("b", Html("y"))]))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    assert "default-src &#x27;none&#x27;" in policy and "unsafe-eval" not in policy
    assert len(re.findall(r"script-src &#x27;sha256-[\w+/=]+&#x27;;", policy)) == 1


def test_the_command_to_reproduce_is_quoted_for_a_shell(saved, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(saved["line"], folder)
    origin = {"problem": "x.py:p; rm -rf ~", "options": {"size": 8, "black_box": True}}
    (folder / "problem.json").write_text(json.dumps(origin))
    page = reproduce(Posterior.load(folder), folder)
    assert "msign run &#x27;x.py:p; rm -rf ~&#x27; --size 8 --black-box --budget" in page


def test_the_python_to_reproduce_makes_a_problem_of_ours_and_no_code_of_others(saved, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(saved["line"], folder)

    def shown(problem, **options):
        origin = {"problem": problem, "options": options}
        (folder / "problem.json").write_text(json.dumps(origin))
        return reproduce(Posterior.load(folder), folder)

    ours = "problem = msign.problems.synthetic(size=8, black_box=True)"
    assert ours in shown("synthetic", size=8, black_box=True)
    for told in (shown("x.py:p"), shown("synthetic", **{"a); evil(": 1}), shown("p; evil(")):
        assert "problem =" not in told


def test_the_command_that_refines_names_the_file_of_the_problem(tmp_path):
    assert refining(tmp_path) is None  # a fit in Python
    for problem, command in {
        "synthetic": f"msign refine {tmp_path}",
        "a b.py:p": f"msign refine {tmp_path} --problem 'a b.py:p'",
    }.items():
        (tmp_path / "problem.json").write_text(json.dumps({"problem": problem, "options": {}}))
        assert refining(tmp_path) == command


def test_a_coarse_stage_has_a_page_as_well(tmp_path):
    coarse = untrained(problem_on(SHAPES["line"])).stage(1)
    coarse.save(tmp_path)
    page = write_report(coarse, tmp_path).read_text()
    assert "scale 1: 4 cells" in page and "scale 2" not in page


def damaged_npz(path: pathlib.Path, name: str, array: np.ndarray) -> None:
    """Replace one array of a file, in NumPy's own format, pickled if it must be."""
    with zipfile.ZipFile(path) as archive:
        held = {n: archive.read(n) for n in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in held.items():
            if member != f"{name}.npy":
                archive.writestr(member, content)
        with archive.open(f"{name}.npy", "w") as file:
            np.lib.format.write_array(file, array)


class Bomb:
    """What a pickle could run."""

    def __reduce__(self):
        return (pytest.fail, ("code of the run directory was run",))


DAMAGE = {
    "truncated": lambda f: (f / "predictive.npz").write_bytes(b"PK" * 20),
    "shape": lambda f: damaged_npz(f / "predictive.npz", "residuals", np.zeros((2, 2))),
    "pickle": lambda f: damaged_npz(f / "predictive.npz", "data", np.array([Bomb()], object)),
    "text": lambda f: damaged_npz(f / "known.npz", "truth", np.array(["<b>"] * 8)),
    "known": lambda f: damaged_npz(f / "known.npz", "truth", np.zeros(3)),
    "json": lambda f: (f / "config.json").write_text("{"),
    "list": lambda f: (f / "posterior.json").write_text("[]"),
    "origin": lambda f: (f / "problem.json").write_text('{"problem": 1}'),
    "records": lambda f: change(f, "records", [{"scale": "x"}]),
    "stages": lambda f: change(f, "stages", [{"scale": 1}]),
}


def change(folder, name, value):
    path = folder / "posterior.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_run_is_one_line_of_error(saved, tmp_path, kind):
    folder = tmp_path / "run"
    shutil.copytree(saved["line"], folder, ignore=shutil.ignore_patterns("report.html"))
    DAMAGE[kind](folder)
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert result.exit_code == 1
    assert result.output.startswith("error: ") and len(result.output.strip().splitlines()) == 1
    assert str(folder) in result.output
    assert not (folder / "report.html").exists()


def test_no_run_is_one_line_of_error(tmp_path):
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 1 and "run must hold a finished run" in result.output
