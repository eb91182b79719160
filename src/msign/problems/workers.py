"""Workers that call a function on pieces of a batch: processes, a Dask cluster, any executor.

Processes of this machine read large arrays from memory; all others are sent them. A piece whose
worker is lost is sent again. What a function raises comes back as an answer, so that whatever an
executor itself raises says that a worker, or the way to it, was lost.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msign import checks
from msign.lending import Arrays, Lender
from msign.on_worker import Answer, Shipped, begin_work, work, work_on
from msign.problems.failures import SimulatorUnavailable

ATTEMPTS = 2  # of a piece whose worker is lost, before it is sent alone
PAUSE = 0.5  # seconds between them
DASK_TIMEOUT = "30s"  # for the scheduler to answer


class Workers:
    """Anything with `submit`, as the executors of concurrent.futures, loky and mpi4py.

    A subclass says how pieces are sent, how many workers there are, and how to replace lost ones.

    Args:
        executor: Theirs.
        lends: Whether they may be processes of this machine, which read large arrays from memory.
    """

    # What an executor raises where a piece has taken its worker with it, as a crash does.
    ended: tuple[type[BaseException], ...] = ()

    def __init__(self, executor: Any, lends: bool = False):
        self.executor = executor
        self._lost_some = False
        self._lender = Lender() if lends and Lender.possible() else None

    def count(self) -> int:
        """How many pieces are worked on at a time."""
        for name in ("num_workers", "_max_workers", "_processes"):
            number = getattr(self.executor, name, None)
            if isinstance(number, int) and number > 0:
                return number
        return os.cpu_count() or 1

    def submit(self, function: Shipped, arrays: Arrays) -> Any:
        """A future of the answer to a piece."""
        return self.executor.submit(work, function, arrays)

    def revive(self) -> None:
        """Replace lost workers, where that is for us to do."""

    def close(self) -> None:
        """Give back what was made for this run; an executor of the user's stays open."""
        if self._lender is not None:
            self._lender.forget()

    # --- many pieces ------------------------------------------------------------------------------

    def answers(self, function: Shipped, pieces: Sequence[Arrays]) -> list[Answer]:
        """Answers to all pieces, in their order."""
        if self._lender is None:
            return self._answered(function, pieces)
        with self._lender.lending(pieces) as lent:
            found = self._answered(function, lent)
        unread = [i for i, answer in enumerate(found) if answer.unread]
        if unread:  # some workers are on other machines, and all are sent whole pieces from now on
            self._lender = None
            again = self._answered(function, [pieces[i] for i in unread])
            for i, answer in zip(unread, again, strict=True):
                found[i] = answer
        return found

    def _answered(self, function: Shipped, pieces: Sequence[Arrays]) -> list[Answer]:
        """The same of pieces as they are sent."""
        found: dict[int, Answer] = {}
        waiting = dict(enumerate(pieces))
        for attempt in range(ATTEMPTS):
            if attempt and waiting:
                time.sleep(PAUSE)
            found |= self._attempt(function, waiting)[0]
            waiting = {i: piece for i, piece in waiting.items() if i not in found}
        for i, piece in waiting.items():
            found[i] = self._alone(function, piece)
        for answer in found.values():
            if answer.unloaded:
                raise SimulatorUnavailable(
                    f"workers cannot load the forward map: {_shortened(answer.error)}; what it "
                    "imports has to be installed, or on Python's path, where they run"
                )
        return [found[i] for i in range(len(pieces))]

    def _attempt(
        self, function: Shipped, pieces: dict[int, Arrays]
    ) -> tuple[dict[int, Answer], dict[int, Exception]]:
        """Send each piece once, to workers that are all there."""
        if self._lost_some:
            self.revive()
        found, lost = self.sent(function, pieces)
        self._lost_some = bool(lost)
        if lost and self._lender is not None:
            self._lender.forget()
        return found, lost

    def sent(
        self, function: Shipped, pieces: dict[int, Arrays]
    ) -> tuple[dict[int, Answer], dict[int, Exception]]:
        """Send each piece once: answers, and what happened to pieces that were lost."""
        futures: dict[int, Any] = {}
        found: dict[int, Answer] = {}
        lost: dict[int, Exception] = {}
        try:
            for i, piece in pieces.items():
                try:
                    futures[i] = self.submit(function, piece)
                except Exception as error:
                    lost[i] = error
            for i, future in futures.items():
                try:
                    found[i] = future.result()
                except Exception as error:
                    lost[i] = error
        finally:
            for i, future in futures.items():
                if i not in found:
                    future.cancel()
        return found, lost

    def _alone(self, function: Shipped, piece: Arrays) -> Answer:
        """The answer to a piece that was lost again and again, apart from all others.

        Where it takes its worker with it once more, that is its own fault.
        """
        found, lost = self._attempt(function, {0: piece})
        if found:
            return found[0]
        error = lost[0]
        if isinstance(error, self.ended):
            return Answer(None, 0.0, f"ended its worker ({_in_words(error)})")
        raise SimulatorUnavailable(f"executor lost its workers: {_in_words(error)}") from error


