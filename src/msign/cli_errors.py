"""Errors of a user's input as one line, for all commands."""

import typer


class one_line_errors:
    """A block in which an error of the input ends the command with one line, no traceback."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError | OSError | RuntimeError):
            typer.secho(f"error: {error}", fg="red", err=True)
            raise typer.Exit(1) from None
