"""The code of the tutorial and of the how-tos, as it is printed."""

import dataclasses
import pathlib
import re

import jax
import numpy as np
import pytest

import msign
from conformance import SMALL_INFORMED
from helpers import covariance_of, seeded

pytestmark = pytest.mark.usefixtures("quick_compilation")
SMALL = msign.FitConfig(flow=SMALL_INFORMED, steps=20, round_size=200, certificate=200, rounds=1)
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


def test_likelihoods_run():
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "likelihoods.md").read_text(), re.DOTALL)
    space: dict = {}
    for block in blocks:
        smaller = block.replace("seed=0)", "seed=0, config=config)")
        space["config"] = dataclasses.replace(SMALL, rounds=2)
        exec(smaller.replace("budget=10_000", "budget=2_000"), space)
        space["problem"].log_likelihood(space["prior"].sample(jax.random.key(0), 2))
    assert space["rates"].shape == (16,) and space["problem"].scales == 4


def test_arviz_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "arviz.md").read_text(), re.DOTALL)
    space: dict = {"config": SMALL}
    exec(block.replace("seed=0)", "seed=0, config=config)"), space)
    assert space["mean"].dims == ("s1", "s2") and (tmp_path / "posterior.nc").exists()
