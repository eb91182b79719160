"""Where NIFTy is not installed: one line that says what to install, before any work."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from msign.cli import app
from msign.samplers import MGVI, SAMPLERS, GeoVI
from samplers.known import two_modes_and_a_stiff_sum


@pytest.fixture
def no_nifty(monkeypatch):
    monkeypatch.setitem(sys.modules, "nifty", None)
    monkeypatch.setitem(sys.modules, "nifty.re", None)


@pytest.mark.parametrize("sampler", [MGVI(), GeoVI()], ids=str)
def test_the_samplers_say_what_to_install(sampler, no_nifty):
    problem, counted = two_modes_and_a_stiff_sum()
    with pytest.raises(ValueError, match=r"needs NIFTy: pip install 'msign\[peers\]'"):
        sampler.run(problem, 1, 1000, 10)
    assert counted.forward == 0


def test_the_command_says_it_in_one_line(no_nifty, tmp_path):
    out = tmp_path / "out"
    arguments = ["compare", "synthetic", "--size", "4", "--methods", "smc,mgvi", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1 and not out.exists()
    said = "error: MGVI needs NIFTy: pip install 'msign[peers]'; of those asked for these can: "
    assert result.output == said + "--methods smc\n"


def test_importing_samplers_does_not_import_nifty():
    assert {"mgvi", "geovi"} <= set(SAMPLERS)
    code = "import sys, msign.samplers; assert 'nifty' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
