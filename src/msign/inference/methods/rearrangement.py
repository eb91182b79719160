"""One variable has a flow in closed form: the increasing rearrangement of noise into the target.

With F the distribution function of a density p, s = F^{-1}(Phi(z)) is the only increasing map that
turns standard normal z into p. A pool says what log p is at its fields, so that there is nothing to
descend: a curve through them, its integral, and a spline through as many points of the map as it
has knots, each put where the spline is furthest off. Two variables: `plane.py`.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from flowjax.bijections import Chain
from scipy.interpolate import PchipInterpolator
from scipy.special import ndtri

from msign.bijections.spline import SplineMap, rational_quadratic
from msign.bijections.triangular import TriangularMap
from msign.inference.methods.objectives import MAX_LOG_RATIO

CELLS = 256  # of equal numbers of fields, over which values are averaged
SPREAD = 0.5  # nats by which the values of a cell differ at the most
FAR = 40.0  # nats below the outermost field to which the target is continued
GRADED = np.concatenate([0.5 ** np.arange(20, 1, -1), 1 - 0.5 ** np.arange(1, 21)])


class Target(NamedTuple):
    """A density on a grid, and the map from noise z to s that has it.

    The mass is that between a point and the next.
    """

    z: np.ndarray
    s: np.ndarray
    log_density: np.ndarray
    mass: np.ndarray

    @property
    def log_slope(self) -> np.ndarray:
        """Log ds/dz."""
        return _log_normal(self.z) - self.log_density

    def finer(self) -> "Target":
        """The same with a point half-way between any two."""
        z, s, log_density = (_with_middles(a) for a in (self.z, self.s, self.log_density))
        mass = np.repeat(0.5 * self.mass, 2)[:-1]
        return Target(z, s, log_density, mass)


def rearranged_line(
    flow: Chain, s: np.ndarray, values: np.ndarray, emulated: Callable[[np.ndarray], np.ndarray]
) -> tuple[Chain, float]:
    """The flow that has a given density, and its Jeffreys divergence from it on a grid.

    Args:
        flow: A spline of one variable and an affine map, whose place it takes.
        s: The variable at the fields of a pool `(n, 1)`.
        values: Log target - log prior there, up to a constant `(n,)`.
        emulated: An approximation of them, up to a constant, as a function of `(m, 1)` variables.
    """
    spline = flow.bijections[0]
    curve = _curve(s[:, 0], values, lambda x: emulated(x[:, None]))
    moved, scale, shift, error = spline_to(spline, integrated(*curve, spline.interval))
    return Chain([moved, TriangularMap.from_matrix(np.array([[scale]]), np.array([shift]))]), error


def spline_to(spline: SplineMap, target: Target) -> tuple[SplineMap, float, float, float]:
    """A spline of the same kind that has the density of scale x + shift, and its error."""
    while len(target.z) < 2 * spline.knots:
        target = target.finer()
    scale = (target.s[-1] - target.s[0]) / (2 * spline.interval)
    shift = 0.5 * (target.s[-1] + target.s[0])
    unit = target._replace(
        s=(target.s - shift) / scale, log_density=target.log_density + np.log(scale)
    )
    knots, error = _knots(unit, spline)
    inner = knots[1:-1]
    moved = spline.through(unit.z[inner], unit.s[inner], np.exp(unit.log_slope[inner]))
    return moved, scale, shift, error


# --- the density ----------------------------------------------------------------------------------


def _curve(
    s: np.ndarray, values: np.ndarray, emulated: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """A grid, and the log-density on it up to a constant.

    Between fields it has no maximum of its own, and is no higher than the emulator corrected by
    what it misses at the fields: valleys in which no field lies are as deep as the emulator says.
    Outside of them it falls as it does on the way out, or as the emulator does.
    """
    x, y = _cells(s, values)
    log_density = y - 0.5 * x**2
    inner = x[:-1, None] + np.diff(x)[:, None] * np.append(0, GRADED)
    inside = np.append(inner, x[-1])
    out, below = _tail(x, log_density)
    back, above = _tail(-x[::-1], log_density[::-1])
    grid = np.concatenate([out, inside, -back[::-1]])
    curve = np.concatenate([below, PchipInterpolator(x, log_density)(inside), above[::-1]])
    missed = PchipInterpolator(x, y - emulated(x))(np.clip(grid, x[0], x[-1]))
    return grid, np.minimum(curve, emulated(grid) + missed - 0.5 * grid**2)


def _cells(s: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of s and of values over cells of neighbours, in increasing order of s.

    Cells of many fields where values are flat, so that what other variables add to single ones is
    averaged; of few where they are steep or the fields far apart, on both sides of a valley say.
    """
    order = np.argsort(s)
    s, values = s[order], values[order]
    edges = np.unique(np.linspace(0, len(s), min(CELLS, len(s)) + 1).astype(int))
    while True:
        starts, sizes = edges[:-1], np.diff(edges)
        spread = np.maximum.reduceat(values, starts) - np.minimum.reduceat(values, starts)
        gaps = np.append(np.diff(s), 0)
        gaps[edges[1:] - 1] = 0
        torn = 2 * np.maximum.reduceat(gaps, starts) > s[edges[1:] - 1] - s[starts]
        wide = ((spread > SPREAD) | torn) & (sizes > 1)
        if not wide.any():
            break
        edges = np.sort(np.append(edges, starts[wide] + sizes[wide] // 2))
    x, y = (np.add.reduceat(a, starts) / sizes for a in (s, values))
    distinct = np.append(True, np.diff(x) > 0)
    return x[distinct], y[distinct]


def _tail(x: np.ndarray, log_density: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points left of all x, and the log-density there: a line, bent as the prior's is.

    As steep as the steepest chord from the first point to one that is a nat higher.
    """
    higher = log_density > log_density[0] + 1
    chords = (log_density[higher] - log_density[0]) / (x[higher] - x[0])
    slope = chords.max() if higher.any() else 0.0
    fall = FAR * np.linspace(1, 0, 200, endpoint=False) ** 2
    return x[0] + slope - np.sqrt(slope**2 + 2 * fall), log_density[0] - fall


def masses(grid: np.ndarray, curve: np.ndarray) -> np.ndarray:
    """Of a density between the points of a grid `(..., n)`, where its logarithm is linear."""
    rise, p = np.diff(curve), np.exp(curve)
    bent = np.abs(rise) > 1e-6
    mean = np.where(bent, np.diff(p) / np.where(bent, rise, 1), 0.5 * (p[..., 1:] + p[..., :-1]))
    return mean * np.diff(grid)


def integrated(grid: np.ndarray, curve: np.ndarray, interval: float) -> Target:
    """The density made one, and the map that has it, for noise in [-interval, interval]."""
    curve = curve - curve.max()
    part = masses(grid, curve)
    total = part.sum()
    below = np.append(0, np.cumsum(part)) / total
    above = np.append(np.cumsum(part[::-1])[::-1], 0) / total
    z = np.clip(np.where(below < 0.5, ndtri(below), -ndtri(above)), -40, 40)
    ends = np.interp([-interval, interval], z, grid)
    inside = np.abs(z) < interval
    inside[1:] &= np.diff(z) > 0
    return Target(
        np.concatenate([[-interval], z[inside], [interval]]),
        np.concatenate([ends[:1], grid[inside], ends[1:]]),
        np.pad(curve[inside] - np.log(total), 1, mode="edge"),
        np.pad(np.diff(below[inside]), (1, 2)),
    )


# --- the spline -----------------------------------------------------------------------------------


def _knots(target: Target, spline: SplineMap) -> tuple[np.ndarray, float]:
    """Which points of the grid are knots, both ends included, and the error of the spline there.

    The bins with the largest errors are halved, by how much the log-slope varies in them, until
    there are as many as the spline has. What happens within the smallest width does not count.
    """
    width = np.diff(target.z)
    turns = np.abs(np.diff(target.log_slope)) * width / (width + spline.least)
    so_far = np.append(0, np.cumsum(turns + 1e-3 * width))
    first = np.searchsorted(target.z, np.linspace(-1, 1, 9)[1:-1] * spline.interval)
    knots = np.unique(np.concatenate([[0], first, [len(target.z) - 1]]))
    while True:
        errors = _errors(target, knots)
        missing = spline.knots + 1 - len(knots)
        if not missing:
            return knots, float(errors.sum())
        start, end = knots[:-1], knots[1:]
        middle = np.searchsorted(so_far, 0.5 * (so_far[start] + so_far[end]))
        middle = np.clip(middle, start + 1, end - 1)
        sizes = np.minimum(*(a[end] - a[start] for a in (target.z, target.s)))
        worth = np.where(sizes > 4 * spline.least, np.add.reduceat(errors, start), -1)
        worst = np.argsort(np.where(end - start > 1, worth, -2))
        knots = np.union1d(knots, middle[worst[-max(1, missing // 4) :]])


def _errors(target: Target, knots: np.ndarray) -> np.ndarray:
    """What each point of the grid adds to the Jeffreys divergence of a spline with these knots."""
    x, y = target.z[knots], target.s[knots]
    slopes = np.exp(target.log_slope[knots])
    slopes[[0, -1]] = 1
    at = np.clip(np.searchsorted(knots, np.arange(len(target.z)), "right") - 1, 0, len(knots) - 2)
    width, height = np.diff(x)[at], np.diff(y)[at]
    left, right, slope = slopes[at], slopes[at + 1], height / width
    up, top, curve = rational_quadratic((target.z - x[at]) / width, slope, left, right)
    s = y[at] + height * up
    log_slope = 2 * np.log(slope) + np.log(top) - 2 * np.log(curve)
    here = _log_normal(target.z) - log_slope
    off = here - np.interp(s, target.s, target.log_density)
    return target.mass * off * -np.expm1(-np.clip(off, -MAX_LOG_RATIO, None))


def _with_middles(a: np.ndarray) -> np.ndarray:
    return np.append(np.stack([a[:-1], 0.5 * (a[:-1] + a[1:])], 1).ravel(), a[-1])


def _log_normal(z: np.ndarray) -> np.ndarray:
    return -0.5 * (z**2 + np.log(2 * np.pi))
