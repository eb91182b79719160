"""The progress bar of a fit: stage, divergence estimate, simulations used, time left."""

import sys
from typing import Any

from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Progress:
    """A bar over the stages of a fit; silent where the output is not a terminal."""

    def __init__(self, show: bool, scales: list[int], budget: int):
        self.scales, self.budget = scales, budget
        self.bar = RichProgress(
            TextColumn("stage {task.fields[stage]}"),
            BarColumn(),
            TextColumn("J {task.fields[jeffreys]}  nFS {task.fields[nfs]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            disable=not (show and sys.stderr.isatty()),
            transient=True,
        )
        self.task = self.bar.add_task(
            "fit", total=len(scales), stage=f"{scales[0]}/{scales[-1]}", jeffreys="-", nfs=0
        )

    def __enter__(self) -> "Progress":
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def update(self, record: dict[str, Any]) -> None:
        """Show one round's record."""
        done = self.scales.index(record["scale"])
        within = 1 - 0.7 ** (record["round"] + 1)
        self.bar.update(
            self.task,
            completed=done + within,
            stage=f"{record['scale']}/{self.scales[-1]}",
            jeffreys=f"{record['jeffreys']:.3g}",
            nfs=f"{record['nfs']:,} of {self.budget:,}",
        )
