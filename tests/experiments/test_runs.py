"""What runs there are, in what state."""

import pytest

from conformance import SMALL_INFORMED
from helpers import killed_after, refused
from inference.small import growing_problem
from msign import FitConfig, fit
from msign.experiments.runs import find_runs, runs_lines
from msign.inference.files import FitFiles

pytestmark = pytest.mark.usefixtures("quick_compilation")
CONFIG = FitConfig(flow=SMALL_INFORMED, steps=5, rounds=1, round_size=100, certificate=100)


def test_runs_are_found_with_their_states(tmp_path):
    fit(growing_problem(), 1000, 0, tmp_path / "a" / "done", config=CONFIG, report=False)
    with killed_after(FitFiles, 2):
        fit(growing_problem(), 1000, 0, tmp_path / "half", progress=False, config=CONFIG)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text("{")
    found = {run.path.rpartition("/")[2]: run for run in find_runs(tmp_path)}
    assert set(found) == {"done", "half", "bad"}
    assert found["done"].state in ("GOOD", "ROUGH", "NOT RELIABLE") and found["done"].nfs > 0
    assert found["half"].state == "unfinished" and "--resume" in found["half"].text
    assert "after 1 stage;" in found["half"].text
    assert found["bad"].state == "damaged" and "config.json" in found["bad"].text
    assert len(runs_lines(find_runs(tmp_path))) == 4


def test_nothing_to_find(tmp_path):
    assert runs_lines(find_runs(tmp_path)) == ["no runs here"]
    with refused("folder must be a directory"):
        find_runs(tmp_path / "nowhere")
