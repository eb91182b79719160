"""`msign images ...`, as a shell would call it."""

import contextlib
import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from msign.cli import app

runner = CliRunner()
pytestmark = pytest.mark.usefixtures("shared_compilation")
SMALL = ["--scales", "1", "--blocks", "2", "--hidden", "4", "--epochs", "1"]


def run(*arguments):
    return runner.invoke(app, ["images", *map(str, arguments)])


def opened(path):
    with Image.open(path) as picture:
        return np.asarray(picture)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, shared_compilation):
    """A run in a folder of the data set's name, which must not be taken for the data set."""
    folder = tmp_path_factory.mktemp("run")
    out = folder / "digits"
    out.mkdir()
    with contextlib.chdir(folder):
        result = run("train", "digits", *SMALL, "--out", out)
    assert result.exit_code == 0, result.output
    return out, result.output


def test_train_says_what_was_reached_and_evaluate_says_it_again(finished):
    out, output = finished
    assert "297 images, 17 grey levels, divided by 64 values" in output
    assert "1,500 images of 8 x 8 x 1" in output
    assert opened(out / "samples.png").ndim == 2
    before = json.loads((out / "evaluation.json").read_text())
    result = run("evaluate", out)
    assert result.exit_code == 0, result.output
    assert result.output.strip() in output
    assert json.loads((out / "evaluation.json").read_text()) == before
    assert f"{before['bits_per_dim']:.4f}" in output
    again = run("train", "digits", *SMALL, "--out", out)
    assert again.exit_code == 1 and "out holds a run already" in again.output
    part = run("evaluate", out, "--images", 297, "--draws", 2)
    assert "(297 images" in part.output and "with 2 draws" in part.output


def test_the_report_says_what_the_evaluation_found(finished):
    out, output = finished
    assert str(out / "report.html") in output.replace("\n", "")
    bits = output.partition("test bits per dimension ")[2].split()[0]
    page = (out / "report.html").read_text()
    assert f"Bits per dimension, {bits} " in page and 'src="data:image/png;base64,' in page
    assert "msign images train" in page and page.count('class="frame"') == 1
    (out / "report.html").unlink()
    result = runner.invoke(app, ["report", str(out)])
    assert result.exit_code == 0, result.output
    assert (out / "report.html").exists()


def test_pictures(finished, tmp_path):
    out, _ = finished
    result = run("sample", out, "-n", 6, "--columns", 3, "--temperature", 0.7)
    assert result.exit_code == 0, result.output
    height, width = opened(out / "samples.png").shape
    assert width / height == pytest.approx(1.5, rel=0.02)
    result = run("interpolate", out, 3, 5, "--steps", 4, "-o", tmp_path / "line.png")
    assert result.exit_code == 0 and "line.png" in result.output.replace("\n", "")
    # Its ends are the test images, which can be given as files as well.
    picture = opened(tmp_path / "line.png")
    side = (picture.shape[0] - 4) // 8
    ends = [picture[2:-2:side, x : x + 8 * side : side] for x in (2, 2 + 3 * (8 * side + 2))]
    for name, end in zip("ab", ends, strict=True):
        Image.fromarray(np.ascontiguousarray(end)).save(tmp_path / f"{name}.png")
    files = [tmp_path / "a.png", tmp_path / "b.png"]
    result = run("interpolate", out, *files, "--steps", 4, "-o", tmp_path / "again.png")
    assert result.exit_code == 0, result.output
    np.testing.assert_array_equal(opened(tmp_path / "again.png"), picture)
    for arguments, name in (([], "snapshots.png"), (["--recover"], "recovered.png")):
        result = run("snapshots", out, "-n", 2, *arguments)
        assert result.exit_code == 0, result.output
        height, width = opened(out / name).shape
        assert width / height == pytest.approx(2, rel=0.05)  # four snapshots, two images


def test_mu(tmp_path):
    result = run("mu", "digits", "--scales", 3, "--images", 500)
    assert result.exit_code == 0, result.output
    assert "500 images of 8 x 8 x 1" in result.output and "mu_3" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nonsense"], "data must be one of digits"),
        (["train", "mnist"], "data_dir must name the folder with the files of mnist"),
        (["train", "digits", "--scales", "9"], "scales must be at most 4"),
        (["train", "digits", "--preset", "lsun"], "preset must be one of 'mnist'"),
        (["train", "digits", "--blocks", "0"], "blocks must be at least 1, got 0"),
        (["train", "digits", "--seed", "-1"], "seed must be at least 0, got -1"),
        (["evaluate", "nowhere"], "run must be a directory with a run in it, got nowhere"),
        (["sample", "nowhere"], "run must be a directory with a run in it, got nowhere"),
        (["mu", "cifar10"], "data_dir must name the folder with the files of cifar10"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 1
    assert message in result.output and "Traceback" not in result.output
    assert result.output.count("\n") == 1


def test_bad_arguments_of_a_finished_run(finished, tmp_path):
    out, _ = finished
    for arguments, message in (
        (["sample", out, "-o", "x.gif"], "output must end in .png"),
        (["interpolate", out, "999", "0"], "a must be from 0 to 296, got 999"),
        (["interpolate", out, "0", tmp_path / "b"], "b must be an image file or the number"),
        (["snapshots", out, "--recover", "-n", "300"], "n must be from 1 to 297, got 300"),
    ):
        result = run(*arguments)
        assert result.exit_code == 1 and message in result.output.replace("\n", ""), result.output
