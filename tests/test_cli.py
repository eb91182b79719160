"""The commands, as a shell would call them."""

import json

import matplotlib.image
import numpy as np
import pytest
from typer.testing import CliRunner

from msign.cli import app

runner = CliRunner()
pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_prior_writes_one_picture_and_says_where(tmp_path):
    result = runner.invoke(app, ["prior", "--size", "8", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "prior.png") in result.output.replace("\n", "")
    assert matplotlib.image.imread(tmp_path / "prior.png").ndim == 3


@pytest.mark.parametrize("size", ["1", "0", "12345", "7"])
def test_a_bad_size_is_one_line(size, tmp_path):
    result = runner.invoke(app, ["prior", "--size", size, "--out", str(tmp_path)])
    assert result.exit_code != 0
    assert "size" in result.output and size in result.output
    assert "Traceback" not in result.output


def test_run_show_and_sample(tmp_path):
    out = str(tmp_path / "run")
    arguments = ["run", "synthetic", "--size", "2", "--budget", "1000", "--out", out]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "certificate" in result.output and "in the paper" in result.output
    for name in ("marginal", "samples", "learning_curve"):
        assert matplotlib.image.imread(tmp_path / "run" / "figures" / f"{name}.png").ndim == 3
    shown = runner.invoke(app, ["show", out])
    assert shown.exit_code == 0
    assert shown.output.strip() in result.output
    target = tmp_path / "x.npy"
    result = runner.invoke(app, ["sample", out, "-n", "7", "-o", str(target)])
    assert result.exit_code == 0, result.output
    assert np.load(target).shape == (7, 2, 2)
    size = ["--size", "2"]
    result = runner.invoke(app, ["capture", "synthetic", out, *size, "-n", "400"])
    assert result.exit_code == 0, result.output
    assert "weighted" in result.output
    for name in ("clusters", "eigenvectors"):
        assert matplotlib.image.imread(tmp_path / "run" / "figures" / f"{name}.png").ndim == 3
    short = ["--chains", "4", "--steps", "20", "-n", "100"]
    result = runner.invoke(app, ["reference", "synthetic", out, *size, *short])
    assert result.exit_code == 0, result.output
    assert "against chains" in result.output
    kept = json.loads((tmp_path / "run" / "reference.json").read_text())
    assert len(kept["moments"]["chains"]["mean"]) == 4
    again = runner.invoke(app, arguments)
    assert again.exit_code == 1 and "out holds a run already" in again.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nonsense"], "problem must be one of synthetic, elliptic or path/to/file.py:name"),
        (["run", "synthetic", "--hard"], "hard is not an option of the problem synthetic"),
        (["run", "missing.py:p"], "problem must name a file that exists"),
        (["modes", "elliptic", "--size", "24"], "size must be a power of two, got 24"),
        (["show", "nowhere"], "run must hold a finished run"),
        (["sample", "nowhere", "-o", "x.txt"], "output must end in .nc or .npy"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


def test_multiscale(tmp_path):
    arguments = ["multiscale", "elliptic", "--size", "16", "-n", "4", "--out", str(tmp_path)]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "relative error of F" in result.output
    for name in ("multiscale", "problem"):
        assert matplotlib.image.imread(tmp_path / f"{name}.png").ndim == 3
