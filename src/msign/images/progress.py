"""The progress bar of training: stage, epoch, bits per dimension, time left."""

import sys
from typing import Any

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class TrainingProgress:
    """A bar over all steps of a run, weighted by their cost; silent where there is no terminal.

    Args:
        show: Whether to show it at all.
        cost: Cost of each stage in any unit, by scale.
    """

    def __init__(self, show: bool, cost: dict[int, float]):
        self.cost = cost
        self.last = max(cost)
        self.bar = RichProgress(
            TextColumn("stage {task.fields[stage]}  epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("bits/dim train {task.fields[train]}  valid {task.fields[valid]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
            disable=not (show and sys.stderr.isatty()),
            transient=True,
        )
        self.task = self.bar.add_task(
            "train", total=sum(cost.values()), stage="-", epoch="-", train="-", valid="-"
        )

    def __enter__(self) -> "TrainingProgress":
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def update(self, stage: int, fraction: float, epoch: str) -> None:
        """Show where a stage is: the fraction of its steps that are done, and the epoch."""
        before = sum(cost for scale, cost in self.cost.items() if scale < stage)
        done = before + fraction * self.cost[stage]
        self.bar.update(self.task, completed=done, stage=f"{stage}/{self.last}", epoch=epoch)

    def show(self, train: str, valid: str) -> None:
        """Show bits per dimension."""
        self.bar.update(self.task, train=train, valid=valid)
