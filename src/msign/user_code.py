"""Where in a user's own code an error comes from."""

import functools
import os
import pathlib
import sysconfig
import traceback

import msign

INSTALLED = ("site-packages", "dist-packages")
NOTEBOOKS = ("<ipython", "<stdin>")  # code that has no file


def raised(error: BaseException) -> str:
    """What an error says, on one line, with the last line of the user's code on the way to it.

    That is code which is neither Python's, nor installed, nor ours.
    """
    text = " ".join(str(error).split())
    where = located(error)
    return f"raised {type(error).__name__}: {text}" + (f" ({where})" if where else "")


def located(error: BaseException) -> str:
    """File, line and function of the user's code; empty if the error has none on its way."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_users(frame.filename):
            return f"{_shown(frame.filename)}, line {frame.lineno}, in {frame.name}"
    return ""


def _is_users(filename: str) -> bool:
    if filename.startswith("<"):
        return filename.startswith(NOTEBOOKS)
    path = pathlib.Path(os.path.abspath(filename))
    return not (
        set(INSTALLED) & set(path.parts)
        or any(path.is_relative_to(folder) for folder in _not_the_users())
    )


@functools.cache
def _not_the_users() -> tuple[str, ...]:
    ours = os.path.dirname(os.path.abspath(msign.__file__))
    return (ours, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")))


def _shown(filename: str) -> str:
    """A path below the working directory without it."""
    path = pathlib.Path(filename)
    here = pathlib.Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
