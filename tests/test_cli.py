"""The commands, as a shell would call them."""

import json

import matplotlib.image
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from msign.bijections import GlowConfig
from msign.cli import app
from msign.cli_errors import one_line_errors
from msign.cli_options import BUILT_IN, FLOWS, show
from msign.experiments.run import BUILT_IN as PROBLEMS
from msign.experiments.run import named_flow

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
    asked = ["--tolerance", "0.5", "--blocks", "16"]
    arguments = ["run", "synthetic", "--size", "2", "--budget", "1000", "--out", out, *asked]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "run" / "config.json").read_text())["fit"]["tolerance"] == 0.5
    assert "certificate" in result.output and "in the paper" in result.output
    for name in ("marginal", "samples", "learning_curve"):
        assert matplotlib.image.imread(tmp_path / "run" / "figures" / f"{name}.png").ndim == 3
    page = tmp_path / "run" / "report.html"
    assert f"report: {page}" in result.output.replace("\n", " ").replace("  ", " ")
    made = page.read_text()
    assert "exact posterior" in made
    assert "msign run synthetic --size 2 --blocks 16 --tolerance 0.5 --budget 1000" in made
    page.unlink()
    again = runner.invoke(app, ["report", out])
    assert again.exit_code == 0, again.output
    assert page.read_text() == made  # without the problem, and without a simulation
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
    assert "--overwrite" in again.output and "--resume" in again.output
    values = json.loads(runner.invoke(app, ["show", out, "--json"]).output)
    assert values == json.loads((tmp_path / "run" / "summary.json").read_text())
    (listed,) = json.loads(runner.invoke(app, ["runs", str(tmp_path), "--json"]).output)
    assert listed["path"] == out and listed["state"] == values["verdict"].partition(":")[0]


def test_a_problem_from_the_first_line_to_json(tmp_path):
    """`new`, `check` and `run`, as the file that `new` writes suggests."""
    file = str(tmp_path / "mine.py")
    assert runner.invoke(app, ["new", file]).exit_code == 0
    checked = runner.invoke(app, ["check", file, "-n", "3", "--json"])
    assert checked.exit_code == 0, checked.output
    assert json.loads(checked.output)["agrees"] is True
    arguments = ["run", file, "--budget", "2e3", "--out", str(tmp_path / "run"), "--json"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)  # nothing else is printed there
    assert summary["verdict"].startswith("GOOD") and summary["nfs"] <= 2000
    assert summary["advice"] == []
    assert "stage 4/4 done" in result.stderr


def test_numbers_that_are_not_numbers_in_json(capsys):
    show([], {"a": [float("inf"), np.float64(2)], 1: np.nan}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"a": [None, 2], "1": None}


def test_texts_of_files_cannot_drive_the_terminal(capsys):
    show(["a \x1b[2J b"], None, as_json=False)
    assert capsys.readouterr().out == "a ?[2J b\n"


@pytest.mark.parametrize("value", ["1.5", "many", "nan"])
def test_a_budget_that_is_no_whole_number(value):
    result = runner.invoke(app, ["run", "synthetic", "--budget", value])
    assert result.exit_code == 2 and "whole number" in result.output


def test_what_is_completed_is_what_there_is():
    assert set(BUILT_IN) == set(PROBLEMS)
    assert {named_flow(name, GlowConfig()) for name in FLOWS}


def completions(words: str, monkeypatch) -> list[str]:
    """What a shell is offered behind these words."""
    monkeypatch.setenv("_MSIGN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    return runner.invoke(app, [], prog_name="msign").output.split()


def test_a_folder_without_runs_is_no_mistake_unless_it_was_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = runner.invoke(app, ["runs"])
    assert first.exit_code == 0 and "no runs here" in first.output
    assert json.loads(runner.invoke(app, ["runs", "--json"]).output) == []
    named = runner.invoke(app, ["runs", "elsewhere"])
    assert named.exit_code == 1 and "folder must be a directory" in named.output


def test_a_shell_completes_commands_problems_flows_and_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    (tmp_path / "some" / "run").mkdir(parents=True)
    (tmp_path / "some" / "run" / "config.json").touch()
    assert {"check", "capture"} <= set(completions("msign c", monkeypatch))
    assert completions("msign run syn", monkeypatch) == ["synthetic"]
    assert completions("msign check mi", monkeypatch) == ["mine.py"]
    assert completions("msign run synthetic --flow in", monkeypatch) == ["informed"]
    assert completions("msign show so", monkeypatch) == ["some/"]
    assert completions("msign show some/", monkeypatch) == ["some/run"]


def test_the_command_that_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["msign", "run", "a b.py:p", "--overwrite", "--seed", "3"])
    for started, said in ((False, "nothing was kept"), (True, "'a b.py:p' --seed 3 --resume")):
        if started:
            (tmp_path / "config.json").touch()
        with pytest.raises(typer.Exit) as ended, one_line_errors(checkpoints=tmp_path):
            raise KeyboardInterrupt
        assert ended.value.exit_code == 130 and said in capsys.readouterr().err


