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

FUNCTIONS_KEPT = 16  # that a worker does not have to unpack again
LOOKED = 1.0  # seconds after which a worker looks whether its run is still there

Arrays = tuple[Any, ...]


class Answer(NamedTuple):
    """What a worker made of a piece.

    Attributes:
        values: What the function returned, a tuple of arrays; None if it raised.
        seconds: That it took.
        error: What went wrong, in words.
        trace: Where.
    """

    values: tuple[np.ndarray, ...] | None
    seconds: float = 0.0
    error: str = ""
    trace: str = ""


class Shipped:
    """A function that a worker process unpacks once, however often it is called there.

    Threads share the function itself. Processes receive it by cloudpickle, so that functions of a
    notebook or a script can be sent.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __reduce__(self) -> tuple[Callable[[bytes], "Shipped"], tuple[bytes]]:
        return _unpacked, (self._packed,)

    @functools.cached_property
    def _packed(self) -> bytes:
        import cloudpickle

        return cloudpickle.dumps(self.function)


@functools.lru_cache(FUNCTIONS_KEPT)
def _unpacked(packed: bytes) -> Shipped:
    import cloudpickle

    return Shipped(cloudpickle.loads(packed))


def work(function: Shipped, arrays: Arrays) -> Answer:
    """Call a function on a piece; runs on a worker."""
    began = time.perf_counter()
    try:
        found = function(*(_double(a) for a in arrays))
        values = tuple(_floating(a) for a in (found if isinstance(found, tuple) else (found,)))
    except Exception as error:
        return Answer(None, 0.0, user_code.raised(error), traceback.format_exc())
    return Answer(values, time.perf_counter() - began)


def _double(a: Any) -> Any:
    """An array in double precision; what is no array as it is."""
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
