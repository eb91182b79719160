"""What is shown of a run is so."""

import jax
import jax.numpy as jnp
import pytest

from conformance import SMALL_INFORMED
from helpers import killed_after
from inference.small import growing_problem
from msign import FitConfig, Simulator, fit
from msign.inference.files import FitFiles
from msign.inference.run import Run
from msign.inference.watch import Watch, busy, clock, compilation_watch, most_left

pytestmark = pytest.mark.usefixtures("quick_compilation")
CONFIG = FitConfig(
    flow=SMALL_INFORMED, steps=5, rounds=2, round_size=100, certificate=100, tolerance=1e-9
)


def test_counts_are_those_of_the_moment():
    simulator = Simulator(growing_problem(), 1000)
    watch = Watch(False, 1.0, simulator, lambda: 3661.2)
    assert "nFS 0/1,000  1:01:01" in watch.behind()
    simulator.count.nfs = 500
    watch.place, watch.activity = "stage 1/2", "training"
    assert "nFS 500/1,000" in watch.behind() and watch.before() == "stage 1/2  training"


def test_compiling_is_told_while_it_lasts():
    compilation, seen = compilation_watch(), []
    jax.monitoring.register_scalar_listener(
        lambda event, *_, **__: seen.append(compilation.under_way)
    )
    jax.jit(lambda x: jnp.sin(x) * 1.2345 + len(seen))(1.0)
    assert True in seen and not compilation.under_way


def test_no_time_left_without_ground_for_it():
    rounds = [{"seconds": 100.0, "nfs": 200}]
    assert most_left(rounds, 16, 10_000, 1.0) is None
    rounds += [{"seconds": 101.0, "nfs": 300}, {"seconds": 103.0, "nfs": 400}]
    # Slowest of the rounds that did not compile: 2 s. Rounds: 13 more, or 600 / 100 by the budget.
    assert most_left(rounds, 16, 10_000, 1.0) == pytest.approx(2 * 14)
    assert most_left(rounds, 16, 1000, 1.0) == pytest.approx(2 * 7)
    assert most_left(rounds, None, 1000, 1.0) == pytest.approx(2 * 7)
    assert clock(28.4) == "0:00:28"


class Seen(list):
    """What a watch would draw whenever the run says what it does."""

    def __init__(self, patch):
        doing = Run.doing

        def watched(run, activity):
            doing(run, activity)
            self.append((run.watch.before(), run.simulator.nfs, run.watch.behind()))

        patch.setattr(Run, "doing", watched)


def test_stage_activity_and_counts_are_true_and_go_on_after_a_resume(tmp_path, monkeypatch, capsys):
    seen = Seen(monkeypatch)
    with killed_after(FitFiles, 3):  # in the second stage
        fit(growing_problem(), 1500, 0, tmp_path, config=CONFIG, report=False)
    before = [text for text, _, _ in seen]
    assert before[:4] == [
        "trying the problem",
        "stage 1/2  looking for a start",
        "stage 1/2  simulating",
        "stage 1/2  training",
    ]
    assert all(f"nFS {nfs:,}/1,500" in behind for _, nfs, behind in seen)
    stopped = seen[-1][1]
    lines = capsys.readouterr().err.splitlines()
    assert [line[:14] for line in lines if "done" in line] == ["stage 1/2 done"]
    seen.clear()
    fit(growing_problem(), 1500, 0, tmp_path, resume=True, config=CONFIG, report=False)
    assert "stage 2/2  simulating" in [text for text, _, _ in seen]
    assert min(nfs for text, nfs, _ in seen if text.startswith("stage")) >= stopped
    assert seen[-1][0] == "stage 2/2  certifying"
    lines = capsys.readouterr().err.splitlines()
    assert [line[:14] for line in lines if "done" in line] == ["stage 2/2 done"]


def test_silence_where_none_is_wanted(capsys):
    fit(growing_problem(), 1500, 0, progress=False, config=CONFIG)
    assert capsys.readouterr().err == ""


def test_what_is_under_way_leaves_no_trace_where_there_is_no_terminal(capfd):
    with busy("drawing the report"):
        pass
    assert capfd.readouterr() == ("", "")