NUMPY_PROBLEM = """
import numpy as np, msign
prior = msign.LaplacePrior((4,), alpha=0.5, beta=3.0)
def forward(x):
    return np.array([[f[0] * f[1], f[2]] for f in np.asarray(x)])
problem = msign.InverseProblem(prior, forward, [0.2, 0.1], noise_std=0.3, scales=1, name="pair")
"""


def test_run_with_workers_is_the_same_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "signal.py").write_text(NUMPY_PROBLEM)  # as a module of Python's own
    arguments = ["run", "signal.py:problem", "--budget", "600", "--method", "pool"]
    summaries = []
    for extra in ([], ["--workers", "1"]):
        out = f"run{len(summaries)}"
        result = runner.invoke(app, [*arguments, "--out", out, *extra])
        assert result.exit_code == 0, result.output
        summaries.append(json.loads((tmp_path / out / "summary.json").read_text()))
        for timed in (summaries[-1], *summaries[-1]["stages"]):
            del timed["seconds"]
    assert summaries[0] == summaries[1]
    result = runner.invoke(app, [*arguments, "--workers", "2", "--dask", "tcp://x:1"])
    assert result.exit_code == 1 and "workers must not be given beside dask" in result.output


WRONG = """
import numpy as np
import msign

def pressure(x):
    return x[:, :2] / undefined

problem = msign.InverseProblem(
    msign.LaplacePrior((4,), 0.5, 2.0), lambda x: pressure(np.asarray(x)), [0.1, 0.2], 0.1
)
"""


def test_a_mistake_that_rejects_every_simulation_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text(WRONG.replace(", 0.1\n)", ', 0.1, on_failure="reject"\n)'))
    for arguments in (["check", "wrong.py"], ["run", "wrong.py", "--budget", "2000"]):
        result = runner.invoke(app, arguments)
        assert result.exit_code == 1
        text = " ".join(result.stderr.split())
        assert "error: all 34 forward simulations that were tried were rejected" in text
        assert "raised NameError: name 'undefined' is not defined (wrong.py, line 6" in text


@pytest.mark.parametrize("extra", [[], ["--workers", "1"]])
def test_an_error_of_the_users_code_is_one_line_that_names_it(extra, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text(WRONG)
    result = runner.invoke(app, ["run", "wrong.py", "--budget", "2000", "--out", "run", *extra])
    assert result.exit_code == 1
    (line,) = [text for text in result.stderr.splitlines() if "error" in text.lower()]
    assert line.startswith("error: the forward simulation of")
    assert "raised NameError: name 'undefined' is not defined" in line
    assert line.endswith("(wrong.py, line 6, in pressure)")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nonsense"], "problem must be one of synthetic, elliptic or path/to/file.py:name"),
        (["run", "synthetic", "--hard"], "hard is not an option of the problem synthetic"),
        (["run", "missing.py:p"], "problem must name a file that exists"),
        (["modes", "elliptic", "--size", "24"], "size must be a power of two, got 24"),
        (["check", "bad.py:p"], "bad.py, line 1: invalid syntax"),
        (["show", "damaged"], "summary.json is damaged"),
        (["sample", "damaged", "-o", "x.npy"], "path must hold a finished run"),
        (["show", "nowhere"], "run must hold a finished run"),
        (["sample", "nowhere", "-o", "x.txt"], "output must end in .nc or .npy"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text("1 +\n")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "summary.json").write_text('{"problem": ')
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
