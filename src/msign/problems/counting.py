"""Counting forward simulations, and the budget that they must not exceed."""

import contextlib
import sys
from collections.abc import Iterator

from msign import checks


class BudgetExceeded(RuntimeError):
    """More forward simulations were asked for than the budget allows; none of them was made."""


class Count:
    """How many forward simulations one run has made, and how many it may make.

    Args:
        budget: How many forward simulations are allowed; None: any number.

    Attributes:
        nfs: Forward simulations so far.
        failures: Those of them that were rejected.
        restored: Whether the numbers go on from those of a saved run.
    """

    def __init__(self, budget: float | None = None):
        self.budget = None if budget is None else checks.count("budget", budget, 0)
        self.nfs = 0
        self.failures = 0
        self.restored = False

    @property
    def left(self) -> int:
        """Simulations that the budget still allows."""
        return sys.maxsize if self.budget is None else max(0, self.budget - self.nfs)

    def require(self, simulations: int) -> None:
        """Refuse further simulations if the budget does not allow them."""
        if simulations > self.left:
            raise BudgetExceeded(
                f"the budget of {self.budget} forward simulations does not allow {simulations} "
                f"more: {self.nfs} are used"
            )

    def spend(self, simulations: int) -> None:
        """Count further simulations, which are about to be made."""
        self.require(simulations)
        self.nfs += simulations

    def saved(self) -> dict[str, int]:
        """What a run has to save in order to go on counting."""
        return {"nfs": self.nfs, "failures": self.failures}

    def restore(self, saved: dict[str, int]) -> None:
        """Go on from saved numbers."""
        self.nfs, self.failures = saved["nfs"], saved["failures"]
        self.restored = True

    @contextlib.contextmanager
    def limited(self, simulations: int) -> Iterator[None]:
        """A block in which no more than these simulations are allowed."""
        budget = self.budget
        self.budget = self.nfs + min(simulations, self.left)
        try:
            yield
        finally:
            self.budget = budget
