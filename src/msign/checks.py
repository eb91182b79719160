"""Checks of what a user hands in: one-line errors that name the argument, its value and the remedy.

They run in constructors, before anything expensive, and only on concrete values (never on traced
ones).
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np


def positive(name: str, value: float) -> float:
    """`value` as a float, if it is a finite number above zero."""
    number = finite(name, value)
    if number <= 0:
        raise ValueError(f"{name} must be positive, got {value!r}")
    return number


def finite(name: str, value: float) -> float:
    """`value` as a float, if it is a finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, got {shortened(value)}") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return number


def integer(name: str, value: int, minimum: int, maximum: int | None = None) -> int:
    """`value` as an int, if it is a whole number in `[minimum, maximum]`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name} must be a whole number, got {shortened(value)}")
    if value < minimum or (maximum is not None and value > maximum):
        span = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise ValueError(f"{name} must be {span}, got {value!r}")
    return int(value)


def count(name: str, value: float, minimum: int) -> int:
    """`value` as an int, if it is a whole number of at least `minimum`; 1e4 is one."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    return integer(name, value, minimum)  # type: ignore[arg-type]


def instance(name: str, value: Any, kind: type) -> None:
    """Refuse a value that is not of a class."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be a {kind.__name__}, got {shortened(value)}")


def one_of(name: str, value: str, options: Iterable[str]) -> str:
    """`value`, if it is one of the `options`."""
    options = tuple(options)
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}")
    return value


def shape(name: str, actual: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Refuse an array whose trailing axes are not `expected` (leading axes are a batch)."""
    trailing = actual[len(actual) - len(expected) :] if len(actual) >= len(expected) else None
    if trailing != tuple(expected):
        raise ValueError(f"{name} must have shape (..., {_join(expected)}), got {tuple(actual)}")


def finite_array(name: str, value: Any) -> np.ndarray:
    """`value` as a float64 NumPy array, if all of its entries are finite numbers."""
    array = numbers(name, value)
    finite_entries(name, array)
    return array


def numbers(name: str, value: Any) -> np.ndarray:
    """`value` as a float64 NumPy array, whatever the numbers in it."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be an array of numbers, got {shortened(value)}") from None


def finite_entries(name: str, array: np.ndarray) -> None:
    """Refuse an array of floating-point numbers with an entry that is not finite."""
    if array.dtype.kind in "fc" and not np.all(np.isfinite(array)):
        index = tuple(map(int, np.argwhere(~np.isfinite(array))[0]))
        raise ValueError(f"{name} must be finite, got {array[index]} at index {index}")


def sides(name: str, value: Any) -> tuple[int, ...]:
    """`value` as one to three positive whole numbers; a single number is one side."""
    entries = (value,) if isinstance(value, int | np.integer) else value
    if isinstance(entries, str) or not isinstance(entries, Iterable):
        raise ValueError(f"{name} must be whole numbers, one per axis, got {value!r}")
    entries = tuple(entries)
    if not 1 <= len(entries) <= 3:
        raise ValueError(f"{name} must have one, two or three axes, got {value!r}")
    for entry in entries:
        if isinstance(entry, bool) or not isinstance(entry, int | np.integer) or entry < 1:
            raise ValueError(f"{name} must be positive whole numbers, got {value!r}")
    return tuple(int(entry) for entry in entries)


def per_scale(name: str, value: Any, scales: int) -> tuple[Any, ...]:
    """One entry per scale: a scalar is repeated, a sequence must have `scales` entries."""
    if isinstance(value, list | tuple):
        if len(value) != scales:
            raise ValueError(f"{name} must have {scales} entries, one per scale, got {value!r}")
        return tuple(value)
    return (value,) * scales


def shortened(value: Any, length: int = 60) -> str:
    """`repr(value)` on one line, cut to a readable length."""
    text = " ".join(repr(value).split())
    return text if len(text) <= length else text[: length - 3] + "..."


def _join(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
