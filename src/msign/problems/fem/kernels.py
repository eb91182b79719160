"""The multifrontal Cholesky factorisation, ``LANES`` fields at a time.

Memory is one array of lane vectors: the panels of the factor, then the fronts' updates (places are
in the `Plan`). The panel of a front holds, row by row, the columns of its pivots: ``L11`` (with the
inverse of its diagonal), then ``L21`` for the boundary, then the load row, which becomes
``inverse(L) load``, then the excess row.

**No subtraction.** On squares the bilinear stiffness matrix has no positive entry off its diagonal,
whatever the coefficient, and elimination keeps it so. Off the diagonal, updates therefore only add
numbers of one sign. The diagonal, where ordinary Cholesky cancels, is never updated: it is rebuilt
when needed as minus the sum of the rest of its column plus the *excess* (the row sum of the matrix,
the pull of the Dirichlet boundary), which is carried along as one more row and also only grows
(Grassmann, Taksar and Heyman's algorithm for Markov chains). So pivots are positive and the factor
is accurate entry by entry for every finite coefficient, however large its jumps.

Leaves of `leaf.LEAF` cells do not come here: they are straight-line code (`leaf`). Of the rest, the
products of large fronts run at the processor's peak; a fifth of the time goes into moving updates
between fronts.
"""

import numpy as np

from msign.problems.fem.compilation import kernel
from msign.problems.fem.dissection import TILE, Plan
from msign.problems.fem.leaf import eliminate_leaf
from msign.problems.fem.simd import LANES, fill, fma, load, peek, sqrt, store

_BYTES = 8 * LANES


@kernel
def factorise(plan: Plan, memory: int, coefficient: int, nodal_load: np.ndarray) -> None:
    """Factorise the matrices of ``LANES`` fields and forward-substitute the load.

    Args:
        plan: Symbolic factorisation.
        memory: Address of the lane vectors that hold the factor and the updates.
        coefficient: Address of the coefficients of the cells, a lane vector each.
        nodal_load: Load at the nodes, the same for all fields.
    """
    nodal = nodal_load.ctypes.data
    for number in range(len(plan.fronts)):
        front = plan.fronts[number]
        pivots, rows, boundary = front.pivots, front.rows, front.boundary
        panel = memory + _BYTES * front.panel
        update = memory + _BYTES * front.update
        left, right = front.left, front.right

        if front.places >= 0:
            cells, corner = coefficient + _BYTES * front.cell, nodal + 8 * front.corner
            places = plan.places.ctypes.data + 8 * front.places
            eliminate_leaf(cells, plan.size, corner, panel, update, places)
            _set_cells(plan, update, update, front.terms, front.more_terms)
            _add_cells(plan, update, update, front.more_terms, front.update_terms)
            continue

        if left < 0:
            cells = coefficient + _BYTES * front.cell
            _set_cells(plan, panel, cells, front.terms, front.more_terms)
            _add_cells(plan, panel, cells, front.more_terms, front.update_terms)
        else:
            _add_children(plan, memory, front, plan.fronts[left], plan.fronts[right], panel)
        load_row = (pivots + boundary) * pivots
        for k in range(pivots):
            node = plan.nodes[front.nodes + k]
            carried = load(panel, load_row + k) if left >= 0 else fill(0.0)
            store(panel, load_row + k, carried + fill(nodal_load[node]))
            if node == 0:  # a padded pivot: a node that is connected to nothing
                store(panel, load_row + pivots + k, fill(1.0))

        _eliminate(panel, pivots, rows, boundary)
        _multiply_rows(panel, update, pivots, front.inner, rows, boundary)

        if left < 0:
            _add_cells(plan, update, cells, front.update_terms, front.terms_end)
        else:
            _add_to_update(plan, memory, plan.fronts[left], update, pivots, rows)
            _add_to_update(plan, memory, plan.fronts[right], update, pivots, rows)


@kernel
def _set_cells(plan, target, cells, begin, end):  # type: ignore[no-untyped-def]
    """The first term of each place in the panel of a leaf."""
    for t in range(begin, end):
        term = plan.terms[t]
        store(target, term.place, fill(term.weight) * load(cells, term.cell))


@kernel
def _add_cells(plan, target, cells, begin, end):  # type: ignore[no-untyped-def]
    """Add further terms to the panel or to the update of a leaf."""
    for t in range(begin, end):
        term = plan.terms[t]
        cell = load(cells, term.cell)
        store(target, term.place, fma(fill(term.weight), cell, load(target, term.place)))


