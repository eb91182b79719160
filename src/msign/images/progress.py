"""The progress bar of training: stage, epoch, bits per dimension, time left."""

from msign.progress import ProgressBar


class TrainingProgress(ProgressBar):
    """A bar over all steps of a run, weighted by their cost.

    Args:
        show: Whether to show it at all.
        cost: Cost of each stage in any unit, by scale.
    """

    def __init__(self, show: bool, cost: dict[int, float]):
        self.cost = cost
        super().__init__(
            show,
            sum(cost.values()),
            "stage {stage}  epoch {epoch}",
            "bits/dim train {train}  valid {valid}",
            stage="-",
            epoch="-",
            train="-",
            valid="-",
        )

    def at(self, stage: int, fraction: float, epoch: str) -> None:
        """Show where a stage is: the fraction of its steps that are done, and the epoch."""
        before = sum(cost for scale, cost in self.cost.items() if scale < stage)
        done = before + fraction * self.cost[stage]
        self.update(done, stage=f"{stage}/{max(self.cost)}", epoch=epoch)
