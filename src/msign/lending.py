"""Arrays that other processes of this machine read without being sent them.

They lie in a file in memory that has no name (a memfd of Linux), which its readers open through the
process that made it. It is gone when that process closes it or ends, however that was: nothing is
left behind. Who cannot read it, on another machine or in another container, says so.
"""

import dataclasses
import math
import os
import secrets
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

LEAST_BYTES = 1 << 16  # of an array: smaller ones go with the message
BLOCK_BYTES = 1 << 20  # that are read at a time: they stay in the processor's cache

Arrays = tuple[Any, ...]


class CannotRead(Exception):
    """The memory of a lent array is out of reach for this process."""


@dataclasses.dataclass(frozen=True)
class Lent:
    """Where a floating-point array lies in the memory of a `Lender`: what is sent of it.

    Attributes:
        pid: Process that has the memory open.
        descriptor: Number of the open file there.
        name: Of the memory, by which a reader knows that it is the right one.
        offset: Byte at which the array begins.
        shape: Of the array.
        dtype: Of the array.
    """

    pid: int
    descriptor: int
    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: str

    def read(self) -> np.ndarray:
        """A copy of the array in double precision.

        It is read piece by piece through a buffer: faster here than mapping the memory, whose pages
        would have to be entered one by one, and nothing stays open.
        """
        flat = np.empty(math.prod(self.shape))
        dtype = np.dtype(self.dtype)
        buffer = np.empty(max(1, BLOCK_BYTES // dtype.itemsize), dtype)
        try:
            with open(self._path(), "rb", buffering=0) as file:
                for start in range(0, len(flat), len(buffer)):
                    part = buffer[: len(flat) - start]
                    _read_exactly(file.fileno(), part, self.offset + start * dtype.itemsize)
                    flat[start : start + len(part)] = part
        except OSError as error:
            raise CannotRead(str(error)) from None
        return flat.reshape(self.shape)

    def _path(self) -> str:
        """Where the memory can be opened; another machine may have another file there."""
        path = f"/proc/{self.pid}/fd/{self.descriptor}"
        if os.readlink(path).split(" ")[0] != f"/memfd:{self.name}":
            raise CannotRead(f"{path} is another file")
        return path


def _read_exactly(file: int, into: np.ndarray, offset: int) -> None:
    rest = into.data.cast("B")
    while len(rest):
        count = os.preadv(file, [rest], offset)
        if count == 0:
            raise CannotRead("the memory ends before the array does")
        rest, offset = rest[count:], offset + count


class Memory:
    """A file in memory without a name, open as long as this object is there."""

    def __init__(self) -> None:
        self.name, self.pid = f"msign-{secrets.token_hex(8)}", os.getpid()
        self.descriptor = os.memfd_create(self.name)
        weakref.finalize(self, os.close, self.descriptor)

    def write(self, array: np.ndarray, offset: int) -> Lent:
        """Put an array at a place."""
        rest = np.ascontiguousarray(array).reshape(-1).data.cast("B")
        place = offset
        while len(rest):
            count = os.pwrite(self.descriptor, rest, place)
            rest, place = rest[count:], place + count
        given = array.shape, array.dtype.str
        return Lent(self.pid, self.descriptor, self.name, offset, *given)


class Lender:
    """Lends the large arrays of one batch after the other, in the same memory.

    Memory that was written before takes a third of the time to write again.
    """

    def __init__(self) -> None:
        self._memory: Memory | None = None

    @staticmethod
    def possible() -> bool:
        """Whether this system has such memory."""
        return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")

    @contextmanager
    def lending(self, pieces: Sequence[Arrays]) -> Iterator[Sequence[Arrays]]:
        """The pieces with their large arrays lent, for the length of a block.

        They are whole where there is no memory, or not enough, to lend them.
        """
        memory, lent = self._memory, pieces
        try:
            memory = self._memory = memory or Memory()
            lent = _lent(pieces, memory)
        except OSError:
            self.forget()
        try:
            yield lent
        except BaseException:
            self.forget()
            raise

    def forget(self) -> None:
        """Take other memory for the next batch: somebody who is lost may still read this one."""
        self._memory = None


def _lent(pieces: Sequence[Arrays], memory: Memory) -> list[Arrays]:
    found, end = [], 0
    for piece in pieces:
        row: list[Any] = []
        for a in piece:
            row.append(memory.write(a, end) if is_lendable(a) else a)
            end += a.nbytes if is_lendable(a) else 0
        found.append(tuple(row))
    return found


def is_lendable(value: Any) -> bool:
    """Whether it is an array of real numbers that is large enough to be worth it."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.nbytes >= LEAST_BYTES
