"""A user's problem in a file of Python code, and errors that point into that file."""

import importlib.util
import os
import pathlib
import sys
import traceback
import types
from typing import Any

import cloudpickle

from msign.problems import InverseProblem

DEFAULT_NAME = "problem"  # what is looked for in a file whose problem has no name given


def load_problem_file(path: str | os.PathLike[str], name: str = DEFAULT_NAME) -> InverseProblem:
    """The problem of a name in a file: an `InverseProblem`, or a function that returns one.

    What goes wrong in the file is a ValueError of one line with the file and the line in it.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise ValueError(f"problem must name a file that exists, got {str(path)!r}")
    # Under its own name a file called signal.py would take the place of Python's own module.
    module_name = f"msign_problem_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    cloudpickle.register_pickle_by_value(module)  # workers cannot import it
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # files beside it can be imported
    try:
        spec.loader.exec_module(module)
        found = getattr(module, name, None)
        if callable(found) and not isinstance(found, InverseProblem):
            found = found()
    except SyntaxError as error:
        where = error.filename if error.filename != os.path.abspath(path) else path
        raise ValueError(f"{where}, line {error.lineno}: {error.msg}") from None
    except (Exception, SystemExit) as error:
        raise ValueError(_located(path, error)) from None
    if not hasattr(module, name):
        raise ValueError(f"{path} has no {name!r}: it has {_contents(module)}")
    if not isinstance(found, InverseProblem):
        raise ValueError(
            f"{name!r} in {path} must be an InverseProblem or a function that returns one, got "
            f"{type(found).__name__}"
        )
    return found


def _located(path: pathlib.Path, error: BaseException) -> str:
    """An error with the last line of the user's file on the way to it."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == os.path.abspath(path)
    ]
    where = f"{path}, line {lines[-1]}" if lines else str(path)
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    message = " ".join(str(error).split())
    return f"{where}: {kind}{message}"


def _contents(module: types.ModuleType) -> str:
    """Names of problems in a module, and of functions that may make one."""

    def offered(value: Any) -> bool:
        own = isinstance(value, types.FunctionType) and value.__module__ == module.__name__
        return own or isinstance(value, InverseProblem)

    names = [n for n, v in vars(module).items() if offered(v) and not n.startswith("_")]
    return ", ".join(names) if names else "no problem, and no function that could make one"