@kernel
def _add_children(plan, memory, front, left, right, panel):  # type: ignore[no-untyped-def]
    """Set a panel to the sum of what its two halves have left of its columns.

    Rows that neither half has are padded: they keep the zeros that they have had from the start.
    """
    pivots, columns = front.pivots, left.parent_pivots
    places = plan.child_rows.ctypes.data + 16 * front.nodes
    for row in range(pivots + front.boundary + 2):
        i, j = peek(places, 2 * row), peek(places, 2 * row + 1)
        target = panel + _BYTES * (row * pivots)
        a = memory + _BYTES * (left.update + i * left.rows)
        b = memory + _BYTES * (right.update + j * right.rows)
        count = min(row, columns)
        if j < 0 <= i:
            for k in range(count):
                store(target, k, load(a, k))
        elif i < 0 <= j:
            for k in range(count):
                store(target, k, load(b, k))
        elif i >= 0:
            for k in range(count):
                store(target, k, load(a, k) + load(b, k))


@kernel
def _add_to_update(plan, memory, child, update, pivots, rows):  # type: ignore[no-untyped-def]
    """Add what a child has left of other columns than its parent's pivots to the parent's update.

    Three rows at a time. This adds some entries above the diagonal too, where nothing is ever read.
    """
    target = update - _BYTES * (pivots * rows + pivots)
    begin, end = child.parent_pivots, child.boundary
    stride, count = child.rows, child.boundary + 2
    place = plan.parent_rows.ctypes.data + 8 * child.parent_rows
    source = memory + _BYTES * child.update
    for a in range(begin, count - 2, TILE):
        s0 = source + _BYTES * (a * stride)
        s1, s2 = s0 + _BYTES * stride, s0 + 2 * _BYTES * stride
        t0 = target + _BYTES * (peek(place, a) * rows)
        t1 = target + _BYTES * (peek(place, a + 1) * rows)
        t2 = target + _BYTES * (peek(place, a + 2) * rows)
        for b in range(begin, min(a + TILE, end)):
            column = peek(place, b)
            store(t0, column, load(t0, column) + load(s0, b))
            store(t1, column, load(t1, column) + load(s1, b))
            store(t2, column, load(t2, column) + load(s2, b))
    for a in range(count - (count - begin) % TILE, count):  # of the load and the excess
        s0 = source + _BYTES * (a * stride)
        t0 = target + _BYTES * (peek(place, a) * rows)
        for b in range(begin, end):
            column = peek(place, b)
            store(t0, column, load(t0, column) + load(s0, b))


@kernel
def _eliminate(panel, pivots, rows, boundary):  # type: ignore[no-untyped-def]
    """Turn an assembled panel into the factor, three columns at a time."""
    end = pivots + rows
    full = pivots + boundary // TILE * TILE  # tiles of rows before here hold nothing but nodes
    extra = pivots + boundary  # the load row; the excess row follows
    for c0 in range(0, pivots, TILE):
        column = panel + _BYTES * (c0 * pivots)
        corner = column + _BYTES * c0

        # Subtract the products with the columns before, and sum what is below the corner tile.
        s = _products(column, column, pivots, c0)
        a10 = load(corner, pivots) - s[3]
        a20 = load(corner, 2 * pivots) - s[6]
        a21 = load(corner, 2 * pivots + 1) - s[7]
        sum0 = sum1 = sum2 = fill(0.0)
        summed = TILE
        if c0 > 0:
            summed = full
            for r0 in range(c0 + TILE, end, TILE):
                row = panel + _BYTES * (r0 * pivots)
                s = _subtract_tile(row + _BYTES * c0, pivots, _products(row, column, pivots, c0))
                if r0 < full:
                    sum0, sum1, sum2 = sum0 + s[0], sum1 + s[1], sum2 + s[2]
        for r in range(summed, extra):
            place = r * pivots + c0
            sum0 = sum0 + load(panel, place)
            sum1 = sum1 + load(panel, place + 1)
            sum2 = sum2 + load(panel, place + 2)

        # Factorise the corner tile; its diagonal is the excess minus the rest of the column.
        # Reciprocals lead from pivot to pivot, so that the slow square roots can overlap.
        excess = (extra + 1) * pivots + c0
        one = fill(1.0)
        e0, e1, e2 = load(panel, excess), load(panel, excess + 1), load(panel, excess + 2)
        pivot0 = one / (e0 - a10 - a20 - sum0)
        ratio10, ratio20 = a10 * pivot0, a20 * pivot0
        e1, sum1, a21 = e1 - e0 * ratio10, sum1 - sum0 * ratio10, a21 - a20 * ratio10
        pivot1 = one / (e1 - a21 - sum1)
        ratio21 = a21 * pivot1
        e2, sum2 = e2 - e0 * ratio20 - e1 * ratio21, sum2 - sum0 * ratio20 - sum1 * ratio21
        pivot2 = one / (e2 - sum2)
        d0, d1, d2 = sqrt(pivot0), sqrt(pivot1), sqrt(pivot2)
        l10, l20, l21 = a10 * d0, a20 * d0, a21 * d1
        store(corner, 0, d0)
        store(corner, pivots, l10)
        store(corner, pivots + 1, d1)
        store(corner, 2 * pivots, l20)
        store(corner, 2 * pivots + 1, l21)
        store(corner, 2 * pivots + 2, d2)

        for r in range(c0 + TILE, end):
            place = r * pivots + c0
            x0 = load(panel, place) * d0
            x1 = (load(panel, place + 1) - x0 * l10) * d1
            x2 = (load(panel, place + 2) - x0 * l20 - x1 * l21) * d2
            store(panel, place, x0)
            store(panel, place + 1, x1)
            store(panel, place + 2, x2)


