"""Examples in docstrings and in the README run and print what they say."""

import doctest
import importlib
import pathlib
import pkgutil
import re

import pytest

import msign

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROOT = pathlib.Path(__file__).parents[1]
MODULES = [m.name for m in pkgutil.walk_packages(msign.__path__, "msign.")]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


def test_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert blocks
    for block in blocks:
        smaller = block.replace("size=8", "size=4").replace("budget=5_000", "budget=1_000")
        exec(compile(smaller, "README.md", "exec"), {})
