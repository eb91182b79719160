"""Ctrl-C: once to stop at a checkpoint, twice to stop at once."""

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from conformance import SMALL_INFORMED
from helpers import seeded
from inference.small import growing_problem
from msign import FitConfig, Posterior, fit
from msign.cli import app
from msign.cli_errors import one_line_errors
from msign.inference.files import FitFiles
from msign.interrupts import StopAtCheckpoint

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(autouse=True)
def usual_handler():
    """As in a program of its own, whatever the test runner has installed."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_waits_for_a_checkpoint():
    told = []
    with pytest.raises(KeyboardInterrupt), StopAtCheckpoint(True, told.append) as stop:
        stop.checkpoint_written()
        interrupt()
        assert stop.asked and len(told) == 1
        stop.checkpoint_written()
        raise AssertionError("it did not stop")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_stops_at_once():
    with pytest.raises(KeyboardInterrupt), StopAtCheckpoint(True, lambda _: None):
        interrupt()
        interrupt()
        raise AssertionError("it did not stop")


def test_it_keeps_out_where_it_does_not_belong():
    def nothing(number, frame):
        return

    with pytest.raises(KeyboardInterrupt), StopAtCheckpoint(False, lambda _: None):
        interrupt()
    signal.signal(signal.SIGINT, nothing)
    with StopAtCheckpoint(True, lambda _: None):
        assert signal.getsignal(signal.SIGINT) is nothing
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen = []

    def elsewhere():
        with StopAtCheckpoint(True, lambda _: None) as stop:
            seen.append(stop.installed)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [False]


def test_a_fit_stops_after_its_checkpoint_and_goes_on_to_the_same_numbers(tmp_path, monkeypatch):
    config = FitConfig(
        flow=SMALL_INFORMED, steps=5, rounds=2, round_size=100, certificate=100, tolerance=1e-9
    )
    given = (growing_problem(), 1500, seeded(3))
    whole = fit(*given, progress=False, config=config)
    save = FitFiles.save_checkpoint

    def interrupted(self, *arguments):
        interrupt()
        save(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(FitFiles, "save_checkpoint", interrupted)
        fit(*given, tmp_path, progress=False, config=config)
    assert (tmp_path / "checkpoint.npz").exists()
    fit(*given, tmp_path, resume=True, progress=False, config=config, report=False)
    found = Posterior.load(tmp_path)
    assert found.nfs == whole.nfs
    np.testing.assert_array_equal(found.sample(5), whole.sample(5))


def test_one_that_comes_where_nothing_can_be_raised_is_not_lost(capsys):
    class Collected:
        def __del__(self):
            interrupt()  # as while JAX looks after its memory
            time.sleep(0.1)

    usual = sys.unraisablehook
    with pytest.raises(typer.Exit) as end, one_line_errors():
        Collected()
        for _ in range(100):
            time.sleep(0.1)
    assert end.value.exit_code == 130
    assert sys.unraisablehook is usual
    assert capsys.readouterr().err == "stopped\n"


def test_one_that_comes_while_a_command_starts_is_no_silence(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("msign.compilation.keep_compiled_programs", interrupted)
    result = CliRunner().invoke(app, ["runs"])
    assert result.exit_code == 130 and result.output == "stopped\n"


def test_an_error_while_a_command_cleans_up_after_it_does_not_hide_it(capsys):
    """A library that it found half imported cannot be imported again."""
    with pytest.raises(typer.Exit) as end, one_line_errors():
        try:
            raise KeyboardInterrupt
        finally:
            raise ImportError("cannot import name from partially initialized module")
    assert end.value.exit_code == 130
    assert capsys.readouterr().err == "stopped\n"


@pytest.mark.parametrize("moment", ["parse_args", "resolve_command"])
def test_one_that_comes_while_arguments_are_read_is_no_silence(moment, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"typer.core.TyperGroup.{moment}", interrupted)
    result = CliRunner().invoke(app, ["runs"])
    assert result.exit_code == 130 and result.output == "stopped\n"
