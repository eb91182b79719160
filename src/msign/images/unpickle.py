"""Python batches of CIFAR and small ImageNet, read without running anything from the file.

A pickle is a program: what it may call decides what it can do. Here it may make numbers, text,
bytes, containers and NumPy arrays of plain numbers; any other name in the file is an error.
"""

import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np


def read_batch(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The dictionary in a pickled batch; names as text, whichever Python wrote it."""
    try:
        with open(path, "rb") as file:
            value = _Unpickler(file, encoding="bytes").load()
    except _Refused as error:
        raise ValueError(f"{path} {error}") from None
    except OSError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        what = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} is not a complete pickled batch: {what}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a dictionary, got {type(value).__name__}")
    return {k.decode("latin1") if isinstance(k, bytes) else str(k): v for k, v in value.items()}


class _Refused(Exception):
    """The file names something that is not data."""


def _plain_dtype(*arguments: Any) -> np.dtype:
    dtype = np.dtype(*arguments)
    if dtype.kind not in "biuf":
        raise _Refused(f"holds an array of {dtype}, which is not of plain numbers")
    return dtype


def _empty_array(kind: Any, shape: Any, code: Any) -> np.ndarray:
    if kind is not np.ndarray:
        raise _Refused(f"asks for an array of a kind of its own, {kind!r}")
    return np.ndarray.__new__(np.ndarray, (0,), np.uint8)


def _array_of_bytes(content: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    """Protocol 5 pickles write an array as its bytes."""
    return np.frombuffer(content, _plain_dtype(dtype)).reshape(shape, order=order)


def _bytes_from_text(text: str, encoding: str = "latin1") -> bytes:
    """Protocol 2 pickles write bytes as latin-1 text."""
    if encoding not in ("latin1", b"latin1"):
        raise _Refused(f"asks for the encoding {encoding!r}")
    return text.encode("latin1")


ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _plain_dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy.core.numeric", "_frombuffer"): _array_of_bytes,
    ("numpy._core.numeric", "_frombuffer"): _array_of_bytes,
    ("_codecs", "encode"): _bytes_from_text,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED:
            return ALLOWED[module, name]
        raise _Refused(f"asks for {module}.{name}, which is not data; it was not run")

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("refers to another file")
