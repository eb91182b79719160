"""Commands given damaged files; `bench/fuzz.py` has the same trials in larger numbers.

Runs and refinements that are killed: `tests/inference/test_killed.py`, `test_interrupts.py`,
`test_refine.py`, and `bench/kills.py` in larger numbers.
"""

import importlib.util
import pathlib
import random
import sys

import pytest

from helpers import seeded

pytestmark = pytest.mark.usefixtures("quick_compilation")
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
        what, found = fuzz.faults(whole, folder, random.Random(seeded(i)), i % 10 == 0)
        assert not found, what
