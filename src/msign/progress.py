"""A progress bar that is silent where the output is not a terminal."""

import sys
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class ProgressBar:
    """A bar with texts before and behind it, the time used and the time left.

    Args:
        show: Whether to show it at all.
        total: What counts as complete.
        before: Text before the bar, with `{name}` for each of `values`.
        behind: Text behind it.
        values: What the texts show at first.
    """

    def __init__(self, show: bool, total: float, before: str, behind: str, **values: Any):
        self.bar = Progress(
            TextColumn(_with_fields(before, values)),
            BarColumn(),
            TextColumn(_with_fields(behind, values)),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
            disable=not (show and sys.stderr.isatty()),
            transient=True,
        )
        self.task = self.bar.add_task("run", total=total, **values)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def update(self, completed: float | None = None, **values: Any) -> None:
        """Show how far it is, and new values."""
        self.bar.update(self.task, completed=completed, **values)


def _with_fields(text: str, values: dict[str, Any]) -> str:
    for name in values:
        text = text.replace(f"{{{name}}}", f"{{task.fields[{name}]}}")
    return text