@kernel
def _multiply_rows(panel, update, pivots, inner, rows, boundary):  # type: ignore[no-untyped-def]
    """``update = -L21 transpose(L21)`` below the diagonal, summed over the inner pivots."""
    first = panel + _BYTES * (pivots * pivots)
    for r0 in range(0, rows, TILE):
        row = first + _BYTES * (r0 * pivots)
        for c0 in range(0, min(r0, boundary), TILE):
            s = _products(row, first + _BYTES * (c0 * pivots), pivots, inner)
            _store_negative_tile(update + _BYTES * (r0 * rows + c0), rows, s)
        if r0 < boundary:
            s = _products(row, row, pivots, inner)  # the compiler leaves out what is not used
            tile = update + _BYTES * (r0 * rows + r0)
            store(tile, rows, fill(0.0) - s[3])
            store(tile, 2 * rows, fill(0.0) - s[6])
            store(tile, 2 * rows + 1, fill(0.0) - s[7])


@kernel
def _products(row, column, stride, count):  # type: ignore[no-untyped-def]
    """The nine dot products of three rows with three others, over their first ``count`` entries."""
    row1, row2 = row + _BYTES * stride, row + 2 * _BYTES * stride
    column1, column2 = column + _BYTES * stride, column + 2 * _BYTES * stride
    zero = fill(0.0)
    s = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    for k in range(count):
        s = _add_products(s, row, row1, row2, column, column1, column2, k)
    return s


@kernel
def _add_products(s, row0, row1, row2, column0, column1, column2, k):  # type: ignore[no-untyped-def]
    """Add the products of entry ``k`` of three rows with those of three others."""
    c0, c1, c2 = load(column0, k), load(column1, k), load(column2, k)
    r0, r1, r2 = load(row0, k), load(row1, k), load(row2, k)
    return (
        fma(r0, c0, s[0]), fma(r0, c1, s[1]), fma(r0, c2, s[2]),
        fma(r1, c0, s[3]), fma(r1, c1, s[4]), fma(r1, c2, s[5]),
        fma(r2, c0, s[6]), fma(r2, c1, s[7]), fma(r2, c2, s[8]),
    )  # fmt: skip


@kernel
def _store_negative_tile(tile, stride, s):  # type: ignore[no-untyped-def]
    zero = fill(0.0)
    store(tile, 0, zero - s[0])
    store(tile, 1, zero - s[1])
    store(tile, 2, zero - s[2])
    store(tile, stride, zero - s[3])
    store(tile, stride + 1, zero - s[4])
    store(tile, stride + 2, zero - s[5])
    store(tile, 2 * stride, zero - s[6])
    store(tile, 2 * stride + 1, zero - s[7])
    store(tile, 2 * stride + 2, zero - s[8])


@kernel
def _subtract_tile(tile, stride, s):  # type: ignore[no-untyped-def]
    """Subtract nine numbers from the three by three tile at ``tile``; return its column sums."""
    t0, t1, t2 = load(tile, 0) - s[0], load(tile, 1) - s[1], load(tile, 2) - s[2]
    store(tile, 0, t0)
    store(tile, 1, t1)
    store(tile, 2, t2)
    tile = tile + _BYTES * stride
    t3, t4, t5 = load(tile, 0) - s[3], load(tile, 1) - s[4], load(tile, 2) - s[5]
    store(tile, 0, t3)
    store(tile, 1, t4)
    store(tile, 2, t5)
    tile = tile + _BYTES * stride
    t6, t7, t8 = load(tile, 0) - s[6], load(tile, 1) - s[7], load(tile, 2) - s[8]
    store(tile, 0, t6)
    store(tile, 1, t7)
    store(tile, 2, t8)
    return t0 + t3 + t6, t1 + t4 + t7, t2 + t5 + t8
