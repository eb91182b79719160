"""The elimination of one leaf as straight-line code, ``LANES`` fields at a time.

A leaf is a rectangle of cells (`LEAF`): its pivots are the nodes inside, its boundary the nodes
around them. Which entries of its matrix are zero, and stay zero, is known before it is compiled,
and only the others are computed: a third of the operations of a dense front, and no loops.

The matrix is that of the leaf's cells alone. Its rows sum to zero, so that its diagonal is minus
the rest of the column (see `kernels`), and all is written in the positive numbers ``w = -a`` off
the diagonal: pivot p adds ``m[r, p] m[c, p]`` to ``w[r, c]``, with ``m[r, p] = w[r, p] d[p]`` and
``d[p] = 1 / sqrt(sum(w[:, p]))``. Nodes on the edge of the square are boundary nodes like others
here; whoever reads the update turns what is left of them into excess.

In memory a leaf's factor is, pivot after pivot, the substituted load, ``d[p]`` and the column of m.
"""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.extending import intrinsic

from msign.problems.fem.simd import VECTOR, emit_call, emit_fill, emit_pointer

LEAF = (4, 4)
"""Cells along both sides of a leaf."""

Node = tuple[int, int]


def _columns(sides: tuple[int, int]) -> dict[Node, list[Node]]:
    """The pivots in order of elimination (least degree first), and what each is connected to."""
    nodes = [(i, j) for i in range(sides[0] + 1) for j in range(sides[1] + 1)]
    near = {
        a: {b for b in nodes if a != b and max(abs(a[0] - b[0]), abs(a[1] - b[1])) == 1}
        for a in nodes
    }
    columns: dict[Node, list[Node]] = {}
    while inside := [a for a in near if 0 < a[0] < sides[0] and 0 < a[1] < sides[1]]:
        pivot = min(inside, key=lambda a: len(near[a]))
        rows = near.pop(pivot)
        for row in rows:
            near[row] = (near[row] | rows) - {pivot, row}
        columns[pivot] = sorted(rows)
    return columns


COLUMNS = _columns(LEAF)
PIVOTS = tuple(COLUMNS)
BOUNDARY: tuple[Node, ...] = tuple(
    (i, j)
    for i in range(LEAF[0] + 1)
    for j in range(LEAF[1] + 1)
    if i in (0, LEAF[0]) or j in (0, LEAF[1])
)
PAIRS = tuple((BOUNDARY[r], BOUNDARY[c]) for r in range(len(BOUNDARY)) for c in range(r))
"""What a leaf leaves behind: ``-w`` of these pairs of boundary nodes; then the load of each."""

FACTOR_LENGTH = sum(2 + len(rows) for rows in COLUMNS.values())


