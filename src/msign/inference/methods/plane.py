"""Two variables have a flow in closed form, too: the first rearranged, the second given the first.

A pool says what log p is at its fields; what they predict, interpolated, says it in between. So the
density is known on a grid, which is as fine as the density is steep. Its marginal is rearranged
like a single variable (`rearrangement.py`), and so are its conditionals at some values of the first
variable (Knothe 1957, Rosenblatt 1952).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from flowjax.bijections import AbstractBijection, Chain

from msign.bijections.plane import PlaneMap
from msign.bijections.spline import SplineMap, numbers_through
from msign.bijections.triangular import TriangularMap
from msign.inference.methods.objectives import MAX_LOG_RATIO
from msign.inference.methods.rearrangement import (
    FAR,
    SPREAD,
    Target,
    integrated,
    masses,
    rearranged_line,
    spline_to,
)
from msign.inference.methods.scattered import linear_between, means_of_cells
from msign.variables import Variables, log_ratio

Values = Callable[[np.ndarray], np.ndarray]  # of variables `(n, m)`
Rearranged = Callable[[Chain, np.ndarray, np.ndarray, Values], tuple[Chain, float]]

LINES = 160, 640  # of a grid along either axis: at first, at the most
WIDE = 6.5  # prior deviations that a grid covers at the least
DEEP = 14.0  # nats below the maximum to which it is made fine
FINE = 0.002  # nats by which it may be off between the lines of a grid
LIMIT = 5.0  # deviations of the noise beyond which conditionals have no knots
JUDGED = 2048  # points of a grid at which a map is compared with it


def rearrangement(flow: AbstractBijection) -> Rearranged | None:
    """How a flow of its kind is made of a density; None where that has to be learned."""
    kinds = [type(part) for part in flow.bijections] if isinstance(flow, Chain) else []
    if flow.shape == (1,) and kinds == [SplineMap, TriangularMap]:
        return rearranged_line
    return rearranged_plane if kinds == [PlaneMap, TriangularMap] else None


def rearranged_plane(
    flow: Chain, s: np.ndarray, values: np.ndarray, emulated: Values
) -> tuple[Chain, float]:
    """The flow that has a given density, and its Jeffreys divergence from it on a grid.

    Either variable may be the first: the better map of both is taken.

    Args:
        flow: A map of two variables and an affine one, whose place it takes.
        s: The variables at the fields of a pool `(n, 2)`.
        values: Log target - log prior there, up to a constant `(n,)`.
        emulated: An approximation of them, up to a constant, as a function of variables `(m, 2)`.
    """
    known = _corrected(s, values, emulated)
    far = np.maximum(WIDE, np.abs(s).max(0) + 1)

    def log_density(x: np.ndarray) -> np.ndarray:
        return known(x) - 0.5 * np.sum(x**2, -1)

    def gridded(matrix: np.ndarray, shift: np.ndarray, most: int) -> _Grid:
        """In coordinates x of s = matrix x + shift."""
        own = np.linalg.solve(matrix, (s - shift).T)
        corners = far[:, None] * [[1, 1, -1, -1], [1, -1, 1, -1]] - shift[:, None]
        ends = np.abs(np.linalg.solve(matrix, corners)).max(1)
        a, b = (_lines(*axis) for axis in zip(own, ends, strict=True))
        return _grid(lambda x: log_density(x @ matrix.T + shift), a, b, most)

    matrix, shift = np.eye(2), np.zeros(2)
    for _ in range(2):  # what is narrow across both axes shows in coordinates in which it is not
        root, mean = gridded(matrix, shift, LINES[0]).moments()
        matrix, shift = matrix @ root, shift + matrix @ mean

    def made(turn: np.ndarray) -> tuple[Chain, float]:
        whole = matrix @ turn
        grid = gridded(whole, shift, LINES[1])
        plane, scales, at = _plane(flow.bijections[0], grid)
        # A turn by a right angle swaps the scales, so that the map behind it stays triangular.
        affine = TriangularMap.from_matrix(matrix * (abs(turn) @ scales), shift + whole @ at)
        found = Chain([plane.turned(np.arctan2(turn[1, 0], turn[0, 0])), affine])
        x, log_mass = grid.spread(JUDGED)
        log_mass -= np.linalg.slogdet(matrix)[1]
        return found, _error(found, x @ whole.T + shift, log_mass)

    turns = np.eye(2), np.array([[0.0, -1.0], [1.0, 0.0]])
    return min((made(turn) for turn in turns), key=lambda each: each[1])


def _error(flow: Chain, x: np.ndarray, log_density: np.ndarray) -> float:
    """Jeffreys divergence of a flow from a density, by points spread over the density's mass."""
    log_prior = -0.5 * np.sum(x**2, -1) - np.log(2 * np.pi)
    off = log_ratio(Variables(flow, None, 2), x) + log_prior - log_density
    off = np.clip(off, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return float(np.mean(off * np.expm1(off)))


# --- the density ----------------------------------------------------------------------------------


def interpolated(s: np.ndarray, features: np.ndarray, degree: int = 5) -> Values:
    """Features `(n, k)` of fields as functions of their variables `(n, 2)`.

    A polynomial, and what it misses, linear between the fields. It is averaged over neighbours that
    agree within a fraction of the noise.
    """
    centre, spread = s.mean(0), s.std(0) + 1e-12
    powers = [(i, j) for i in range(degree + 1) for j in range(degree + 1 - i)]

    def design(x: np.ndarray) -> np.ndarray:
        t = (x - centre) / spread
        return np.stack([t[:, 0] ** i * t[:, 1] ** j for i, j in powers], 1)

    terms = design(s)
    fit = np.linalg.lstsq(terms, features, rcond=1e-10)[0]
    between = linear_between(*means_of_cells(s, features - terms @ fit, 0.5 * SPREAD))
    return lambda x: design(x) @ fit + between(x)


def _corrected(s: np.ndarray, values: np.ndarray, emulated: Values) -> Values:
    """Values everywhere: those emulated, and what they miss, linear between the fields.

    No correction lifts them above the best field. How low they are where there is no mass does not
    matter, and would spoil what lies next to it.
    """
    floor = np.max(values - 0.5 * np.sum(s**2, 1)) - FAR
    here = emulated(s)
    level = values.max() - here.max()

    def bounded(x: np.ndarray) -> np.ndarray:
        return np.maximum(x + level, floor)

    missed = (np.maximum(values, floor) - bounded(here))[:, None]
    between = linear_between(*means_of_cells(s, missed, SPREAD))

    def known(x: np.ndarray) -> np.ndarray:
        found = bounded(emulated(x))
        return np.minimum(found + between(x)[:, 0], np.maximum(found, values.max()))

    return known


class _Grid(NamedTuple):
    """A log-density, up to a constant, and its values at crossings of lines `(len(a), len(b))`."""

    log_density: Values
    a: np.ndarray
    b: np.ndarray
    values: np.ndarray

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Cholesky factor of the covariance, and mean."""
        mass = self._mass()
        mass /= mass.sum()
        mean = np.array([mass.sum(1) @ self.a, mass.sum(0) @ self.b])
        a, b = self.a - mean[0], self.b - mean[1]
        both = a @ mass @ b
        covariance = np.array([[mass.sum(1) @ a**2, both], [both, mass.sum(0) @ b**2]])
        finest = np.array([np.diff(self.a).min(), np.diff(self.b).min()])
        return np.linalg.cholesky(covariance + np.diag(finest**2)), mean

    def spread(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """N points `(n, 2)` spread evenly over the mass, and the log-density, made one, there."""
        sums = np.cumsum(self._mass())
        found = np.searchsorted(sums, sums[-1] * (np.arange(n) + 0.5) / n)
        i, j = np.unravel_index(found, self.values.shape)
        log_density = self.values[i, j] - self.values.max() - np.log(sums[-1])
        return np.stack([self.a[i], self.b[j]], 1), log_density

    def across(self, a: np.ndarray) -> np.ndarray:
        """The log-density along lines at other places `(len(a), len(b))`."""
        return _crossings(self.log_density, a, self.b)

    def _mass(self) -> np.ndarray:
        widths = np.outer(np.gradient(self.a), np.gradient(self.b))
        return np.exp(self.values - self.values.max()) * widths


def _crossings(log_density: Values, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    x = np.stack(np.meshgrid(a, b, indexing="ij"), -1)
    return log_density(x.reshape(-1, 2)).reshape(len(a), len(b))


def _lines(x: np.ndarray, far: float) -> np.ndarray:
    """Lines across an axis: some even, to both ends, and some where fields are."""
    even = np.linspace(-far, far, LINES[0] // 4)
    return np.union1d(even, np.quantile(x, np.linspace(0, 1, LINES[0] // 2)))


def _grid(log_density: Values, a: np.ndarray, b: np.ndarray, most: int) -> _Grid:
    """Lines, with new ones half-way wherever the density bends much, near its maximum."""
    values = _crossings(log_density, a, b)
    while True:
        new_a, new_b = _halves(a, values, most), _halves(b, values.T, most)
        if not len(new_a) and not len(new_b):
            return _Grid(log_density, a, b, values)
        if len(new_a):
            a, values = _merged(a, new_a, values, _crossings(log_density, new_a, b))
        if len(new_b):
            b, turned = _merged(b, new_b, values.T, _crossings(log_density, a, new_b).T)
            values = turned.T


def _halves(lines: np.ndarray, values: np.ndarray, most: int) -> np.ndarray:
    """New lines between those where values `(lines, ...)` are furthest from linear, if they are."""
    high = values > values.max() - DEEP
    gaps = np.diff(lines)
    slopes = np.diff(values, axis=0) / gaps[:, None]
    bends = np.pad(np.abs(np.diff(slopes, axis=0)), [(1, 1), (0, 0)])
    bends = (np.maximum(bends[1:], bends[:-1]) * (high[1:] | high[:-1])).max(1)
    missed = np.minimum(bends * gaps / 8, DEEP) * (gaps > 1e-5)
    worst = np.argsort(-missed, kind="stable")[: max(0, most - len(lines))]
    worst = np.sort(worst[missed[worst] > FINE])
    return 0.5 * (lines[worst] + lines[worst + 1])


def _merged(
    lines: np.ndarray, new: np.ndarray, values: np.ndarray, more: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    together = np.append(lines, new)
    order = np.argsort(together, kind="stable")
    return together[order], np.concatenate([values, more])[order]


# --- the map --------------------------------------------------------------------------------------


class _Conditionals(NamedTuple):
    """Maps of the second variable at some values of the first: knots z to s, and their slopes.

    `(bins - 1, rows)`; `low` and `high` are the ends of all.
    """

    z: np.ndarray
    s: np.ndarray
    slopes: np.ndarray
    low: float
    high: float


def _plane(plane: PlaneMap, grid: _Grid) -> tuple[PlaneMap, np.ndarray, np.ndarray]:
    """The map, before its turn, that has the density of scales x + shifts."""
    interval, least = plane.first.interval, plane.first.least
    top = grid.values.max(1)
    marginal = np.log(masses(grid.b, grid.values - top[:, None]).sum(1)) + top
    target = integrated(grid.a, marginal, interval)
    first, width, middle, _ = spline_to(plane.first, target)
    rows = _evenly(plane.rows, target.s, _progress(target.z) + _progress(target.s))
    # Again with more rows where the conditionals change.
    rows = _evenly(plane.rows, rows, _changes(target, rows, _conditionals(plane, grid, rows)))
    given = _conditionals(plane, grid, rows)
    height, centre = (given.high - given.low) / (2 * interval), 0.5 * (given.high + given.low)
    knots = given.z, (given.s - centre) / height, given.slopes / height
    numbers = numbers_through(*knots, interval, least)
    made = plane.with_first(first).with_conditionals((rows - middle) / width, numbers)
    return made, np.array([width, height]), np.array([middle, centre])


def _conditionals(plane: PlaneMap, grid: _Grid, rows: np.ndarray) -> _Conditionals:
    interval, steep = plane.first.interval, -np.log(plane.first.least)
    given = [integrated(grid.b, curve, interval) for curve in grid.across(rows)]
    knots = [_knots(target, plane.conditional, steep) for target in given]
    z, s, slopes = (np.stack(column, 1) for column in zip(*knots, strict=True))
    return _Conditionals(z, s, slopes, min(t.s[0] for t in given), max(t.s[-1] for t in given))


def _knots(target: Target, bins: int, steep: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inner knots of a map at even distances along it, and their slopes.

    Distances are those in noise, in the variable, and a little in log-slope: so knots move
    smoothly with the density, whatever its modes do.
    """
    inside = np.abs(target.z) < LIMIT
    if inside.sum() < 2:  # all of the mass is in one place
        inside[:] = True
    z, s = target.z[inside], target.s[inside]
    slope = np.clip(target.log_slope[inside], -steep, steep)
    width = np.diff(z)
    turns = 0.1 * np.abs(np.diff(slope)) * width / (width + 1e-4)
    so_far = _progress(z) + _progress(s) + np.append(0, np.cumsum(turns))
    knots = (_evenly(bins - 1, along, so_far) for along in (z, s, slope))
    z, s, slope = knots
    return z, s, np.exp(slope)


def _changes(target: Target, rows: np.ndarray, given: _Conditionals) -> np.ndarray:
    """Distance from the first row to each: in mass, in the variable, and of their knots.

    These count less where there is little mass.
    """
    z = np.interp(rows, target.s, target.z)
    moved = np.abs(np.diff(given.z)).mean(0) / (target.z[-1] - target.z[0])
    moved += np.abs(np.diff(given.s)).mean(0) / (given.high - given.low)
    worth = np.exp(-0.125 * (0.5 * (z[1:] + z[:-1])) ** 2)
    return _progress(z) + _progress(rows) + 4 * np.append(0, np.cumsum(worth * moved))


def _progress(x: np.ndarray) -> np.ndarray:
    """From zero to one, along increasing numbers."""
    return (x - x[0]) / max(x[-1] - x[0], np.finfo(float).tiny)


def _evenly(n: int, x: np.ndarray, so_far: np.ndarray) -> np.ndarray:
    """N of the numbers x, at even distances along `so_far`."""
    return np.interp(np.linspace(so_far[0], so_far[-1], n), so_far, x)