class MappedWorkers(Workers):
    """Anything with `map` alone, as the pools of multiprocessing and Ray."""

    def sent(
        self, function: Shipped, pieces: dict[int, Arrays]
    ) -> tuple[dict[int, Answer], dict[int, Exception]]:
        """All pieces at once; what such a pool raises does not say which of them was lost."""
        tasks = [(function, piece) for piece in pieces.values()]
        try:
            return dict(zip(pieces, self.executor.map(work_on, tasks), strict=True)), {}
        except Exception as error:
            return {}, dict.fromkeys(pieces, error)


class ProcessWorkers(Workers):
    """Processes on this machine; a lost one is replaced."""

    def __init__(self, processes: int):
        from loky.process_executor import BrokenProcessPool

        self.processes = processes
        self.ended = (BrokenProcessPool,)
        super().__init__(self._started(), lends=True)

    def count(self) -> int:
        return self.processes

    def revive(self) -> None:
        self.close()
        self.executor = self._started()

    def _started(self) -> Any:
        """A pool; a file `signal.py` where it starts does not stand in for Python's own module."""
        import loky

        return loky.ProcessPoolExecutor(
            self.processes,
            env={"PYTHONSAFEPATH": "1"},
            initializer=begin_work,
            initargs=(os.getpid(),),
        )

    def close(self) -> None:
        super().close()
        self.executor.shutdown(wait=True, kill_workers=True)


class DaskWorkers(Workers):
    """A Dask cluster, which sends the pieces of a lost worker to others by itself."""

    def __init__(self, client: Any, own: bool = False):
        import distributed

        super().__init__(client, lends=not client.scheduler.address.startswith("inproc"))
        self.own = own
        self.ended = (distributed.KilledWorker,)

    def count(self) -> int:
        return max(1, sum(self.executor.nthreads().values()))

    def submit(self, function: Shipped, arrays: Arrays) -> Any:
        return self.executor.submit(work, function, arrays, pure=False)

    def close(self) -> None:
        super().close()
        if self.own:
            self.executor.close()


def as_workers(executor: Any) -> Workers:
    """The workers that a user means.

    Args:
        executor: A number of processes on this machine, the address of a Dask scheduler
            (`tcp://...`), a Dask client, or anything with `submit` or `map`.
    """
    if isinstance(executor, Workers):
        return executor
    if isinstance(executor, int):
        return ProcessWorkers(checks.integer("executor", executor, 1))
    if isinstance(executor, str):
        return _dask_at(executor)
    if type(executor).__module__.partition(".")[0] == "distributed" and _has(executor, "nthreads"):
        return DaskWorkers(executor)
    if _has(executor, "submit"):
        return Workers(executor)
    if _has(executor, "map"):
        return MappedWorkers(executor)
    raise ValueError(
        "executor must be a number of processes, the address of a Dask scheduler, or have submit "
        f"or map, got {checks.shortened(executor)}"
    )


@contextmanager
def opened(executor: Any) -> Iterator[Workers | None]:
    """The workers that a user means for the length of a block; None for None."""
    if executor is None:
        yield None
        return
    workers = as_workers(executor)
    try:
        yield workers
    finally:
        workers.close()


def _dask_at(address: str) -> DaskWorkers:
    """Connect to a Dask scheduler."""
    if "://" not in address:
        raise ValueError(
            f"executor must be the address of a Dask scheduler, as tcp://host:8786, got {address!r}"
        )
    try:
        import distributed
    except ImportError:
        raise ValueError(f"executor {address!r} needs Dask: pip install 'msign[dask]'") from None
    try:
        return DaskWorkers(distributed.Client(address, timeout=DASK_TIMEOUT), own=True)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"executor must be the address of a Dask scheduler that answers, got {address!r}: "
            f"{_in_words(error)}"
        ) from None


def _has(value: Any, method: str) -> bool:
    return callable(getattr(value, method, None))


def _in_words(error: BaseException) -> str:
    """An error on one line."""
    return _shortened(f"{type(error).__name__}: {error}")


def _shortened(text: str) -> str:
    return checks.shortened(text, 200)[1:-1]
