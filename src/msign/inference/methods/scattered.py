"""What is known at scattered points: averaged over cells of neighbours, and linear in between."""

from collections.abc import Callable

import numpy as np

CELLS = 1024  # of fields, over which values are averaged


def means_of_cells(
    s: np.ndarray, values: np.ndarray, spread: float
) -> tuple[np.ndarray, np.ndarray]:
    """Means of points `(n, m)` and of values `(n, k)` over cells of neighbours.

    Cells are halved, across their longest side, while they have more than their share of points, or
    values that differ by more than `spread`: what other variables add to single fields is averaged.
    """
    cell, most = np.zeros(len(s), int), max(1, len(s) // CELLS)
    while True:
        order = np.argsort(cell, kind="stable")
        x, v = s[order], values[order]
        starts = np.flatnonzero(np.diff(cell[order], prepend=-1))
        sizes = np.diff(np.append(starts, len(s)))
        sides, differences = (
            np.maximum.reduceat(a, starts) - np.minimum.reduceat(a, starts) for a in (x, v)
        )
        wide = ((differences.max(1) > spread) | (sizes > most)) & (sides.max(1) > 0)
        if not wide.any():
            sums = (np.add.reduceat(a, starts) for a in (x, v))
            means, averages = (total / sizes[:, None] for total in sums)
            return means, averages
        own = np.repeat(np.arange(len(starts)), sizes)
        longest = sides.argmax(1)[own]
        inside = np.lexsort((x[np.arange(len(s)), longest], own))
        rank = np.empty(len(s), int)
        rank[inside] = np.arange(len(s)) - starts[own]
        cell = np.empty(len(s), int)
        cell[order] = 2 * own + (wide[own] & (2 * rank >= sizes[own]))


def linear_between(x: np.ndarray, values: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Values `(n, k)` at points of a plane, linear between them; outside those of the nearest."""
    from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator  # slow to import
    from scipy.spatial import QhullError

    nearest = NearestNDInterpolator(x, values)
    try:
        between = LinearNDInterpolator(x, values, rescale=True)
    except (QhullError, ValueError):  # too few points, or all on a line
        return nearest

    def known(x: np.ndarray) -> np.ndarray:
        found = between(x)
        outside = np.isnan(found[:, 0])
        found[outside] = nearest(x[outside])
        return found

    return known
