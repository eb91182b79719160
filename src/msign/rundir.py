"""A directory of files of one run, each written under a temporary name and renamed."""

import contextlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from msign import archive
from msign.devices import writes_files


class RunDirectory:
    """Files of one run.

    Args:
        path: The directory, made if it does not exist.
        write: Whether files will be written; one that is only read need not be writable.
    """

    def __init__(self, path: str | os.PathLike[str], write: bool = True):
        self.path = pathlib.Path(path)
        if not (write and writes_files()):
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise OSError(
                f"out must be a directory that can be written, got {path}: {error}"
            ) from None

    @property
    def started(self) -> bool:
        """Whether a run has begun here."""
        return (self.path / "config.json").exists()

    def write_json(self, name: str, value: Any) -> None:
        """Write one JSON file."""
        with archive.atomic_write(self.path / name) as file:
            file.write((json.dumps(value, indent=1, default=_plain) + "\n").encode())

    def read_json(self, name: str) -> Any:
        """Read one JSON file."""
        path = self.path / name
        try:
            return json.loads(path.read_text())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None

    def write_lines(self, name: str, records: list[dict[str, Any]]) -> None:
        """Write a file of one JSON object per line."""
        lines = "".join(json.dumps(r, default=_plain) + "\n" for r in records)
        with archive.atomic_write(self.path / name) as file:
            file.write(lines.encode())

    def check_same(self, config: dict[str, Any]) -> None:
        """Refuse to resume with another configuration than that of the run, naming the first."""
        found = dict(_flat(self.read_json("config.json")))
        for name, value in _flat(json.loads(json.dumps(config, default=_plain))):
            if found.get(name) != value:
                raise ValueError(
                    f"{name} must be {found.get(name)!r} to resume the run in {self.path}, got "
                    f"{value!r}"
                )


@contextlib.contextmanager
def taken_from(path: str | os.PathLike[str]) -> Iterator[None]:
    """A block that makes something of what a file says; if that fails, the file is damaged.

    A file from elsewhere may say anything, so that any error may come of it.
    """
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        text = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        known = " ".join(text.split()) or type(error).__name__
        name = os.fspath(path)
        raise ValueError(
            known if known.startswith(name) else f"{name} is damaged: {known}"
        ) from None


@contextlib.contextmanager
def damaged_checkpoint(before: str) -> Iterator[None]:
    """A block that reads a checkpoint; if damaged, the error says from where else to go on."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error}; delete it to go on from {before}") from None


def _flat(values: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Nested dictionaries as pairs of dotted name and value."""
    if not isinstance(values, dict):
        return [(prefix, values)]
    return [
        pair
        for name, value in values.items()
        for pair in _flat(value, f"{prefix}.{name}" if prefix else name)
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"cannot write {type(value).__name__} as JSON")
