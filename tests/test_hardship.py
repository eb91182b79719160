"""Commands under hard conditions: killed at random moments, given damaged files.

The same trials in larger numbers: `bench/kills.py` and `bench/fuzz.py`.
"""

import importlib.util
import pathlib
import random
import signal
import sys

import pytest

from helpers import seeded

pytestmark = pytest.mark.usefixtures("quick_compilation")
MOMENT = 1.0  # seconds after which a process is killed at the latest
BENCH = pathlib.Path(__file__).parents[1] / "bench"


def bench(name: str):
    """A module of `bench`."""
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_thirty_damaged_run_directories(tmp_path):
    fuzz = bench("fuzz")
    whole, folder = tmp_path / "whole", tmp_path / "folder"
    fuzz.make_run(whole)
    folder.mkdir()
    for i in range(30):
        what, found = fuzz.faults(whole, folder, random.Random(seeded(i)))
        assert not found, what


def test_a_run_and_a_refinement_that_are_killed(tmp_path, monkeypatch):
    kills, rng = bench("kills"), random.Random(seeded(0))
    monkeypatch.setattr(kills, "PROBLEM", ["synthetic", "--size", "2"])
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    monkeypatch.setattr(kills.Trials, "_undisturbed", lambda _: MOMENT)
    for kind, number in (("run", signal.SIGINT), ("refine", signal.SIGKILL)):
        same, told = kills.Trials(kind, tmp_path, budget=1000).trial(number, rng, again=False)
        assert same, told
