"""A forward map and its derivative spread over workers: pieces of a batch, results in their order.

How many fields a piece has is decided by the simulator: few enough that all workers have work and
that little is lost with one of them, enough that sending them takes little of the time. Fields and
gradients are sent in the precision of JAX here, which is single unless the user says otherwise; the
simulator is given, and computes, double precision.
"""

import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jaxtyping import ArrayLike

from msign.lending import Arrays
from msign.noise import default_dtype
from msign.on_worker import Answer, Shipped
from msign.problems.at_scale import Cotangents, ScaleModel, stacked
from msign.problems.failures import SimulationRaised
from msign.problems.workers import Workers

PIECES_PER_WORKER = 4  # of a batch: the last ones even out what the first took longer
LEAST_SECONDS, MOST_SECONDS = 0.1, 10.0  # that a piece should take
MOST_BYTES = 8 << 20  # of the fields of a piece; Dask warns of 10 MB


class SpreadFunction:
    """A function of batches, called on pieces of them by workers.

    Args:
        function: Of arrays whose first axis is the batch (or of whole objects, see `whole`).
        workers: Who calls it.
        limit: Most fields of a piece.
    """

    def __init__(self, function: Callable[..., Any], workers: Workers, limit: int):
        self.function, self.workers, self.limit = Shipped(function), workers, limit
        self.seconds_per_field: float | None = None

    def __call__(self, *batch: ArrayLike, whole: Arrays = ()) -> tuple[np.ndarray, ...]:
        """What the function returns of the batch; `whole` arguments go with every piece."""
        rows, answers = self.answers(tuple(np.asarray(a) for a in batch), whole)
        for own, answer in zip(rows, answers, strict=True):
            _raise_if_raised(own, answer)
        return _joined([answer.values for answer in answers])

    def rows(self, x: np.ndarray) -> list[np.ndarray | None]:
        """What the function returns for each field; None for those for which it raises alone."""
        found: list[np.ndarray | None] = [None] * len(x)
        alone: list[int] = []
        for own, answer in zip(*self.answers((x,)), strict=True):
            if answer.values is not None:
                found[own] = list(answer.values[0][:, None])
            else:
                alone += range(own.start, own.stop)
        pieces = [(x[i : i + 1],) for i in alone]
        for i, answer in zip(alone, self.workers.answers(self.function, pieces), strict=True):
            found[i] = None if answer.values is None else answer.values[0]
        return found

    def answers(
        self, batch: tuple[np.ndarray, ...], whole: Arrays = ()
    ) -> tuple[list[slice], list[Answer]]:
        """Pieces of the batch, and the answer to each."""
        rows = list(self._pieces(len(batch[0]), batch[0].nbytes))
        pieces = [(*(a[own] for a in batch), *whole) for own in rows]
        answers = self.workers.answers(self.function, pieces)
        done = [i for i, answer in enumerate(answers) if answer.values is not None]
        if done:
            fields = sum(rows[i].stop - rows[i].start for i in done)
            self.seconds_per_field = sum(answers[i].seconds for i in done) / fields
        return rows, answers

    def _pieces(self, n: int, size: int) -> Iterator[slice]:
        """Consecutive rows of a batch of n fields, which takes `size` bytes."""
        fields = -(-n // (PIECES_PER_WORKER * self.workers.count()))
        if self.seconds_per_field:
            least, most = (s / self.seconds_per_field for s in (LEAST_SECONDS, MOST_SECONDS))
            fields = int(np.clip(fields, least, max(1, most)))
        fields = max(1, min(fields, self.limit, MOST_BYTES * n // max(size, 1)))
        count = -(-n // fields)
        ends = [n * i // count for i in range(count + 1)]
        return (slice(a, b) for a, b in itertools.pairwise(ends))


def spread_over(model: ScaleModel, workers: Workers, limit: int, tolerant: bool) -> ScaleModel:
    """The model of a scale whose forward map and derivative are evaluated by workers.

    Args:
        model: Of a forward map that is not JAX code.
        workers: Who evaluates it.
        limit: Most fields of a call.
        tolerant: Whether a field whose simulation raises gets observations of NaN.
    """
    spread, precision = copy.copy(model), default_dtype()
    spread.given = np.asarray  # workers make them double
    forward = SpreadFunction(model.forward, workers, limit)

    def forward_or_nan(x: ArrayLike) -> np.ndarray:
        return stacked(forward.rows(np.asarray(x)), model.layout.shape)

    def forward_or_raise(x: ArrayLike) -> np.ndarray:
        return forward(x)[0]

    spread.forward = forward_or_nan if tolerant else forward_or_raise
    if model.vjp is not None:
        vjp = SpreadFunction(functools.partial(_rounded, model.vjp, precision), workers, limit)
        spread.vjp = lambda x, cotangents: vjp(x, cotangents)[0]
    if model.both is not None:
        both = SpreadFunction(functools.partial(_rounded, model.both, precision), workers, limit)

        def forward_and_vjp(x: np.ndarray, cotangents: Cotangents) -> tuple[np.ndarray, np.ndarray]:
            observed, gradient = both(x, whole=(Shipped(cotangents),))
            return observed, gradient

        spread.both = forward_and_vjp
    return spread


def _rounded(function: Callable[..., Any], precision: np.dtype, *arguments: Any) -> Any:
    """What a derivative returns, its gradients rounded on the worker as they would be here."""
    found = function(*arguments)
    if not isinstance(found, tuple):
        return np.asarray(found, precision)
    return *found[:-1], np.asarray(found[-1], precision)


def _raise_if_raised(rows: slice, answer: Answer) -> None:
    if answer.values is None:
        error = SimulationRaised(answer.error, rows)
        if answer.trace:
            error.add_note(f"on a worker:\n{answer.trace}")
        raise error


def _joined(parts: list[tuple[np.ndarray, ...] | None]) -> tuple[np.ndarray, ...]:
    """Columns of pieces, one behind the other."""
    columns = zip(*(part for part in parts if part is not None), strict=True)
    return tuple(np.concatenate([np.atleast_1d(a) for a in column]) for column in columns)
