"""Triangular solves with the factor of `kernels`, ``LANES`` fields at a time.

Each reads the factor once; their time is the time that takes.
"""

from msign.problems.fem.compilation import kernel
from msign.problems.fem.dissection import TILE, Plan
from msign.problems.fem.leaf import substitute_leaf_backward, substitute_leaf_forward
from msign.problems.fem.simd import LANES, fill, fma, load, peek, store

_BYTES = 8 * LANES


@kernel
def substitute_forward(plan: Plan, memory: int, nodal: int) -> None:
    """Put ``inverse(L) b`` into the load rows of the factor; ``b`` at the nodes is used up."""
    for number in range(len(plan.fronts)):
        front = plan.fronts[number]
        pivots, first = front.pivots, front.nodes
        panel = memory + _BYTES * front.panel
        if front.places >= 0:
            substitute_leaf_forward(panel, nodal + _BYTES * front.corner, plan.size)
            store(nodal, 0, fill(0.0))  # padded pivots read it
            continue
        y = panel + _BYTES * ((pivots + front.boundary) * pivots)
        for c in range(pivots):
            row = panel + _BYTES * (c * pivots)
            s = load(nodal, plan.nodes[first + c])
            for k in range(c):
                s = s - load(row, k) * load(y, k)
            store(y, c, s * load(row, c))
        for r in range(pivots, pivots + front.boundary, TILE):
            row0 = panel + _BYTES * (r * pivots)
            row1, row2 = row0 + _BYTES * pivots, row0 + 2 * _BYTES * pivots
            s0 = s1 = s2 = fill(0.0)
            for k in range(pivots):
                yk = load(y, k)
                s0 = fma(load(row0, k), yk, s0)
                s1 = fma(load(row1, k), yk, s1)
                s2 = fma(load(row2, k), yk, s2)
            node = plan.nodes[first + r]  # rows beyond the boundary go to the spare node
            store(nodal, node, load(nodal, node) - s0)
            node = plan.nodes[first + r + 1]
            store(nodal, node, load(nodal, node) - s1)
            node = plan.nodes[first + r + 2]
            store(nodal, node, load(nodal, node) - s2)

    for k in range(plan.size + 1):  # leaves have added to the edge of the square, too
        store(nodal, k, fill(0.0))
        store(nodal, (plan.size + 1) * plan.size + k, fill(0.0))
        store(nodal, (plan.size + 1) * k, fill(0.0))
        store(nodal, (plan.size + 1) * k + plan.size, fill(0.0))


@kernel
def substitute_backward(plan: Plan, memory: int, nodal: int) -> None:
    """Solve ``transpose(L) u = y`` for nodal values ``u``; ``y`` in the load rows is used up."""
    for number in range(len(plan.fronts) - 1, -1, -1):
        front = plan.fronts[number]
        pivots, boundary = front.pivots, front.boundary
        panel = memory + _BYTES * front.panel
        if front.places >= 0:
            substitute_leaf_backward(panel, nodal + _BYTES * front.corner, plan.size)
            continue
        nodes = plan.nodes.ctypes.data + 8 * front.nodes
        extra = pivots + boundary
        y = panel + _BYTES * (extra * pivots)

        whole = extra - boundary % TILE
        for r in range(pivots, whole, TILE):
            u0 = load(nodal, peek(nodes, r))
            u1 = load(nodal, peek(nodes, r + 1))
            u2 = load(nodal, peek(nodes, r + 2))
            _subtract_rows(y, panel + _BYTES * (r * pivots), pivots, pivots, u0, u1, u2)
        for r in range(whole, extra):
            u0 = load(nodal, peek(nodes, r))
            for k in range(pivots):
                store(y, k, load(y, k) - load(panel, r * pivots + k) * u0)

        for c in range(pivots - TILE, -1, -TILE):
            row = panel + _BYTES * (c * pivots)
            corner = row + _BYTES * c
            u2 = load(y, c + 2) * load(corner, 2 * pivots + 2)
            u1 = load(y, c + 1) - load(corner, 2 * pivots + 1) * u2
            u1 = u1 * load(corner, pivots + 1)
            u0 = load(y, c) - load(corner, pivots) * u1 - load(corner, 2 * pivots) * u2
            u0 = u0 * load(corner, 0)
            store(nodal, peek(nodes, c), u0)
            store(nodal, peek(nodes, c + 1), u1)
            store(nodal, peek(nodes, c + 2), u2)
            _subtract_rows(y, row, pivots, c, u0, u1, u2)


@kernel
def _subtract_rows(y, row, stride, count, u0, u1, u2):  # type: ignore[no-untyped-def]
    """Subtract multiples of three rows of the factor from the first ``count`` entries of ``y``."""
    row1, row2 = row + _BYTES * stride, row + 2 * _BYTES * stride
    for k in range(count):
        s = load(y, k) - load(row, k) * u0 - load(row1, k) * u1 - load(row2, k) * u2
        store(y, k, s)
