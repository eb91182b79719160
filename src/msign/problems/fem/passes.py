"""The forward and the adjoint pass over a block of fields.

A block is a few *chunks* of ``LANES`` fields. It is passed through forward, observed, and (if a
gradient is wanted) passed through backward while its factors are still there. What must live from
one pass to the other is in its :class:`Workspace`; a thread re-uses one for block after block, so
memory does not grow with the number of fields.
"""

from typing import NamedTuple

import numpy as np

from msign.problems.fem.compilation import kernel
from msign.problems.fem.dissection import Plan
from msign.problems.fem.kernels import factorise
from msign.problems.fem.simd import LANES, aligned, exp, fill, fma, load, store
from msign.problems.fem.substitution import substitute_backward, substitute_forward

_STRIP = 64  # cells whose lane vectors stay in the first cache while they are filled


class Workspace(NamedTuple):
    """Memory for a block of chunks; all arrays end with an axis of ``LANES`` fields."""

    coefficient: np.ndarray  # (chunks, cells, LANES) e^x
    factor: np.ndarray  # (chunks, memory_length, LANES) see `kernels`
    u: np.ndarray  # (chunks, nodes + 1, LANES) the solution; the last node is spare
    adjoint: np.ndarray  # (nodes + 1, LANES) the adjoint solution of one chunk
    observed: np.ndarray  # (observations, LANES) of one chunk

    @staticmethod
    def allocate(chunks: int, size: int, memory_length: int, observations: int) -> "Workspace":
        """A workspace for blocks of at most ``chunks``; zero where the boundary values are."""
        nodes = (size + 1) ** 2
        return Workspace(
            aligned(chunks, size**2),
            aligned(chunks, memory_length),
            aligned(chunks, nodes + 1),
            aligned(nodes + 1),
            aligned(observations),
        )


class Weights(NamedTuple):
    """Observations as sparse weights on nodes: ``starts[k]`` to ``starts[k + 1]`` is row k."""

    starts: np.ndarray
    nodes: np.ndarray
    values: np.ndarray


@kernel
def forward_pass(
    plan: Plan, nodal_load: np.ndarray, x: np.ndarray, weights: Weights, work: Workspace,
    observations: np.ndarray,
) -> None:  # fmt: skip
    """Solve for fields ``x`` (fields, cells) and write their ``observations`` (fields, m).

    The last chunk is filled up with copies of the last field.
    """
    fields, cells = x.shape
    observed = work.observed.ctypes.data
    for chunk in range(-(-fields // LANES)):
        coefficient = work.coefficient[chunk].ctypes.data
        for begin in range(0, cells, _STRIP):
            end = min(begin + _STRIP, cells)
            for lane in range(LANES):
                field = min(chunk * LANES + lane, fields - 1)
                for cell in range(begin, end):
                    work.coefficient[chunk, cell, lane] = x[field, cell]
            for cell in range(begin, end):
                store(coefficient, cell, exp(load(coefficient, cell)))

        factor, u = work.factor[chunk].ctypes.data, work.u[chunk].ctypes.data
        factorise(plan, factor, coefficient, nodal_load)
        substitute_backward(plan, factor, u)

        for k in range(observations.shape[1]):
            total = fill(0.0)
            for t in range(weights.starts[k], weights.starts[k + 1]):
                total = fma(fill(weights.values[t]), load(u, weights.nodes[t]), total)
            store(observed, k, total)
        for lane in range(min(LANES, fields - chunk * LANES)):
            for k in range(observations.shape[1]):
                observations[chunk * LANES + lane, k] = work.observed[k, lane]


@kernel
def adjoint_pass(
    plan: Plan, size: int, cotangent: np.ndarray, weights: Weights, work: Workspace,
    gradient: np.ndarray,
) -> None:  # fmt: skip
    """Pull ``cotangent`` (fields, m) back to a ``gradient`` with respect to x (fields, cells).

    With ``A(x) u = load`` and ``A p = transpose(C) cotangent``, the derivative in a cell is
    ``-e^x transpose(p) K u`` over the cell's corners, K the element's stiffness matrix. Uses the
    factors and solutions that `forward_pass` left; uses up the coefficients.
    """
    fields = len(cotangent)
    observed, p = work.observed.ctypes.data, work.adjoint.ctypes.data
    for chunk in range(-(-fields // LANES)):
        for lane in range(LANES):
            field = min(chunk * LANES + lane, fields - 1)
            for k in range(cotangent.shape[1]):
                work.observed[k, lane] = cotangent[field, k]
        work.adjoint[:] = 0.0
        for k in range(cotangent.shape[1]):
            for t in range(weights.starts[k], weights.starts[k + 1]):
                node = weights.nodes[t]
                store(p, node, fma(fill(weights.values[t]), load(observed, k), load(p, node)))

        factor, u = work.factor[chunk].ctypes.data, work.u[chunk].ctypes.data
        substitute_forward(plan, factor, p)
        substitute_backward(plan, factor, p)

        coefficient = work.coefficient[chunk].ctypes.data
        for i in range(size):
            for j in range(size):
                cell, node = i * size + j, i * (size + 1) + j
                energy = _energy(u, p, node, node + size + 1, node + size + 2, node + 1)
                store(coefficient, cell, fill(-1 / 6) * load(coefficient, cell) * energy)
            for lane in range(min(LANES, fields - chunk * LANES)):
                for cell in range(i * size, (i + 1) * size):
                    gradient[chunk * LANES + lane, cell] = work.coefficient[chunk, cell, lane]


@kernel
def _energy(u, p, a, b, c, d):  # type: ignore[no-untyped-def]
    """``6 transpose(p) K u`` over the corners a, b, c, d of a cell, in order around it.

    Written in differences, edges once and diagonals twice: u hardly varies where e^x is large.
    """
    ua, ub, uc, ud = load(u, a), load(u, b), load(u, c), load(u, d)
    pa, pb, pc, pd = load(p, a), load(p, b), load(p, c), load(p, d)
    diagonals = (ua - uc) * (pa - pc) + (ub - ud) * (pb - pd)
    edges = (ua - ub) * (pa - pb) + (ub - uc) * (pb - pc)
    edges = edges + (uc - ud) * (pc - pd) + (ud - ua) * (pd - pa)
    return edges + diagonals + diagonals
