"""Geometric nested dissection of a square lattice: what a factorisation does, before any numbers.

The unit square of ``size x size`` cells is halved again and again, always across its longer side,
until a rectangle has at most ``LEAF_CELLS`` cells. Each rectangle is a *front*: a dense symmetric
matrix whose rows are

- its **pivots**, the nodes that this front eliminates: the nodes inside a leaf, or those on the
  line that separates the two halves;
- its **boundary**, the nodes on its edge that are not on the edge of the square: they are
  eliminated later, and the front only passes an update of them on to its parent;
- two further rows that are eliminated like boundary nodes: the **load** (so that factorising also
  does the forward substitution) and the **excess** (the row sums of the matrix, see `kernels`).

Pivots and boundary rows are each padded to a multiple of ``TILE``. Padded pivots point to node 0,
a corner of the square where the solution is zero; padded rows point to a spare node after the last.

Everything here depends on ``size`` only and is computed once. Nodes are numbered row by row,
``node = i * (size + 1) + j`` at the point ``(i / size, j / size)``, cells likewise.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from msign.problems.fem import leaf

TILE = 3
"""Side of the register tiles of the kernels."""

LEAF_CELLS = 16

# 6 times the stiffness matrix of a square bilinear element, corners (0,0), (1,0), (1,1), (0,1).
CORNERS = ((0, 0), (1, 0), (1, 1), (0, 1))
STIFFNESS = np.array([[4, -1, -2, -1], [-1, 4, -1, -2], [-2, -1, 4, -1], [-1, -2, -1, 4]]) / 6

FRONT = np.dtype(
    [
        ("pivots", np.int64),  # number of pivots, padded
        ("inner", np.int64),  # number of pivots, not padded
        ("boundary", np.int64),  # number of boundary nodes, not padded
        ("rows", np.int64),  # boundary + load + excess, padded
        ("panel", np.int64),  # where its (pivots + rows, pivots) panel of the factor begins
        ("update", np.int64),  # where its (rows, rows) update for the parent begins
        ("nodes", np.int64),  # where its node numbers begin in `Plan.nodes`
        ("parent_rows", np.int64),  # where its rows' places in the parent begin, `Plan.parent_rows`
        ("parent_pivots", np.int64),  # how many boundary nodes are pivots of the parent
        ("left", np.int64),  # the two halves, or -1 in a leaf
        ("right", np.int64),
        ("cell", np.int64),  # the first cell of a leaf
        ("corner", np.int64),  # the first node of a leaf
        ("places", np.int64),  # where a leaf of `leaf.LEAF` cells begins in `Plan.places`, or -1
        ("terms", np.int64),  # range of `Plan.terms` that a leaf assembles: first terms of places,
        ("more_terms", np.int64),  # further terms of places in the panel,
        ("update_terms", np.int64),  # terms of the update
        ("terms_end", np.int64),
    ]
)

TERM = np.dtype([("place", np.int64), ("cell", np.int64), ("weight", np.float64)])


class Plan(NamedTuple):
    """The symbolic factorisation as flat arrays, in the order in which fronts are eliminated."""

    fronts: np.ndarray  # (n_fronts,) of FRONT; children before parents
    nodes: np.ndarray  # node numbers of the fronts' rows
    parent_rows: np.ndarray  # rows of the parent to which a front's update rows are added
    child_rows: np.ndarray  # (rows, 2) where a front's rows are in its children's updates, or -1
    terms: np.ndarray  # of TERM: place in panel or update, cell counted from the leaf's first one
    places: np.ndarray  # where in their updates leaves of `leaf.LEAF` cells put what they leave
    size: int


@dataclass
class _Region:
    """A rectangle of cells, corners ``(i0, j0)`` and ``(i1, j1)``, and the nodes it eliminates."""

    i0: int
    j0: int
    i1: int
    j1: int
    slot: tuple[int, int]  # depth in the tree, and which half
    pivots: np.ndarray
    children: tuple[int, ...] = ()
    boundary: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def straight(self) -> bool:
        """Whether this is a leaf for the straight-line code of `leaf`."""
        return (self.i1 - self.i0, self.j1 - self.j0) == leaf.LEAF and not self.children


def plan_factorisation(size: int) -> tuple[Plan, int, int]:
    """The plan for a lattice, the length of the factor, and the length of the memory it needs."""
    regions = _dissect(size)
    rank = np.full((size + 1) ** 2, -1)
    order = np.concatenate([region.pivots for region in regions])
    rank[order] = np.arange(len(order))
    for region in regions:
        edge = _grid(size, region.i0, region.j0, region.i1 + 1, region.j1 + 1, edge=True)
        edge = edge[rank[edge] >= 0]
        region.boundary = edge[np.argsort(rank[edge])]

    fronts = np.zeros(len(regions), FRONT)
    fronts["pivots"] = [_padded(len(region.pivots)) for region in regions]
    fronts["inner"] = [len(region.pivots) for region in regions]
    fronts["boundary"] = [len(region.boundary) for region in regions]
    fronts["rows"] = [_padded(len(region.boundary) + 2) for region in regions]
    fronts["left"] = [region.children[0] if region.children else -1 for region in regions]
    fronts["right"] = [region.children[1] if region.children else -1 for region in regions]
    height = fronts["pivots"] + fronts["rows"]
    straight = np.array([region.straight for region in regions])
    lengths = np.where(straight, leaf.FACTOR_LENGTH, height * fronts["pivots"])
    fronts["panel"], factor_length = _offsets(lengths)
    fronts["nodes"], _ = _offsets(height)
    fronts["parent_rows"], _ = _offsets(fronts["boundary"] + 2)
    memory_length = _place_updates(fronts, regions, factor_length)

    nodes = [
        np.concatenate(
            [
                _pad(region.pivots, front["pivots"], 0),
                _pad(region.boundary, front["rows"], (size + 1) ** 2),
            ]
        )
        for region, front in zip(regions, fronts, strict=True)
    ]
    parent_rows, child_rows = _connect(fronts, nodes)
    terms, places = _assemble_leaves(size, regions, fronts, nodes)
    plan = Plan(
        fronts,
        np.concatenate(nodes),
        np.concatenate(parent_rows),
        np.concatenate(child_rows),
        terms,
        places,
        size,
    )
    return plan, factor_length, memory_length


def _dissect(size: int) -> list[_Region]:
    regions: list[_Region] = []

    def visit(i0: int, j0: int, i1: int, j1: int, slot: tuple[int, int]) -> int:
        """Append this rectangle after its parts; return its number."""
        depth = slot[0] + 1
        children: tuple[int, ...] = ()
        if (i1 - i0, j1 - j0) == leaf.LEAF:
            pivots = np.array([(i0 + i) * (size + 1) + j0 + j for i, j in leaf.PIVOTS])
        elif (i1 - i0) * (j1 - j0) <= LEAF_CELLS:
            pivots = _grid(size, i0 + 1, j0 + 1, i1, j1)
        elif i1 - i0 >= j1 - j0:
            middle = (i0 + i1) // 2
            children = (
                visit(i0, j0, middle, j1, (depth, 0)),
                visit(middle, j0, i1, j1, (depth, 1)),
            )
            pivots = _grid(size, middle, j0 + 1, middle + 1, j1)
        else:
            middle = (j0 + j1) // 2
            children = (
                visit(i0, j0, i1, middle, (depth, 0)),
                visit(i0, middle, i1, j1, (depth, 1)),
            )
            pivots = _grid(size, i0 + 1, middle, i1, middle + 1)
        regions.append(_Region(i0, j0, i1, j1, slot, pivots, children))
        return len(regions) - 1

    visit(0, 0, size, size, (0, 0))
    return regions


def _grid(size: int, i0: int, j0: int, i1: int, j1: int, edge: bool = False) -> np.ndarray:
    """Numbers of the nodes ``i0 <= i < i1``, ``j0 <= j < j1``, or only of those at the edge."""
    i, j = np.meshgrid(np.arange(i0, i1), np.arange(j0, j1), indexing="ij")
    numbers = i * (size + 1) + j
    if edge:
        numbers = numbers[(i == i0) | (i == i1 - 1) | (j == j0) | (j == j1 - 1)]
    return numbers.ravel()


def _place_updates(fronts: np.ndarray, regions: list[_Region], begin: int) -> int:
    """Give each front room for its update behind the factor; return where that room ends.

    When a front is eliminated, its ancestors' updates are not yet begun and of other fronts only
    left siblings of it or of an ancestor are waiting: two places at each depth are enough.
    """
    room: dict[tuple[int, int], int] = {}
    for region, front in zip(regions, fronts, strict=True):
        length = int(front["rows"]) ** 2 + (len(leaf.PAIRS) + 1 if region.straight else 0)
        room[region.slot] = max(room.get(region.slot, 0), length)
    offsets, length = _offsets(np.array(list(room.values())))
    place = dict(zip(room, offsets, strict=True))
    fronts["update"] = [begin + place[region.slot] for region in regions]
    return begin + length


def _connect(
    fronts: np.ndarray, nodes: list[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Where the rows of each front's update are in its parent, and its own in its children's.

    The pivots of a parent are the first rows of both children, in the same order.
    """
    parent_rows = [np.zeros(front["boundary"] + 2, np.int64) for front in fronts]
    child_rows = [np.full((len(numbers), 2), -1) for numbers in nodes]
    for i, (parent, numbers) in enumerate(zip(fronts, nodes, strict=True)):
        extra = parent["pivots"] + parent["boundary"]
        row_of = {int(node): row for row, node in enumerate(numbers[:extra]) if node}
        for side, child in enumerate((parent["left"], parent["right"])):
            if child < 0:
                continue
            first, count = fronts[child]["pivots"], fronts[child]["boundary"]
            rows = [row_of[int(node)] for node in nodes[child][first : first + count]]
            parent_rows[child][:] = [*rows, extra, extra + 1]
            child_rows[i][parent_rows[child], side] = np.arange(count + 2)
            fronts[child]["parent_pivots"] = sum(row < parent["pivots"] for row in rows)
    return parent_rows, child_rows


