"""The tutorial's code, as it is printed."""

import pathlib
import re

import pytest

pytestmark = pytest.mark.usefixtures("quick_compilation")
DOCS = pathlib.Path(__file__).parents[1] / "docs"


def test_tutorial_runs_in_under_twenty_lines():
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "tutorial.md").read_text(), re.DOTALL)
    lines = [line for line in blocks[0].splitlines() if line.strip()]
    assert len(lines) < 20
    space: dict = {}
    for block in blocks:
        exec(block, space)
    assert space["posterior"].summary()["verdict"].startswith("GOOD")
    assert space["fields"].shape == (1000, 32)
    inside = abs(space["mean"] - space["truth"])[3:-3]
    assert inside.mean() < 0.3
    assert 100 < space["exact"].distinct <= 500
