"""The commands, as a shell would call them."""

import matplotlib.image
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
