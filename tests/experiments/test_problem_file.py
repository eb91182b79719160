"""Errors of a user's file point into it; names that are not there are told."""

import sys

import pytest

from helpers import refused
from msign.experiments.problem_file import load_problem_file
from msign.experiments.run import load_problem

GOOD = """
import msign

prior = msign.LaplacePrior((4,), alpha=0.2, beta=2.0)

def make(data=(1.0,)):
    return msign.InverseProblem(prior, lambda x: x[:, :1], data, noise_std=0.1, name="made")

def bad():
    return make(data=("a",))

problem = make()
number = 3
"""


def written(folder, text, name="mine.py"):
    path = folder / name
    path.write_text(text)
    return path


def test_a_problem_and_a_function_that_makes_one(tmp_path):
    path = written(tmp_path, GOOD)
    assert load_problem_file(path, "problem").name == "made"
    assert load_problem_file(path, "make").name == "made"
    assert load_problem(str(path)).name == load_problem(f"{path}:make").name == "made"


def test_a_file_named_as_a_module_of_python_does_not_take_its_place(tmp_path):
    load_problem_file(written(tmp_path, GOOD, "signal.py"))
    import signal

    assert hasattr(signal, "SIGINT") and "signal" in sys.modules


def test_files_beside_it_can_be_imported(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    written(tmp_path, GOOD, "beside_the_problem.py")
    path = written(tmp_path, "from beside_the_problem import problem")
    assert load_problem_file(path).name == "made"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = (\n", "mine.py, line 2: '(' was never closed"),
        ("x = 1\n\nimport no_such_module\n", "mine.py, line 3: ModuleNotFoundError: No module"),
        ("x = 1\nx.y\n", "mine.py, line 2: AttributeError"),
        ("import sys\nsys.exit('gone')\n", "mine.py, line 2: SystemExit: gone"),
    ],
)
def test_what_goes_wrong_in_the_file_is_told_with_its_line(text, message, tmp_path):
    with refused(message):
        load_problem_file(written(tmp_path, text))


def test_errors_of_ours_are_told_with_the_line_that_caused_them(tmp_path):
    path = written(tmp_path, GOOD)
    with refused("mine.py, line 7: data must be an array of numbers"):
        load_problem_file(path, "bad")


def test_names_that_are_there_are_listed(tmp_path):
    path = written(tmp_path, GOOD)
    with refused(f"{path} has no 'problm': it has make, bad, problem"):
        load_problem_file(path, "problm")
    with refused("'number'", "must be an InverseProblem", "got int"):
        load_problem_file(path, "number")
    with refused("has no 'problem': it has no problem"):
        load_problem_file(written(tmp_path, "import msign"))
