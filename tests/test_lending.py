"""Memory that other processes read: the same numbers, and nothing that is left behind."""

import dataclasses
import errno
import os
import subprocess
import sys

import numpy as np
import pytest

from msign import lending
from msign.lending import CannotRead, Lender, Lent

ROWS = np.random.default_rng(0).normal(size=(7, 5, 3))
BATCH = [(ROWS.astype(np.float32), "a word"), (ROWS[:, ::2], np.arange(3)), (ROWS[:0],)]


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    monkeypatch.setattr(lending, "LEAST_BYTES", 1)
    monkeypatch.setattr(lending, "BLOCK_BYTES", 100)  # less than an array, and no whole number


def test_arrays_are_read_as_they_were_in_double_precision():
    lender = Lender()
    for _ in range(2):  # the second batch lies where the first did
        with lender.lending(BATCH) as lent:
            for given, (found, *_) in zip(BATCH[:2], lent, strict=False):
                assert isinstance(found, Lent)
                read = found.read()
                assert read.dtype == np.float64 and read.flags.writeable
                np.testing.assert_array_equal(read, given[0])
            assert lent[0][1] == "a word"
            assert lent[1][1] is BATCH[1][1] and lent[2][0] is BATCH[2][0]  # no real numbers, none


READER = """
import sys
from msign.lending import Lent
assert "jax" not in sys.modules
print(Lent(*eval(sys.argv[1])).read().sum())
"""


def read_elsewhere(lent):
    given = lent.pid, lent.descriptor, lent.name, lent.offset, lent.shape, lent.dtype
    return subprocess.run(
        [sys.executable, "-c", READER, repr(given)], capture_output=True, text=True
    )


def test_another_process_reads_them_without_jax():
    with Lender().lending(BATCH) as lent:
        assert float(read_elsewhere(lent[1][0]).stdout) == ROWS[:, ::2].sum()


def test_who_cannot_read_the_memory_says_so():
    lender = Lender()
    with lender.lending(BATCH) as lent:
        whole = lent[1][0]
        changes = {
            "name": "msign-another",  # of another file, or of the same number elsewhere
            "pid": 2**22 + 1,  # nobody
            "offset": whole.offset + 1000,  # beyond the end
        }
        for field, value in changes.items():
            with pytest.raises(CannotRead):
                dataclasses.replace(whole, **{field: value}).read()
    lender.forget()
    with pytest.raises(CannotRead):
        whole.read()


def test_memory_is_kept_for_the_next_batch_unless_somebody_may_still_read_it():
    lender = Lender()

    def name():
        with lender.lending(BATCH) as lent:
            return lent[0][0].name

    first = name()
    assert name() == first
    with pytest.raises(KeyboardInterrupt), lender.lending(BATCH):
        raise KeyboardInterrupt
    second = name()
    assert second != first
    with lender.lending(BATCH) as lent:
        lender.forget()
        np.testing.assert_array_equal(lent[1][0].read(), BATCH[1][0])  # open till the block ends
    assert name() != second


@pytest.mark.parametrize("call", ["pwrite", "memfd_create"])
def test_arrays_for_which_there_is_no_memory_are_sent(call, monkeypatch):
    def refuses(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, call, refuses)
    with Lender().lending(BATCH) as lent:
        assert lent is BATCH