def _assemble_leaves(
    size: int, regions: list[_Region], fronts: np.ndarray, nodes: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Tables of terms and of places for all leaves; leaves alike share one."""
    tables: dict[tuple, tuple[int, ...]] = {}
    terms: list[tuple[int, int, float]] = []
    places: list[int] = []
    for region, front, numbers in zip(regions, fronts, nodes, strict=True):
        front["places"] = -1
        if region.children:
            continue
        front["cell"] = region.i0 * size + region.j0
        front["corner"] = region.i0 * (size + 1) + region.j0
        where: list[int] = []
        if region.straight:
            *parts, where = _update_places(size, region, front, numbers)
        else:
            parts = list(_leaf_terms(size, region, front, numbers))
        key = (*map(tuple, parts), tuple(where))
        if key not in tables:
            ends = np.cumsum([len(terms), *(len(part) for part in parts)])
            tables[key] = (*map(int, ends), len(places) if where else -1)
            terms += [term for part in parts for term in part]
            places += where
        names = ("terms", "more_terms", "update_terms", "terms_end", "places")
        for name, place in zip(names, tables[key], strict=True):
            front[name] = place
    return np.array(terms, dtype=TERM), np.array(places, np.int64)


def _update_places(
    size: int, region: _Region, front: np.void, nodes: np.ndarray
) -> tuple[list[tuple[int, int, float]], list, list, list[int]]:
    """Where the straight-line code of a leaf puts its update, and how its excess follows from that.

    Entries of nodes on the edge of the square go behind the update. They are added up to the excess
    row by terms (place, place of the entry, -1), the first term of each place apart.
    """
    rows, boundary = int(front["rows"]), int(front["boundary"])
    first = int(front["pivots"])
    numbers = {int(node): row for row, node in enumerate(nodes[first : first + boundary])}
    row_of = {
        (i, j): numbers.get((region.i0 + i) * (size + 1) + region.j0 + j, -1)
        for i, j in leaf.BOUNDARY
    }
    places: list[int] = []
    excess: dict[int, list[int]] = {column: [] for column in range(boundary)}
    for pair in leaf.PAIRS:
        low, high = sorted(row_of[node] for node in pair)
        if low >= 0:
            places.append(high * rows + low)
            continue
        places.append(rows * rows + len(places))
        if high >= 0:
            excess[high].append(places[-1])
    spare = rows * rows + len(leaf.PAIRS)  # what is left of the load at the edge is not used
    columns = [row_of[node] for node in leaf.BOUNDARY]
    places += [boundary * rows + column if column >= 0 else spare for column in columns]
    row = (boundary + 1) * rows
    first_terms = [
        (row + column, entries[0], -1.0) if entries else (row + column, places[0], 0.0)
        for column, entries in excess.items()
    ]
    more = [
        (row + column, entry, -1.0) for column, entries in excess.items() for entry in entries[1:]
    ]
    return first_terms, more, [], places


def _leaf_terms(
    size: int, region: _Region, front: np.void, nodes: np.ndarray
) -> tuple[list[tuple[int, int, float]], ...]:
    """What the cells of a leaf add to its front, below the diagonal and in the excess row.

    One term for each place of the panel (zero where only elimination will fill it), the further
    terms of these places, and the terms of the update.
    """
    pivots, extra = int(front["pivots"]), int(front["pivots"] + front["boundary"])
    row_of = {int(node): row for row, node in enumerate(nodes[:extra]) if node}
    inside: dict[int, dict[int, float]] = {
        row * pivots + column: {}
        for row in (*range(extra), extra + 1)
        for column in range(min(row, len(region.pivots)))
    }
    update: dict[int, dict[int, float]] = {}

    def add(row: int, column: int, cell: int, weight: float) -> None:
        if column < pivots:
            place, found = row * pivots + column, inside
        else:
            place, found = (row - pivots) * int(front["rows"]) + column - pivots, update
        weights = found.setdefault(place, {})
        weights[cell] = weights.get(cell, 0.0) + weight

    for i in range(region.i0, region.i1):
        for j in range(region.j0, region.j1):
            corners = [row_of.get((i + di) * (size + 1) + j + dj, -1) for di, dj in CORNERS]
            cell = (i - region.i0) * size + j - region.j0
            for a in range(4):
                for b in range(4):
                    row, column = corners[a], corners[b]
                    if row < 0 <= column:  # the solution is zero at corner a
                        add(extra + 1, column, cell, -float(STIFFNESS[a, b]))
                    elif row > column >= 0:
                        add(row, column, cell, float(STIFFNESS[a, b]))

    first: list[tuple[int, int, float]] = []
    more: list[tuple[int, int, float]] = []
    for place, weights in sorted(inside.items()):
        (cell, weight), *others = list(weights.items()) or [(0, 0.0)]
        first.append((place, cell, weight))
        more += [(place, cell, weight) for cell, weight in others]
    last = [
        (place, cell, w) for place, found in sorted(update.items()) for cell, w in found.items()
    ]
    return first, more, last


def _padded(count: int) -> int:
    return -(-count // TILE) * TILE


def _pad(numbers: np.ndarray, length: int, value: int) -> np.ndarray:
    return np.concatenate([numbers, np.full(length - len(numbers), value)])


def _offsets(lengths: np.ndarray) -> tuple[np.ndarray, int]:
    """Where consecutive blocks of these lengths begin, and where the last one ends."""
    ends = np.cumsum(lengths)
    return ends - lengths, int(ends[-1])
