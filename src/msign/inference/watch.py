"""What a person sees of a run while it goes on: where it is, what it does, and what is certain."""

import datetime
import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any, Self

import jax.monitoring
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.status import Status
from rich.text import Text

from msign.problems.simulator import Simulator

COMPILATION = "/jax/core/compile/backend_compile_duration"  # JAX's name of this event
RECENT = 3  # rounds from which the time of the next ones is told


class Watch:
    """A bar on a terminal, and lines above it; where there is no terminal the lines alone.

    All texts are made when the bar is drawn, ten times a second, so that counts and times are
    those of this moment. They go to the standard error.

    Args:
        show: Whether to show anything.
        total: What counts as complete.
        simulator: Whose simulations are shown.
        seconds: Time used, that of interrupted processes included.

    Attributes:
        place: Where the run is, as `stage 2/6`.
        activity: What it does.
        figures: How good it is so far.
        left: Time left, in words; empty while there is no ground for any.
    """

    def __init__(
        self, show: bool, total: float, simulator: Simulator, seconds: Callable[[], float]
    ):
        self.show, self.simulator, self.seconds = show, simulator, seconds
        self.place = self.figures = self.left = ""
        self.activity = "starting"
        self.compilation = compilation_watch()
        self.console = Console(stderr=True, soft_wrap=True, highlight=False)
        self.bar = Progress(
            _Drawn(self.before),
            BarColumn(bar_width=8),
            _Drawn(self.behind),
            console=self.console,
            disable=not (show and sys.stderr.isatty()),
            transient=True,
        )
        self.task = self.bar.add_task("run", total=total)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def before(self) -> str:
        """The text before the bar."""
        doing = "compiling" if self.compilation.under_way else self.activity
        return f"{self.place}  {doing}".strip()

    def behind(self) -> str:
        """The text behind the bar."""
        return "  ".join(t for t in (self.figures, self.used(), self.left) if t)

    def used(self) -> str:
        """Simulations and time so far."""
        return f"nFS {self.simulator.nfs:,}/{self.simulator.budget:,}  {clock(self.seconds())}"

    def done(self, completed: float) -> None:
        """Move the bar."""
        self.bar.update(self.task, completed=completed)

    def line(self, text: str) -> None:
        """A line that stays."""
        if self.show:
            self.console.print(text, markup=False)


class CompilationWatch:
    """Whether JAX compiles at this moment, by the events that it reports."""

    def __init__(self) -> None:
        self.under_way = False
        jax.monitoring.register_scalar_listener(self._began)
        jax.monitoring.register_event_duration_secs_listener(self._ended)

    def _began(self, event: str, value: float, **_: Any) -> None:
        if event == COMPILATION:
            self.under_way = True

    def _ended(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == COMPILATION:
            self.under_way = False


@functools.cache
def compilation_watch() -> CompilationWatch:
    """The one that listens in this process."""
    return CompilationWatch()


class _Drawn(ProgressColumn):
    """A text that is made when it is drawn."""

    def __init__(self, text: Callable[[], str]):
        super().__init__()
        self.text = text

    def render(self, task: Task) -> Text:
        return Text(self.text(), no_wrap=True, overflow="ellipsis")


def busy(text: str) -> Status:
    """A block of some seconds that a terminal shows as under way; elsewhere nothing is shown."""
    return Console(stderr=True).status(text)


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    return str(datetime.timedelta(seconds=round(seconds)))


def most_left(
    rounds: list[dict[str, Any]], most: int | None, limit: int, after: float
) -> float | None:
    """The longest that the last stage may go on, in seconds; None while there is no ground for it.

    It may end sooner, when its model is good enough. The first round, which compiles, says nothing
    of the others, so that it takes two.

    Args:
        rounds: Records of its rounds so far.
        most: Rounds that it may have; None: as many as the limit allows.
        limit: Count of simulations that it must not exceed.
        after: Fields simulated after it, in rounds.
    """
    if len(rounds) < 2:
        return None
    recent = list(itertools.pairwise(rounds[-1 - RECENT :]))
    seconds = max(b["seconds"] - a["seconds"] for a, b in recent)
    spent = max(1, min(b["nfs"] - a["nfs"] for a, b in recent))
    more = (limit - rounds[-1]["nfs"]) // spent
    if most is not None:
        more = min(more, most - len(rounds))
    return seconds * (max(0, more) + after)
