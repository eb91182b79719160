"""`msign compare`, as a shell would call it, on the smallest problems."""

import json

import matplotlib.image
import numpy as np
import pytest
from typer.testing import CliRunner

from msign import FitConfig
from msign.cli import app
from msign.experiments.compare import as_known, config_of, run_comparison
from msign.experiments.tasks import Setting
from msign.problems import elliptic, synthetic
from msign.report import comparison_figures
from msign.report.comparison import LABELS, Comparison, table

runner = CliRunner()
pytestmark = pytest.mark.usefixtures("quick_compilation")
BLACK_BOX = """
import numpy as np
import msign


def forward(x):
    x = np.asarray(x)  # which JAX cannot trace
    open(__file__ + ".called", "w").close()
    return x[:, :1] ** 2


problem = msign.InverseProblem(
    msign.LaplacePrior((4,), alpha=0.5, beta=2.0), forward, [1.0], 0.1, name="own"
)
"""


def compared(out, *more):
    arguments = ["compare", "synthetic", "--size", "4", "--methods", "smc,laplace", "--budget"]
    arguments += ["2000", "-n", "100", "--seeds", "0,1", "--scale", "all", "--out", str(out)]
    return runner.invoke(app, [*arguments, *more])


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    out = tmp_path_factory.mktemp("compare") / "out"
    return out, compared(out)


def test_table_figures_and_page(comparison):
    out, result = comparison
    assert result.exit_code == 0, result.output
    rows = json.loads((out / "table.json").read_text())["rows"]
    assert {(r["method"], r["scale"]) for r in rows} == {
        (m, l) for m in ("exact", "smc", "laplace") for l in (1, 2)
    }
    for row in rows:
        assert row["nfs"] <= 2000 and len(row["letters"]) == 2
        assert row["rmse_mean"] > 0 and row["rmse_mean_ci"] > 0
        assert (row["jeffreys"] is not None) == (row["method"] == "laplace")
        assert 1 <= row["effective"] <= 100
    assert (out / "table.csv").read_text().count("\n") == 1 + len(rows)
    for name in ("marginals", "errors"):
        assert matplotlib.image.imread(out / "figures" / f"{name}.png").ndim == 3
    page = (out / "comparison.md").read_text()
    assert "T: every mode" in page and "tempered SMC" in page


def test_what_is_done_is_skipped_and_what_is_missing_is_added(comparison):
    out, _ = comparison
    before = (out / "results" / "smc-1-0.json").stat().st_mtime_ns
    (out / "results" / "laplace-2-1.json").unlink()
    again = compared(out)
    assert again.exit_code == 0, again.output
    lines = [line for line in again.output.splitlines() if "seed" in line and "nFS  " in line]
    assert len(lines) == 1 and lines[0].startswith("laplace")
    assert (out / "results" / "smc-1-0.json").stat().st_mtime_ns == before


def test_a_report_runs_nothing(comparison):
    out, _ = comparison
    (out / "table.csv").unlink()
    assert compared(out, "--report").exit_code == 0
    assert (out / "table.csv").exists()


def test_another_budget_does_not_go_into_the_same_directory(comparison):
    out, _ = comparison
    result = compared(out, "--budget", "3000")
    assert result.exit_code == 1 and "budget must be 2000" in result.output


@pytest.mark.parametrize(
    "option, value, words",
    [
        ("--methods", "smc,magic", "magic"),
        ("--seeds", "0,x", "seeds"),
        ("--scale", "7", "scale"),
        ("--budget", "5", "budget"),
    ],
)
def test_bad_input_is_one_line(option, value, words, tmp_path):
    result = compared(tmp_path / "out", option, value)
    assert result.exit_code == 1 and words in result.output
    assert "Traceback" not in result.output


