"""Errors of a user's input as one line, and Ctrl-C, for all commands."""

import _thread
import contextlib
import pathlib
import shlex
import sys
import threading
from collections.abc import Iterator
from typing import Any

import typer
import typer.core

INTERRUPTED = 130  # the exit code of a shell's command that Ctrl-C ended
AGAIN = 0.02  # seconds after which a Ctrl-C that was lost comes once more


class one_line_errors:
    """A block in which an error of the input ends the command with one line, no traceback.

    Args:
        checkpoints: Directory in which the command keeps what it needs to go on after Ctrl-C.
    """

    def __init__(self, checkpoints: pathlib.Path | None = None):
        self.checkpoints = checkpoints

    def __enter__(self) -> None:
        self.ignored, sys.unraisablehook = sys.unraisablehook, self._not_raised

    def _not_raised(self, found: Any) -> None:
        """Ctrl-C where nothing can be raised, as in what JAX does while memory is collected.

        Python prints such an error and goes on as if it had not been.
        """
        if found.exc_type is not KeyboardInterrupt:
            return self.ignored(found)
        return threading.Timer(AGAIN, _thread.interrupt_main).start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        sys.unraisablehook = self.ignored
        if _follows_interrupt(error):
            typer.echo(self._how_to_go_on(), err=True)
            raise typer.Exit(INTERRUPTED) from None
        if isinstance(error, ValueError | OSError | RuntimeError | MemoryError):
            text = str(error) or type(error).__name__
            typer.secho(f"error: {printable(text)}", fg="red", err=True)
            raise typer.Exit(1) from None

    def _how_to_go_on(self) -> str:
        if self.checkpoints is None:
            return "stopped"
        if not (self.checkpoints / "config.json").exists():
            return "stopped; nothing was kept"
        return f"stopped; this goes on:\n  {resuming(sys.argv[1:])}"


class Commands(typer.core.TyperGroup):
    """All commands; Ctrl-C outside of their own blocks, as while arguments are read, is told."""

    def make_context(self, *given: Any, **options: Any) -> Any:
        with _told():
            return super().make_context(*given, **options)

    def invoke(self, ctx: Any) -> Any:
        with _told():
            return super().invoke(ctx)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """A block in which Ctrl-C ends the command with a word."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _follows_interrupt(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or came while something cleaned up after it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def resuming(arguments: list[str]) -> str:
    """The command that goes on where one with these arguments stopped."""
    settled = ("--overwrite", "--no-overwrite", "--resume", "--no-resume")
    kept = [a for a in arguments if a not in settled]
    return shlex.join(["msign", *kept, "--resume"])


def printable(text: str) -> str:
    """The text without control characters, which files from elsewhere may have in theirs."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
