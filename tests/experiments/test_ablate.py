"""`msign ablate`: one table, the star of KL and AS, budgets, what is done is kept."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from conformance import SMALL_GLOW
from helpers import identical
from msign import FitConfig, Fresh
from msign.cli import app
from msign.experiments.ablate import Trained, base_config
from msign.experiments.paper.ablation import Ablation, ablation_setting, run_and_report
from msign.experiments.tasks import Task
from msign.inference.methods.objectives import ScoreJeffreys
from msign.inference.presets import ablations
from msign.rundir import RunDirectory

pytestmark = pytest.mark.usefixtures("quick_compilation")
BUDGET = 4000


@pytest.fixture(scope="module")
def ablation(tmp_path_factory):
    out = tmp_path_factory.mktemp("ablation")
    given = ablation_setting("synthetic", budget=BUDGET, size=4, n=100)
    method = Fresh(steps=4, batch=20, objective=ScoreJeffreys(), tempered=False, chain=0.5)
    base = FitConfig(flow=SMALL_GLOW, method=method, round_size=100, rounds=2, certificate=200)
    wanted = Ablation(given.problem, given.setting, base).only(("msign", "msign-kl"))
    return out, wanted, list(run_and_report(wanted, out))


def test_letters_beside_the_papers(ablation):
    out, _, lines = ablation
    page = (out / "ablation.md").read_text()
    assert "| MsIGN-KL |" in page and "(T)" in page and "T: every mode" in page
    assert sum("nFS" in line and "seed 0" in line for line in lines) == 4
    rows = [json.loads(path.read_text()) for path in (out / "results").glob("*.json")]
    assert len(rows) == 4 and all(row["nfs"] <= BUDGET for row in rows)


def test_the_page_inside_a_document(ablation, tmp_path):
    out, _, _ = ablation
    document = tmp_path / "page.md"
    document.write_text(f"before\n<!-- begin {out.name} -->\n<!-- end {out.name} -->\nafter\n")
    arguments = ["synthetic", "--size", "4", "--out", str(out), "--report", "--into", str(document)]
    result = CliRunner().invoke(app, ["ablate", *arguments])
    assert result.exit_code == 0, result.output
    text = document.read_text()
    assert text.startswith("before") and text.endswith("after\n") and "### Ablation" in text
    assert (tmp_path / "figures" / f"{out.name}_marginals.png").exists()


def test_the_second_stage_of_kl_begins_with_the_first_of_msign(ablation):
    out, wanted, _ = ablation
    trained = Trained(wanted.problem, wanted.setting, ablations(wanted.base), RunDirectory(out))
    base, starred = (trained.posterior(Task(name, 2, 0)) for name in ("msign", "msign-kl"))
    assert identical(base.networks[1].flows[0], starred.networks[1].flows[0])
    assert starred.stages[0] == base.stages[0]
    own = trained.posterior(Task("msign-kl", 1, 0))  # without chains, by itself
    assert own.problem.scales == 1 and own.stages[0]["nfs"] != base.stages[0]["nfs"]


def test_what_is_done_is_not_done_again(ablation):
    out, wanted, _ = ablation
    before = {p: p.stat().st_mtime_ns for p in (out / "results").glob("*.json")}
    lines = list(run_and_report(wanted, out))
    assert not any("nFS  " in line and line.startswith("msign") for line in lines)
    assert before == {p: p.stat().st_mtime_ns for p in (out / "results").glob("*.json")}


def test_the_papers_network_with_our_training_or_its_own():
    paper, ours = (base_config("elliptic", training) for training in ("paper", "ours"))
    assert paper == FitConfig.paper("elliptic")
    assert ours.flow.config.blocks == 32 and ours.method.tempered
    assert np.prod([base_config("elliptic", small=True).flow.config.blocks]) < 32


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["linear"], "problem must be one of"),
        (["synthetic", "--size", "4", "--variants", "msign-xy"], "msign-xy"),
        (["synthetic", "--size", "4", "--training", "none"], "training must be one of"),
        (["synthetic", "--size", "4", "--scale", "9"], "scale must be from 1 to 2"),
    ],
)
def test_bad_input_is_one_line(arguments, words, tmp_path):
    result = CliRunner().invoke(app, ["ablate", *arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == 1 and words in result.output
    assert "Traceback" not in result.output
