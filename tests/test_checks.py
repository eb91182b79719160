"""Checks of arguments: what passes comes back as it should be, what does not is named."""

import numpy as np
import pytest

from helpers import refused
from msign import checks


@pytest.mark.parametrize("value", [3, np.int32(3), np.int64(3)])
def test_whole_numbers_of_any_kind_become_ints(value):
    assert type(checks.integer("n", value, 1)) is int


@pytest.mark.parametrize("value", [True, 3.0, "3", None])
def test_what_only_looks_like_a_whole_number_is_refused(value):
    with refused("n must be a whole number", repr(value)):
        checks.integer("n", value, 1)


def test_counts_may_be_written_as_floating_point_numbers():
    for value in (10_000, 1e4, np.float32(1e4), np.int32(10_000)):
        assert checks.count("budget", value, 1) == 10_000
        assert type(checks.count("budget", value, 1)) is int
    for value in (1.5, np.nan, np.inf, "1e4", True):
        with refused("budget must be a whole number", repr(value)):
            checks.count("budget", value, 1)


def test_bounds_are_part_of_the_message():
    with refused("n must be at least 2", "1"):
        checks.integer("n", 1, 2)
    with refused("n must be from 1 to 8", "9"):
        checks.integer("n", 9, 1, 8)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_positive_is_finite_and_above_zero(value):
    with refused("std must be", repr(value)):
        checks.positive("std", value)
    assert checks.positive("std", np.float32(0.5)) == 0.5


def test_the_first_entry_that_is_not_finite_is_named():
    array = np.zeros((2, 3))
    array[1, 2] = np.nan
    with refused("x must be finite, got nan at index (1, 2)"):
        checks.finite_array("x", array)
    with refused("x must be an array of numbers", "a"):
        checks.finite_array("x", ["a"])


def test_leading_axes_are_a_batch():
    checks.shape("x", (5, 7, 4, 4), (4, 4))
    for actual in ((4,), (4, 5), (5, 4)):
        with refused("x must have shape (..., 4, 4)", actual):
            checks.shape("x", actual, (4, 4))


def test_sides_are_one_to_three_positive_whole_numbers():
    assert checks.sides("shape", 8) == (8,)
    assert checks.sides("shape", [8, np.int64(4)]) == (8, 4)
    for value in ((), (1, 2, 3, 4), (0, 4), (True,), "44", 2.0):
        with refused("shape must", repr(value)):
            checks.sides("shape", value)


def test_one_entry_per_scale():
    assert checks.per_scale("hidden", 3, 2) == (3, 3)
    assert checks.per_scale("hidden", [3, 4], 2) == (3, 4)
    with refused("hidden must have 3 entries", (3, 4)):
        checks.per_scale("hidden", (3, 4), 3)


def test_long_values_are_cut_to_one_line():
    text = checks.shortened(np.arange(1000).reshape(10, 100))
    assert len(text) == 60
    assert "\n" not in text
