"""The elliptic solver: -div(e^x grad u) = f on the unit square, for many fields x at once."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from msign.problems.fem.dissection import CORNERS, plan_factorisation
from msign.problems.fem.passes import Weights, Workspace, adjoint_pass, forward_pass
from msign.problems.fem.simd import LANES
from msign.problems.fem.traceable import traceable

Load = ArrayLike | Callable[[np.ndarray, np.ndarray], ArrayLike]
Cotangent = ArrayLike | Callable[[np.ndarray, slice], ArrayLike]

_LARGEST = 300.0
_BLOCK_BYTES = 4 << 20


class EllipticSolver:
    """Finite elements for ``-div(e^x grad u) = f`` on the unit square, ``u = 0`` on its edge.

    Bilinear elements on ``size x size`` square cells, ``x`` constant on each. Fields are arrays
    ``(size, size)`` or batches ``(n, size, size)``; axis order is ``(s1, s2)``. Everything is
    direct and in double precision: one sparse Cholesky factorisation a field, vectorised over
    fields, spread over threads. Numbers do not depend on the batch or on the number of threads.

    Cost a field grows like ``size**3``, memory like ``size**2 log(size)`` a thread plus the input
    and output.

    Args:
        size: Number of cells along each side, at least 2.
        load: The right-hand side, either a function ``f(s1, s2)`` of coordinate arrays, or an array
            ``(size + 1, size + 1)`` of f at the nodes times ``1 / size**2``. The edge is ignored.
        observations: Weights ``(m, size, size)``: observation k is the sum over cells of weight
            times the mean of u over the cell's four corners.
        threads: Number of threads; all available cores by default.

    Example:
        >>> weights = np.full((1, 16, 16), 1 / 16**2)
        >>> solver = EllipticSolver(16, lambda s1, s2: np.ones_like(s1), weights)
        >>> solver.observe(np.zeros((3, 16, 16))).shape
        (3, 1)
    """

    def __init__(
        self, size: int, load: Load, observations: ArrayLike, threads: int | None = None
    ) -> None:
        if size < 2:
            raise ValueError(f"size must be at least 2, got {size}")
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        self.size = size
        self.threads = threads or _available_cores()
        self._load = _nodal_load(load, size)
        self._weights = _nodal_weights(observations, size)
        self._plan, _, self._memory_length = plan_factorisation(size)
        self._block = max(1, _BLOCK_BYTES // (8 * LANES * self._memory_length))  # in chunks
        self._idle: list[Workspace] = []

    def __getstate__(self) -> dict[str, Any]:
        """State to copy and pickle: without working memory and the JAX function."""
        state = {**self.__dict__, "_idle": []}
        state.pop("jax_observe", None)
        return state

    def __repr__(self) -> str:
        return f"EllipticSolver(size={self.size}, observations={self.n_observations})"

    @property
    def n_observations(self) -> int:
        """Number m of observations."""
        return len(self._weights.starts) - 1

    def solve(self, x: ArrayLike) -> np.ndarray:
        """The solution u at the nodes, ``(n, size + 1, size + 1)``, or without n for one field."""
        fields, single = self._check_fields(x)
        u = np.empty((len(fields), (self.size + 1) ** 2))

        def work(rows: slice, space: Workspace) -> None:
            self._forward(fields[rows], space)
            lanes = space.u[:, :-1].transpose(0, 2, 1).reshape(-1, u.shape[1])
            u[rows] = lanes[: len(u[rows])]

        self._run(len(fields), work)
        grids = u.reshape(-1, self.size + 1, self.size + 1)
        return grids[0] if single else grids

    def observe(self, x: ArrayLike) -> np.ndarray:
        """The observations of the solution, ``(n, m)``, or ``(m,)`` for one field."""
        fields, single = self._check_fields(x)
        observed = np.empty((len(fields), self.n_observations))

        def work(rows: slice, space: Workspace) -> None:
            observed[rows] = self._forward(fields[rows], space)

        self._run(len(fields), work)
        return observed[0] if single else observed

    def vjp(self, x: ArrayLike, cotangent: ArrayLike) -> np.ndarray:
        """Gradient with respect to x of the sum of ``cotangent * observe(x)``, shaped like x."""
        return self.observe_and_vjp(x, cotangent)[1]

    def observe_and_vjp(self, x: ArrayLike, cotangent: Cotangent) -> tuple[np.ndarray, np.ndarray]:
        """Observations and gradient from one factorisation a field.

        Args:
            x: Fields.
            cotangent: Either an array like the observations, or a function that makes it from them:
                ``cotangent(observed, rows)`` is called with the observations ``(k, m)`` of
                consecutive fields, ``rows`` the slice of the batch they belong to, and returns an
                array of the same shape. It is called for a few fields at a time, while their
                factors are in memory, from several threads and in any order. So the gradient of
                a misfit needs no second factorisation:

                    misfit_gradient = lambda observed, rows: (observed - data) / noise**2

        Returns:
            Observations ``(n, m)`` and gradient ``(n, size, size)``; without n for one field.
        """
        fields, single = self._check_fields(x)
        shape = (len(fields), self.n_observations)
        if callable(cotangent):
            pull = cotangent
        else:
            given = np.asarray(cotangent, float)
            wanted = shape[1:] if single else shape
            if given.shape != wanted:
                raise ValueError(f"cotangent must have shape {wanted}, got {given.shape}")
            given = given.reshape(shape)
            pull = lambda observed, rows: given[rows]  # noqa: E731
        observed = np.empty(shape)
        gradient = np.empty(fields.shape)

        def work(rows: slice, space: Workspace) -> None:
            observed[rows] = self._forward(fields[rows], space)
            back = np.ascontiguousarray(pull(observed[rows], rows), float)
            if back.shape != observed[rows].shape:
                raise ValueError(
                    f"cotangent must return shape {observed[rows].shape}, got {back.shape}"
                )
            adjoint_pass(self._plan, self.size, back, self._weights, space, gradient[rows])

        self._run(len(fields), work)
        grids = gradient.reshape(-1, self.size, self.size)
        return (observed[0], grids[0]) if single else (observed, grids)

    @cached_property
    def jax_observe(self) -> Callable[[jax.Array], jax.Array]:
        """`observe` as a JAX function: works inside ``jit``, ``vmap`` and (in reverse) ``grad``.

        Takes any leading axes. A derivative factorises a second time; where both value and
        derivative are wanted and the caller is not traced, `observe_and_vjp` is cheaper.
        """
        return traceable(self.observe, self.vjp, self.size, self.n_observations)

    def _forward(self, x: np.ndarray, space: Workspace) -> np.ndarray:
        observed = np.empty((len(x), self.n_observations))
        forward_pass(self._plan, self._load, x, self._weights, space, observed)
        return observed

    def _run(self, fields: int, work: Callable[[slice, Workspace], None]) -> None:
        """Do the ``work`` on slices of the batch, each with a workspace of its own."""
        chunks = -(-fields // LANES)
        step = LANES * min(self._block, max(1, -(-chunks // self.threads)))
        blocks = [slice(first, min(first + step, fields)) for first in range(0, fields, step)]

        def task(rows: slice) -> None:
            try:
                space = self._idle.pop()
            except IndexError:
                space = self._new_workspace()
            try:
                work(rows, space)
            finally:
                self._idle.append(space)

        _for_each(blocks, task, self.threads)

    def _new_workspace(self) -> Workspace:
        return Workspace.allocate(self._block, self.size, self._memory_length, self.n_observations)

    def _check_fields(self, x: ArrayLike) -> tuple[np.ndarray, bool]:
        """Fields as ``(n, cells)`` in double precision, and whether a single one was given."""
        fields = np.asarray(x)
        if fields.dtype.kind not in "fiub":
            raise ValueError(f"x must hold real numbers, got {fields.dtype}")
        if fields.ndim not in (2, 3) or fields.shape[-2:] != (self.size, self.size):
            raise ValueError(
                f"x must have shape (n, {self.size}, {self.size}) or ({self.size}, {self.size}), "
                f"got {fields.shape}"
            )
        single = fields.ndim == 2
        fields = np.ascontiguousarray(fields, float).reshape(-1, self.size**2)
        if fields.size and not max(fields.max(), -fields.min()) <= _LARGEST:  # false if NaN
            index = int(np.argmin((np.abs(fields) <= _LARGEST).all(axis=1)))
            found = "NaN" if np.isnan(fields[index]).any() else "a value too large for e^x"
            raise ValueError(f"x has {found} in field {index}; |x| must be at most {_LARGEST:g}")
        return fields, single


def _available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _for_each(blocks: Sequence[slice], task: Callable[[slice], None], threads: int) -> None:
    threads = min(threads, len(blocks))
    if threads <= 1:
        for rows in blocks:
            task(rows)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(task, blocks):
            pass


def _nodal_load(load: Load, size: int) -> np.ndarray:
    """The load at all nodes, zero on the edge of the square."""
    if callable(load):
        s = np.arange(size + 1) / size
        f = np.asarray(load(*np.meshgrid(s, s, indexing="ij")), float)
        nodal = np.broadcast_to(f, (size + 1, size + 1)) / size**2
    else:
        nodal = np.asarray(load, float)
    if nodal.shape != (size + 1, size + 1):
        raise ValueError(f"load must have shape {(size + 1, size + 1)}, got {nodal.shape}")
    inside = nodal[1:-1, 1:-1]
    if not np.isfinite(inside).all():
        raise ValueError("load must be finite")
    return np.pad(inside, 1).ravel()


def _nodal_weights(observations: ArrayLike, size: int) -> Weights:
    """Weights on cells as sparse weights on the nodes inside the square."""
    cells = np.asarray(observations, float)
    if cells.ndim != 3 or cells.shape[1:] != (size, size):
        raise ValueError(f"observations must have shape (m, {size}, {size}), got {cells.shape}")
    if not np.isfinite(cells).all():
        raise ValueError("observations must be finite")
    nodal = np.zeros((len(cells), size + 1, size + 1))
    for i, j in CORNERS:
        nodal[:, i : i + size, j : j + size] += cells / 4
    nodal[:, [0, -1]] = nodal[:, :, [0, -1]] = 0
    rows = nodal.reshape(len(cells), (size + 1) ** 2)
    k, nodes = np.nonzero(rows)
    return Weights(np.searchsorted(k, np.arange(len(cells) + 1)), nodes, rows[k, nodes])
