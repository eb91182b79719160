"""Ctrl-C while something runs that writes checkpoints: stop where nothing is lost."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self


class StopAtCheckpoint:
    """Makes of the first Ctrl-C a wish to stop after the next checkpoint; a second stops at once.

    Where it is not active, outside of the main thread, and where somebody else handles the signal,
    Ctrl-C does what it always does.

    Args:
        active: Whether there will be checkpoints.
        notice: Is told, in words, what the first Ctrl-C brings about.
    """

    def __init__(self, active: bool, notice: Callable[[str], None]):
        self.active, self.notice = active, notice
        self.asked = self.installed = False

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        if self.active and main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._ask)
            self.installed = True
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """From now on Ctrl-C stops at once: no checkpoint is to come."""
        if self.installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.installed = False

    def checkpoint_written(self) -> None:
        """Stop here, if that was asked for."""
        if self.asked:
            raise KeyboardInterrupt("stopped after a checkpoint, as asked")

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self.release()
        self.notice("stopping after the next checkpoint; Ctrl-C again stops at once")
