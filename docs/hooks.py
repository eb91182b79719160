"""What MkDocs puts into pages: the options of all commands, and files of code."""

import pathlib
import re
from typing import Any

import typer

PLACE = "[commands]"
FILE = re.compile(r"^# file: (\S+)$", re.MULTILINE)
ROOT = pathlib.Path(__file__).parents[1]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace places by what belongs there."""
    markdown = FILE.sub(lambda found: (ROOT / found[1]).read_text().rstrip(), markdown)
    if PLACE not in markdown:
        return markdown
    from msign.cli import app

    return markdown.replace(PLACE, "\n".join(described(typer.main.get_command(app), "msign")))


def described(command: Any, name: str) -> list[str]:
    """A section for a command, or for each one of a group."""
    if hasattr(command, "commands"):
        inside = [described(c, f"{name} {n}") for n, c in command.commands.items() if not c.hidden]
        return [line for lines in inside for line in lines]
    head = [f"## {name}", "", (command.help or "").strip(), ""]
    rows = [row(parameter) for parameter in command.params if parameter.name != "help"]
    return [*head, "| option | default | meaning |", "|---|---|---|", *rows, ""]


def row(parameter: Any) -> str:
    """One line of a table."""
    argument = parameter.param_type_name == "argument"
    names = [parameter.name.upper()] if argument else [*parameter.opts, *parameter.secondary_opts]
    shown = parameter.default
    shown = "" if callable(shown) or shown in (None, False, "", ...) else f"`{shown}`"
    if parameter.required:
        shown = "needed"
    text = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    return f"| {', '.join(f'`{name}`' for name in names)} | {shown} | {text} |"
