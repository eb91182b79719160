"""The tutorial's code, as it is printed."""

import pathlib
import re

import numpy as np
import pytest

from helpers import covariance_of, seeded

pytestmark = pytest.mark.usefixtures("quick_compilation")
DOCS = pathlib.Path(__file__).parents[1] / "docs"


def test_tutorial_runs_in_under_twenty_lines():
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "tutorial.md").read_text(), re.DOTALL)
    lines = [line for line in blocks[0].splitlines() if line.strip()]
    assert len(lines) < 20
    space: dict = {}
    for block in blocks:
        exec(block.replace("seed=0", f"seed={seeded(0)}"), space)
    assert space["posterior"].summary()["verdict"].startswith("GOOD")
    assert space["fields"].shape == (1000, 32)
    # The problem is linear, so that its posterior is known.
    sigma, blur = covariance_of(space["prior"]), space["blur"]
    gain = sigma @ blur.T @ np.linalg.inv(blur @ sigma @ blur.T + 0.05**2 * np.eye(5))
    spread = np.sqrt(np.diag(sigma - gain @ blur @ sigma))
    assert np.all(np.abs(space["mean"] - gain @ space["data"]) < 6 * spread / np.sqrt(1000))
    np.testing.assert_allclose(space["spread"], spread, rtol=6 / np.sqrt(2 * 1000))
    assert 100 < space["exact"].distinct <= 500
