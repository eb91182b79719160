"""Runs and their pages, made once for all tests of reports."""

import pytest

from msign.experiments.report import report_run
from report.untrained import EVIL, SHAPES, problem_on, untrained


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Directories of finished runs, by the kind of lattice."""
    folders = {}
    for name, shape in SHAPES.items():
        folders[name] = tmp_path_factory.mktemp(name)
        untrained(problem_on(shape, name=EVIL)).save(folders[name])
    return folders


@pytest.fixture(scope="session")
def pages(saved):
    """Their pages, made without the problem."""
    return {name: report_run(folder) for name, folder in saved.items()}
