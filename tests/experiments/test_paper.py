"""`msign paper`: every figure and table has a command, each writes what it promises."""

import json

import matplotlib.image
import pytest
import typer
from typer.testing import CliRunner

from msign.cli import app
from msign.experiments.paper.base import Context, Item, Made, table_lines, write_made
from msign.experiments.paper.registry import ITEMS, make
from msign.report.paper_values import LETTERS

runner = CliRunner()
pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_the_list_names_everything_once():
    result = runner.invoke(app, ["paper", "list"])
    assert result.exit_code == 0
    names = [item.name for item in ITEMS]
    assert len(set(names)) == len(names)
    assert all(f"msign paper {name} " in result.output for name in names)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_every_item_has_a_function_and_a_command_that_parses(item):
    assert callable(item.make) and item.make.__doc__
    program, command, *arguments = item.command.split()
    group = typer.main.get_command(app)
    assert program == "msign"
    context = group.commands[command].make_context(command, [*arguments, "--quick"])
    assert context.params["name"] == item.name and context.params["quick"]


def test_figures_numbers_and_what_is_done(tmp_path):
    arguments = ["paper", "haar", "--quick", "--out", str(tmp_path)]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    folder = tmp_path / "quick" / "haar"
    assert matplotlib.image.imread(folder / "haar.png").ndim == 3
    assert (folder / "haar.pdf").read_bytes().startswith(b"%PDF")
    found = json.loads((folder / "numbers.json").read_text())
    assert found["command"] == "msign paper haar"
    for row in found["rows"]:
        assert row["ours"] == pytest.approx(row["paper"], abs=1e-12)
    assert (folder / "numbers.csv").read_text().count("\n") == 1 + len(found["rows"])
    assert "done before" in runner.invoke(app, arguments).output
    assert "written to" in runner.invoke(app, [*arguments, "--again"]).output


def test_data_that_are_missing_are_named(tmp_path):
    result = runner.invoke(app, ["paper", "mu", "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "missing: cifar10" in result.output
    found = json.loads((tmp_path / "quick" / "mu" / "numbers.json").read_text())
    values = {(row["data"], row["mu"]): row for row in found["rows"]}
    assert values["digits", 2]["ours"] > 0 and values["mnist", 2]["paper"] == 0.67
    assert values["mnist", 2]["ours"] is None
    assert "done before" not in runner.invoke(app, result_arguments(tmp_path)).output


def result_arguments(tmp_path):
    return ["paper", "mu", "--quick", "--out", str(tmp_path)]


def test_one_that_fails_does_not_stop_the_others(tmp_path):
    def broken(context):
        """Fails."""
        raise ValueError("no such thing")

    items = [
        Item("broken", "nowhere", "nothing", broken),
        Item("whole", "nowhere", "one number", lambda context: Made([{"ours": 1.0}])),
    ]
    lines = []
    with pytest.raises(RuntimeError, match="1 of 2 failed: broken: no such thing"):
        lines.extend(make(items, "all", tmp_path, quick=True))
    assert (tmp_path / "quick" / "whole" / "numbers.json").exists()


def test_other_options_are_made_anew(tmp_path):
    item = Item("one", "nowhere", "one number", lambda context: Made([{"ours": 1.0}]))
    context = Context(tmp_path, True, (0,), None, print)
    write_made(item, context, item.make(context))
    assert item.done(context) and not item.done(context._replace(seeds=(0, 1)))


def test_a_name_that_is_not_there(tmp_path):
    result = runner.invoke(app, ["paper", "figure9", "--out", str(tmp_path)])
    assert result.exit_code == 1 and "name must be one of" in result.output


def test_letters_of_the_paper_are_of_six_scales():
    for letters in LETTERS.values():
        assert all(len(text) == 6 and set(text) <= set("TIF") for text in letters.values())


def test_tables_for_people():
    rows = [{"a": 1.23456, "b": None}, {"a": (0.5, 0.5), "c": "x"}]
    assert table_lines(rows) == ["a        b  c", "1.235    -  -", "0.5:0.5  -  x"]
    assert table_lines([]) == []
