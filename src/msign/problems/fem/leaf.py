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

import functools
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import types

from msign.problems.fem.simd import (
    LANES,
    VECTOR,
    emit_call,
    emit_fill,
    emit_pointer,
    vector_intrinsic,
)

_TILE = 4 if LANES == 8 else 3  # side of the register tiles: 32 registers or 16

LEAF = (4, 8)
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

_ORDER = {node: number for number, node in enumerate((*PIVOTS, *BOUNDARY))}


def _later(row: Node, column: Node) -> bool:
    return _ORDER[row] > _ORDER[column]


FACTOR_LENGTH = sum(2 + len(rows) for rows in COLUMNS.values())


class _Code:
    """Lane vectors in LLVM code."""

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
        """The integer number ``index`` at ``address``."""
        base = self.builder.inttoptr(address, self.integer.as_pointer())
        place = self.builder.gep(base, [self.integer(index)], source_etype=self.integer)
        return self.builder.load(place, typ=self.integer)

    def place(self, stride: Any, node: Node) -> Any:
        """The number of a node or cell in a lattice with rows of length ``stride``."""
        row = self.builder.mul(stride, self.integer(node[0]))
        return self.builder.add(row, self.integer(node[1]))

    def constant(self, number: float) -> Any:
        return ir.Constant(VECTOR, [number] * VECTOR.count)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return emit_call(self.builder, "fmuladd", a, b, c)

    def barrier(self) -> None:
        """Let no value stay in a register, and no access to memory be moved, across this point."""
        kind = ir.FunctionType(ir.VoidType(), [])
        self.builder.call(ir.InlineAsm(kind, "", "~{memory}", side_effect=True), [])

    def _pointer(self, address: Any, index: int | Any) -> Any:
        index = self.integer(index) if isinstance(index, int) else index
        return emit_pointer(self.builder, address, index)


def _cell_weights() -> dict[tuple[Node, Node], list[tuple[Node, float]]]:
    """The cells that connect two nodes, and ``w`` for a coefficient of one in each."""
    found: dict[tuple[Node, Node], list[tuple[Node, float]]] = {}
    for i in range(LEAF[0]):
        for j in range(LEAF[1]):
            a, b, c, d = (i, j), (i + 1, j), (i + 1, j + 1), (i, j + 1)
            for one, other, weight in (
                (a, b, 1 / 6), (b, c, 1 / 6), (c, d, 1 / 6), (d, a, 1 / 6),
                (a, c, 1 / 3), (b, d, 1 / 3),
            ):  # fmt: skip
                found.setdefault((one, other), []).append(((i, j), weight))
                found.setdefault((other, one), []).append(((i, j), weight))
    return found


_CELL_WEIGHTS = _cell_weights()


def _factor_places() -> dict[tuple[Node, Node], int]:
    """Where ``m[row, pivot]`` is in a leaf's factor, ``d[pivot]`` as ``[pivot, pivot]``."""
    places: dict[tuple[Node, Node], int] = {}
    place = 0
    for pivot, rows in COLUMNS.items():
        for number, row in enumerate((pivot, *rows)):
            places[row, pivot] = place + 1 + number
        place += 2 + len(rows)
    return places


_PLACES = _factor_places()


@vector_intrinsic
def eliminate_leaf(typingctx, cells, side, load, factor, update, places):  # type: ignore[no-untyped-def]
    """Factorise a leaf and forward-substitute the load.

    Values go through memory (`_Code.barrier`): with hundreds of them in one stretch of code, LLVM
    would move more numbers to and from its stack than there are operations.

    All arguments but ``side``, the cells along a side of the lattice, are addresses: of the
    coefficient of the leaf's first cell, of the load at its first node, of the factor and the
    update, and of the places in the update of `PAIRS` and of the loads of `BOUNDARY`.
    """

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        cells, side, load, factor, update, places = args
        code = _Code(builder)
        nodes = builder.add(side, code.integer(1))

        def connection(row: Node, column: Node, sign: int) -> Any:
            """``sign * w`` of two nodes before any elimination; None for zero."""
            found = _CELL_WEIGHTS.get((row, column))
            if found is None:
                return None
            values = [code.load(cells, code.place(side, cell)) for cell, _ in found]
            total = values[0] if len(values) == 1 else builder.fadd(*values)
            return builder.fmul(total, code.constant(sign * found[0][1]))

        def block(
            rows: Sequence[Node], columns: Sequence[Node], before: Sequence[Node], sign: int
        ) -> dict[tuple[Node, Node], Any]:
            """``sign * w`` of all these nodes after the pivots before them."""
            pairs = [(row, column) for row in rows for column in columns if _later(row, column)]
            w = {pair: connection(*pair, sign) for pair in pairs}
            for pivot in before:
                m = {
                    node: code.load(factor, _PLACES[node, pivot])
                    for node in {*rows, *columns}
                    if (node, pivot) in _PLACES
                }
                for row, column in pairs:
                    if row in m and column in m:
                        one = m[row] if sign > 0 else builder.fneg(m[row])
                        value = w[row, column]
                        if value is None:
                            w[row, column] = builder.fmul(one, m[column])
                        else:
                            w[row, column] = code.fma(one, m[column], value)
            return w

        def substituted(node: Node, before: Sequence[Node], value: Any) -> Any:
            for pivot in before:
                if (node, pivot) in _PLACES:
                    m = code.load(factor, _PLACES[node, pivot])
                    value = code.fma(m, code.load(factor, _PLACES[pivot, pivot] - 1), value)
            return value

        for number, (pivot, rows) in enumerate(COLUMNS.items()):
            before = [q for q in PIVOTS[:number] if (pivot, q) in _PLACES]
            w = block(rows, [pivot], before, 1)
            total = functools.reduce(builder.fadd, w.values())
            d = emit_call(builder, "sqrt", builder.fdiv(code.constant(1.0), total))
            b = substituted(pivot, before, code.spread(load, code.place(nodes, pivot)))
            code.store(factor, _PLACES[pivot, pivot] - 1, builder.fmul(b, d))
            code.store(factor, _PLACES[pivot, pivot], d)
            for row in rows:
                code.store(factor, _PLACES[row, pivot], builder.fmul(w[row, pivot], d))
            code.barrier()

        tiles = [BOUNDARY[k : k + _TILE] for k in range(0, len(BOUNDARY), _TILE)]
        numbers = {pair: number for number, pair in enumerate(PAIRS)}
        for k in range(len(tiles)):
            for columns in tiles[: k + 1]:
                for pair, value in block(tiles[k], columns, PIVOTS, -1).items():
                    code.store(update, code.peek(places, numbers[pair]), value)
                code.barrier()
        for number, node in enumerate(BOUNDARY):
            value = substituted(node, PIVOTS, code.constant(0.0))
            code.store(update, code.peek(places, len(PAIRS) + number), value)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 6), codegen


@vector_intrinsic
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


@vector_intrinsic
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
