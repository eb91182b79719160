"""What a worker does: it calls a function on a piece of a batch, and ends with its run.

This is all that a worker process imports of ours, and it does without JAX, which takes a second and
hundreds of megabytes: a simulator in NumPy needs neither.
"""

import functools
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from msign import user_code
from msign.lending import Arrays, CannotRead, Lent

FUNCTIONS_KEPT = 16  # that a worker does not have to unpack again
LOOKED = 1.0  # seconds after which a worker looks whether its run is still there


class Answer(NamedTuple):
    """What a worker made of a piece.

    Attributes:
        values: What the function returned, a tuple of arrays; None if it raised.
        seconds: That it took.
        error: What went wrong, in words.
        trace: Where.
        unread: Whether the worker cannot read what was lent to it.
        unloaded: Whether it cannot load the function, as where a module is missing.
    """

    values: tuple[np.ndarray, ...] | None
    seconds: float = 0.0
    error: str = ""
    trace: str = ""
    unread: bool = False
    unloaded: bool = False


class Shipped:
    """A function that a worker process unpacks once, however often it is called there.

    Threads share the function itself. Processes receive it by cloudpickle, so that functions of a
    notebook or a script can be sent. They unpack it when they begin to work: what goes wrong then
    is an answer, where a message that cannot be unpacked is lost; and a scheduler unpacks nothing.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __reduce__(self) -> tuple[Callable[[bytes], "Shipped"], tuple[bytes]]:
        return _received, (self._packed,)

    def load(self) -> None:
        """Unpack it, if that was not done before."""
        _ = self.function

    @functools.cached_property
    def function(self) -> Callable[..., Any]:
        import cloudpickle

        return cloudpickle.loads(self._packed)

    @functools.cached_property
    def _packed(self) -> bytes:
        import cloudpickle

        return cloudpickle.dumps(self.function)


@functools.lru_cache(FUNCTIONS_KEPT)
def _received(packed: bytes) -> Shipped:
    shipped = Shipped.__new__(Shipped)
    shipped._packed = packed
    return shipped


def work(function: Shipped, arrays: Arrays) -> Answer:
    """Call a function on a piece; runs on a worker."""
    began = time.perf_counter()
    try:
        for shipped in (function, *arrays):
            if isinstance(shipped, Shipped):
                shipped.load()
    except Exception as error:
        return Answer(None, error=f"{type(error).__name__}: {error}", unloaded=True)
    try:
        own = [_double(a) for a in arrays]
    except CannotRead as error:
        return Answer(None, error=str(error), unread=True)
    try:
        found = function(*own)
        values = tuple(_floating(a) for a in (found if isinstance(found, tuple) else (found,)))
    except Exception as error:
        return Answer(None, 0.0, user_code.raised(error), traceback.format_exc())
    return Answer(values, time.perf_counter() - began)


def _double(a: Any) -> Any:
    """An array, lent or not, in double precision; what is no array as it is."""
    if isinstance(a, Lent):
        return a.read()
    return np.asarray(a, np.float64) if isinstance(a, np.ndarray) else a


def _floating(a: Any) -> np.ndarray:
    """An array of numbers, in the precision that it has."""
    found = np.asarray(a)
    return found if found.dtype.kind == "f" else found.astype(np.float64)


def work_on(task: tuple[Shipped, Arrays]) -> Answer:
    """The same for a pool that has `map` alone."""
    return work(*task)


def begin_work(parent: int) -> None:
    """In a worker: end when the run has ended, however that was, and leave Ctrl-C to it.

    A terminal sends Ctrl-C to all processes, and a run that is killed cannot end its workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOKED)
    os._exit(1)