class _Code:
    """A builder of LLVM code with lane vectors; ``stride`` is the length of a row of the lattice."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self.integer = ir.IntType(64)

    def load(self, address: Any, index: int | Any) -> Any:
        return self.builder.load(self._pointer(address, index), align=8, typ=VECTOR)

    def store(self, address: Any, index: int | Any, value: Any) -> None:
        self.builder.store(value, self._pointer(address, index), align=8)

    def spread(self, address: Any, index: Any) -> Any:
        """The double number ``index`` at ``address`` in all lanes."""
        kind = ir.DoubleType()
        base = self.builder.inttoptr(address, kind.as_pointer())
        place = self.builder.gep(base, [index], source_etype=kind)
        return emit_fill(self.builder, self.builder.load(place, typ=kind))

    def peek(self, address: Any, index: int) -> Any:
        base = self.builder.inttoptr(address, self.integer.as_pointer())
        place = self.builder.gep(base, [self.integer(index)], source_etype=self.integer)
        return self.builder.load(place, typ=self.integer)

    def place(self, stride: Any, node: Node) -> Any:
        row = self.builder.mul(stride, self.integer(node[0]))
        return self.builder.add(row, self.integer(node[1]))

    def constant(self, number: float) -> Any:
        return ir.Constant(VECTOR, [number] * VECTOR.count)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return emit_call(self.builder, "fmuladd", a, b, c)

    def _pointer(self, address: Any, index: int | Any) -> Any:
        index = self.integer(index) if isinstance(index, int) else index
        return emit_pointer(self.builder, address, index)


def _connections(code: _Code, cells: Any, stride: Any) -> dict[tuple[Node, Node], Any]:
    """``w`` of all connected nodes, later node first or in the order of `BOUNDARY`."""
    builder = code.builder
    sixth: dict[Node, Any] = {}
    for i in range(LEAF[0]):
        for j in range(LEAF[1]):
            value = code.load(cells, code.place(stride, (i, j)))
            sixth[i, j] = builder.fmul(value, code.constant(1 / 6))
    w: dict[tuple[Node, Node], Any] = {}
    for (i, j), value in sixth.items():
        a, b, c, d = (i, j), (i + 1, j), (i + 1, j + 1), (i, j + 1)
        twice = builder.fadd(value, value)
        for one, other, weight in (
            (a, b, value), (b, c, value), (c, d, value), (d, a, value),
            (a, c, twice), (b, d, twice),
        ):  # fmt: skip
            key = _key(one, other)
            w[key] = builder.fadd(w[key], weight) if key in w else weight
    return w


_ORDER = {node: number for number, node in enumerate((*PIVOTS, *BOUNDARY))}


def _key(a: Node, b: Node) -> tuple[Node, Node]:
    return (a, b) if _ORDER[a] > _ORDER[b] else (b, a)


@intrinsic  # type: ignore[misc]
def eliminate_leaf(typingctx, cells, side, load, factor, update, places):  # type: ignore[no-untyped-def]
    """Factorise a leaf and forward-substitute the load.

    Args:
        cells: Address of the coefficient of the leaf's first cell.
        side: Cells along a side of the lattice.
        load: Address of the load at the leaf's first node.
        factor: Where the factor goes.
        update: Where the update goes.
        places: Address of the places in the update, of `PAIRS` and of the loads of `BOUNDARY`.
    """

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        cells, side, load, factor, update, places = args
        code = _Code(builder)
        nodes = builder.add(side, code.integer(1))
        w = _connections(code, cells, side)
        b = {pivot: code.spread(load, code.place(nodes, pivot)) for pivot in PIVOTS}
        m: dict[tuple[Node, Node], Any] = {}

        def eliminated(row: Node, column: Node) -> Any:
            """``w`` of two nodes after the pivots before both."""
            value = w.get((row, column))
            for pivot in PIVOTS[: _ORDER[column]]:
                if (row, pivot) in m and (column, pivot) in m:
                    x, y = m[row, pivot], m[column, pivot]
                    value = builder.fmul(x, y) if value is None else code.fma(x, y, value)
            return value

        place = 0
        y: dict[Node, Any] = {}
        for pivot, rows in COLUMNS.items():
            column = [eliminated(row, pivot) for row in rows]
            total = column[0]
            for value in column[1:]:
                total = builder.fadd(total, value)
            d = emit_call(builder, "sqrt", builder.fdiv(code.constant(1.0), total))
            for before in PIVOTS[: _ORDER[pivot]]:
                if (pivot, before) in m:
                    b[pivot] = code.fma(m[pivot, before], y[before], b[pivot])
            y[pivot] = builder.fmul(b[pivot], d)
            code.store(factor, place, y[pivot])
            code.store(factor, place + 1, d)
            for number, (row, value) in enumerate(zip(rows, column, strict=True)):
                m[row, pivot] = builder.fmul(value, d)
                code.store(factor, place + 2 + number, m[row, pivot])
            place += 2 + len(rows)

        for number, (row, other) in enumerate(PAIRS):
            value = eliminated(row, other)
            value = builder.fsub(code.constant(0.0), value)
            code.store(update, code.peek(places, number), value)
        for number, row in enumerate(BOUNDARY):
            value = code.constant(0.0)
            for pivot in PIVOTS:
                if (row, pivot) in m:
                    value = code.fma(m[row, pivot], y[pivot], value)
            code.store(update, code.peek(places, len(PAIRS) + number), value)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 6), codegen


@intrinsic  # type: ignore[misc]
def substitute_leaf_forward(typingctx, factor, nodal, side):  # type: ignore[no-untyped-def]
    """Replace the load in a leaf's factor by that at ``nodal``, the address of its first node."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        factor, nodal, side = args
        code = _Code(builder)
        nodes = builder.add(side, code.integer(1))
        places = {node: code.place(nodes, node) for node in (*PIVOTS, *BOUNDARY)}
        b = {node: code.load(nodal, place) for node, place in places.items()}
        place = 0
        for pivot, rows in COLUMNS.items():
            y = builder.fmul(b[pivot], code.load(factor, place + 1))
            code.store(factor, place, y)
            for number, row in enumerate(rows):
                b[row] = code.fma(code.load(factor, place + 2 + number), y, b[row])
            place += 2 + len(rows)
        for node in BOUNDARY:
            code.store(nodal, places[node], b[node])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 3), codegen


@intrinsic  # type: ignore[misc]
def substitute_leaf_backward(typingctx, factor, nodal, side):  # type: ignore[no-untyped-def]
    """Solve for the nodes inside a leaf, given those around it."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        factor, nodal, side = args
        code = _Code(builder)
        nodes = builder.add(side, code.integer(1))
        u = {node: code.load(nodal, code.place(nodes, node)) for node in BOUNDARY}
        place = FACTOR_LENGTH
        for pivot, rows in reversed(COLUMNS.items()):
            place -= 2 + len(rows)
            value = code.load(factor, place)
            for number, row in enumerate(rows):
                value = code.fma(code.load(factor, place + 2 + number), u[row], value)
            u[pivot] = builder.fmul(value, code.load(factor, place + 1))
            code.store(nodal, code.place(nodes, pivot), u[pivot])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 3), codegen