def test_a_users_own_problem_without_a_derivative(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(BLACK_BOX)
    common = ["compare", f"{path}:problem", "--budget", "1000", "-n", "50", "--seeds", "0"]
    common += ["--out", str(tmp_path / "out"), "--methods"]
    refused = runner.invoke(app, [*common, "pcn,hmc"])
    assert refused.exit_code == 1 and "derivative" in refused.output
    assert "these can: --methods pcn" in " ".join(refused.output.split())
    assert not (tmp_path / "own.py.called").exists()
    done = runner.invoke(app, [*common, "pcn,smc"])
    assert done.exit_code == 0, done.output
    row = json.loads((tmp_path / "out" / "results" / "pcn-2-0.json").read_text())
    assert row["nfs"] <= 1000 and np.isfinite(row["values"]).all()


def test_the_trained_network_is_compared_within_the_budget(tmp_path):
    arguments = ["compare", "synthetic", "--size", "2", "--methods", "msign", "--budget", "800"]
    arguments += ["-n", "100", "--seeds", "0", "--out", str(tmp_path)]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    row = json.loads((tmp_path / "results" / "msign-1-0.json").read_text())
    assert row["nfs"] <= 800
    assert row["per_1000_trained"] == pytest.approx(1000 * row["effective"] / 100)
    assert row["per_1000"] < row["per_1000_trained"]


@pytest.mark.parametrize("method", ["msign-network", "msign-paper"])
def test_the_papers_network_is_compared_like_any_method(method, tmp_path):
    """By our training and as in the paper; of the paper's size unless the origin says otherwise."""
    origin = {"problem": "synthetic", "options": {"size": 2}, "network": (2, 4)}
    setting = Setting(origin, (method,), 1500, 100, (0,), (1,), 0)
    (line,) = (l for l in run_comparison(synthetic(2), setting, tmp_path) if method in l)
    assert "failed" not in line
    row = json.loads((tmp_path / "results" / f"{method}-1-0.json").read_text())
    assert row["nfs"] <= 1500 and row["jeffreys"]["jeffreys"] > 0
    flow = FitConfig.from_json(
        json.loads((tmp_path / f"{method}-0/config.json").read_text())["fit"]
    ).flow
    assert (flow.config.blocks, flow.config.hidden) == (2, 4)
    assert config_of(method, {"problem": "elliptic"}).flow.config.blocks == 32


def test_a_page_inside_a_document(comparison, tmp_path):
    out, _ = comparison
    document = tmp_path / "page.md"
    document.write_text("# Own words\n<!-- begin out -->\nold\n<!-- end out -->\nmore words\n")
    for _ in range(2):
        assert compared(out, "--report", "--into", str(document)).exit_code == 0
    text = document.read_text()
    assert text.startswith("# Own words\n") and text.endswith("<!-- end out -->\nmore words\n")
    assert "\n### synthetic" in text and "old" not in text and text.count("#### Modes") == 1
    assert "(figures/out_marginals.png)" in text
    assert (tmp_path / "figures" / "out_marginals.png").exists()
    document.write_text("no marks")
    refused = compared(out, "--report", "--into", str(document))
    assert refused.exit_code == 1 and "begin out" in refused.output


def test_coarse_scales_are_those_that_exact_samples_are_known_of():
    """Inflated noise makes another posterior of a coarse scale than the reference has."""
    problem = synthetic(4, inflate=20)
    assert as_known(problem).inflate == 0 and as_known(problem).reference is problem.reference
    assert as_known(elliptic(16, inflate=20)).inflate == 20


def test_figures_and_title_of_one_scale(comparison, tmp_path):
    """Methods over several rows, errors by method on an axis that hides digits of no account."""
    out, _ = comparison
    for name in ("config.json", "critical-2.json"):
        (tmp_path / name).write_bytes((out / name).read_bytes())
    (tmp_path / "results").mkdir()
    for name in ("exact-2-0", "exact-2-1", "smc-2-0", "smc-2-1", "laplace-2-0"):
        text = (out / "results" / f"{name}.json").read_text()
        (tmp_path / "results" / f"{name}.json").write_text(text)
    for k in range(comparison_figures.COLUMNS):
        row = json.loads((tmp_path / "results/smc-2-0.json").read_text())
        row["method"] = list(LABELS)[-1 - k]
        (tmp_path / "results" / f"other-{k}.json").write_text(json.dumps(row))
    found = Comparison(tmp_path)
    assert found.title().endswith("1 to 2 seeds")
    panels = comparison_figures.marginals_figure(found).axes
    assert sum(panel.get_title() != "" for panel in panels) == 2 + comparison_figures.COLUMNS
    assert panels[0].figure.get_figwidth() >= comparison_figures.NARROWEST
    figure = comparison_figures.errors_figure(found, table(found))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels[:3] == ["exact samples", "tempered SMC", "Laplace mixture"]
    for axis in figure.axes:
        low, high = axis.get_xlim()
        assert high / low >= 0.99 * comparison_figures.SPAN**2
