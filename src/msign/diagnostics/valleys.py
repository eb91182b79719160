"""Valleys of a sample: on one axis, and on the way from peak to peak in a plane.

`msign.diagnostics.modes` says how they are used.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike
from scipy.ndimage import gaussian_filter
from scipy.sparse import coo_array, lil_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree
from scipy.special import betainc

NEIGHBOURS = (24, 96)  # Points at a peak: few for small modes, many for shallow valleys.
FEWEST = 4  # Points in an empty valley; as many as at the peak otherwise.
TRIES = 4  # Axes tried for a cut, the clearest first.
BANDWIDTH = 0.4  # Of the density in a plane, in standard deviations times n^(-1/6).
CELLS, EDGE = 72, 3.6  # Grid of the plane: cells a side, and its end in standard deviations.


def _is_deep(few: ArrayLike, many: ArrayLike, depth: float, sigmas: float) -> np.ndarray:
    """Whether a count is below a part of another one, even if it is too low by some deviations."""
    few = np.asarray(few)
    return few + sigmas * np.sqrt(few) <= depth * np.asarray(many)


def whitened(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points in principal coordinates of unit variance, the same with clipped tails, the map.

    One percent of each coordinate is clipped before its moments are taken.
    """
    clipped = _clipped(x)
    mean = clipped.mean(0)
    values, vectors = np.linalg.eigh(np.cov(clipped.T, ddof=0).reshape(x.shape[1], -1))
    keep = values > 1e-14 * values.max()
    transform = vectors[:, keep] / np.sqrt(values[keep])
    return (x - mean) @ transform, (clipped - mean) @ transform, transform


def _clipped(x: np.ndarray) -> np.ndarray:
    return np.clip(x, *np.quantile(x, [0.005, 0.995], axis=0))


# --- valleys on an axis --------------------------------------------------------------------------


def valleys(
    z: np.ndarray,
    clipped: np.ndarray,
    transform: np.ndarray,
    depth: float,
    sigmas: float,
    level: float,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Axes `(m,)` with a significant valley, the clearest first; left peak, valley, right peak."""
    coordinates = np.linalg.pinv(transform)
    standard = coordinates / np.maximum(np.linalg.norm(coordinates, axis=0), 1e-300)
    principal = standard @ np.linalg.eigh(standard.T @ standard)[1]
    groups = [(unit(np.concatenate([coordinates, principal], 1)), z)]
    if z.shape[1] > 1:
        groups += [(_learnt_axes(clipped[::2]), z[1::2]), (_learnt_axes(clipped[1::2]), z[::2])]
    correction = np.log(sum(axes.shape[1] for axes, _ in groups))
    found: list[tuple[float, int, np.ndarray, np.ndarray]] = []
    for axes, held_out in groups:
        log_p, places = _line_valleys(held_out @ axes, depth, sigmas)
        for q in np.flatnonzero(log_p + correction < level):
            found.append((log_p[q] / len(held_out), len(found), axes[:, q], places[q]))
    for _, _, axis, place in sorted(found, key=lambda candidate: candidate[:2])[:TRIES]:
        yield axis, place


def _learnt_axes(clipped: np.ndarray) -> np.ndarray:
    """Directions of low kurtosis, of high kurtosis and of large skewness (FastICA), `(m, 20)`."""
    z, _, transform = whitened(clipped)
    m = z.shape[1]
    fourth = np.linalg.eigh(z.T @ (np.sum(z**2, axis=1)[:, None] * z))[1]
    starts = np.concatenate([np.eye(m), fourth], 1)
    t = z @ starts
    kurtosis = np.argsort(np.mean(t**4, axis=0), kind="stable")
    skewness = np.argsort(-np.abs(np.mean(t**3, axis=0)), kind="stable")
    flat, heavy = starts[:, kurtosis[:6]], starts[:, kurtosis[-4:]]
    skew = starts[:, skewness[:4]]
    for _ in range(8):
        flat, heavy = _fast_ica(z, flat), _fast_ica(z, heavy)
        skew = unit(z.T @ (z @ skew) ** 2)
    halves = flat
    for _ in range(4):  # the line between the means of two halves, as in k-means
        halves = unit(z.T @ np.sign(z @ halves))
    return unit(transform @ np.concatenate([flat, halves, heavy, skew], 1))


def _fast_ica(z: np.ndarray, axes: np.ndarray) -> np.ndarray:
    g = np.tanh(z @ axes)
    return unit(z.T @ g / len(z) - np.mean(1 - g**2, axis=0) * axes)


def unit(columns: np.ndarray) -> np.ndarray:
    """Columns of unit length."""
    return columns / np.maximum(np.linalg.norm(columns, axis=0), 1e-300)


def _log_p(few: int, many: int, volume: np.ndarray) -> np.ndarray:
    """Log-probability of so deep a valley where densities are equal.

    An interval of length `volume` holds `few` points and one of unit length `many`: lengths up to
    the a-th point are Gamma(a). Below the smallest numbers Chernoff's bound takes over.
    """
    a, b, v = float(few), float(many), volume
    exact = betainc(b, a, 1 / (1 + v))
    bound = a * np.log((a + b) * v / ((1 + v) * a)) + b * np.log((a + b) / ((1 + v) * b))
    return np.where(exact > 1e-290, np.log(np.maximum(exact, 1e-300)), bound)


def _line_valleys(t: np.ndarray, depth: float, sigmas: float) -> tuple[np.ndarray, np.ndarray]:
    """Clearest valley in each column: log-p of all positions, `(c,)`; left peak, valley, right."""
    n, c = t.shape
    t, columns = np.sort(t, axis=0), np.arange(c)
    best, places = np.zeros(c), np.zeros((c, 3))
    scales = [k for k in NEIGHBOURS if 4 * k <= n] or [n // 4]
    for k in scales:
        width = np.maximum(t[k:] - t[:-k], 1e-300)
        middle = 0.5 * (t[k:] + t[:-k])
        left = np.minimum.accumulate(width, 0)
        right = np.minimum.accumulate(width[::-1], 0)[::-1]
        lower_peak = np.maximum(left, right)
        for a in (FEWEST, k):
            s = (k - a) // 2  # windows of a points in the middle of those of k
            ratio = (t[a:] - t[:-a])[s : s + len(width)] / lower_peak
            i = ratio.argmax(0)
            volume = ratio[i, columns]
            log_p = _log_p(a, k, volume) + np.log(2 * len(scales) * n / k * n / a)
            for j in np.flatnonzero((log_p < best) & _is_deep(a, k * volume, depth, sigmas)):
                high = np.flatnonzero(width[:, j] <= lower_peak[i[j], j])
                sides = high[high <= i[j]][-1], high[high >= i[j]][0]
                if sides[0] == sides[1]:
                    continue  # a peak of fewer than k points: the valley is a part of it
                valley = 0.5 * (t[i[j] + s, j] + t[i[j] + s + a, j])
                best[j] = log_p[j]
                places[j] = middle[sides[0], j], valley, middle[sides[1], j]
    return best, places


# --- the same valley from peak to peak -----------------------------------------------------------


class Cut(NamedTuple):
    """A cut of n points in two.

    Attributes:
        second: Which points lie beyond the valley, `(n,)`.
        around: Weights of the points around places of a path from peak to peak, `(l, n)`.
        low: Number of points around the lowest place of the path.
        peak: Number of points, in the same volume, around the lower of the two peaks.
    """

    second: np.ndarray
    around: np.ndarray
    low: float
    peak: float

    def is_valley(self, depth: float) -> bool:
        """Whether the path has a valley, by one and a half standard deviations of each number."""
        low, peak = self.low + 1.5 * np.sqrt(self.low), self.peak - 1.5 * np.sqrt(self.peak)
        return bool(low < depth * peak)


class Bend(NamedTuple):
    """How a ridge bends at a valley.

    Attributes:
        direction: The one `(m,)` in which points change most, in mean or in spread, across the
            valley; None if the change is too small to make up for half of the density.
        is_known: Whether the points are enough to say so.
    """

    direction: np.ndarray | None
    is_known: bool


def line_cut(t: np.ndarray, place: np.ndarray) -> Cut:
    """The cut at a valley of one axis."""
    left, valley, right = place
    nodes = np.linspace(left, right, 9)[:, None]
    around = np.exp(-0.5 * ((t - nodes) / (0.15 * (right - left))) ** 2)
    return Cut(t > valley, around, 0.0, float(len(t)))


def distance(t: np.ndarray, place: np.ndarray) -> np.ndarray:
    """How far from the valley to its peaks points are: from 0 to 1."""
    left, valley, right = place
    side = np.where(t < valley, valley - left, right - valley)
    return np.minimum(np.abs(t - valley) / np.maximum(side, 1e-300), 1)


def sharpened(z: np.ndarray, axis: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The axis between the means of both sides of a valley, and the valley there.

    It is better known than an axis that comes from half of the points.
    """
    t = z @ axis
    below = np.mean(t[:, None] < place, axis=0)
    axis = unit(z.T @ (t > place[1]) - z.sum(0) * (1 - below[1]))
    return axis, np.quantile(z @ axis, below)


def bend_of(z: np.ndarray, axis: np.ndarray, place: np.ndarray) -> Bend:
    """How the ridge that a valley may belong to bends there."""
    n, m = z.shape
    far = distance(z @ axis, place)
    far = (far - far.mean()) / far.std()
    others = np.linalg.qr(np.concatenate([axis[:, None], np.eye(m)], 1))[0][:, 1:]
    t = z @ axis - np.mean(z @ axis)
    rest = (z - z.mean(0)) @ others
    rest, _, root = whitened(rest - np.outer(t, t @ rest / (t @ t)))
    shift = far @ rest / n
    spread, directions = np.linalg.eigh(rest.T @ (far[:, None] * rest) / n)
    widest = np.abs(spread).argmax()
    change = np.array([np.linalg.norm(shift), abs(spread[widest])])
    chance = np.sqrt([(m + 3 * np.sqrt(2 * m)) / n, 4.8 * m / n])  # edges of random spectra
    if np.all(change < np.maximum(chance, 0.2)):
        return Bend(None, bool(chance[1] < 0.5))  # the spread of a ring changes by 0.7
    bend = [shift, directions[:, widest]][np.argmax(change / chance)]
    return Bend(others @ root @ unit(bend), m == 2 or bool(np.any(change > [2, 3] * chance)))


def plane_cut(y: np.ndarray, valley: float, m: int) -> Cut:
    """The cut of points `(n, 2)` on the best path across a valley of their first coordinate.

    On a grid of densities, a spanning tree through the densest cells has all best paths: none
    between two cells has a lowest density that is higher.
    """
    n = len(y)
    y = (y - [valley, np.median(y[:, 1])]) / _clipped(y).std(0)
    # Axes are known up to an angle of sqrt(m / n), by which a ridge looks wider.
    h = np.sqrt(BANDWIDTH**2 * n ** (-1 / 3) + m / n)
    step = 2 * EDGE / CELLS
    cell = np.floor((y + EDGE) / step).astype(int)
    inside = np.all((cell >= 0) & (cell < CELLS), axis=1)
    cell = np.ravel_multi_index(tuple(cell.clip(0, CELLS - 1).T), (CELLS, CELLS))
    counts = np.bincount(cell[inside], minlength=CELLS**2).reshape(CELLS, CELLS)
    # Numbers of points in the area over which the kernel averages.
    density = gaussian_filter(counts.astype(float), h / step, mode="constant").ravel()
    density *= 4 * np.pi * (h / step) ** 2
    half = CELLS**2 // 2
    peaks = density[:half].argmax(), half + density[half:].argmax()
    tree = _densest_tree(density)
    before = breadth_first_order(tree, peaks[0], directed=False)[1]
    path = [peaks[1]]
    while path[-1] != peaks[0]:
        path.append(before[path[-1]])
    low = min(int(density[path].argmin()), len(path) - 2)
    tree[path[low], path[low + 1]] = tree[path[low + 1], path[low]] = 0
    part = connected_components(tree, directed=False)[1]
    nodes = np.stack(np.unravel_index(path, (CELLS, CELLS)), 1) * step + step / 2 - EDGE
    gaps = (nodes[:: max(len(path) // 9, 1), None] - y) / h
    around = np.exp(-0.5 * np.sum(gaps**2, axis=2))
    second = part[cell] == part[peaks[1]]
    return Cut(second, around, density[path].min(), density[list(peaks)].min())


def _densest_tree(density: np.ndarray) -> lil_array:
    """Tree of the edges between neighbouring cells that runs through the densest ones."""
    index = np.arange(CELLS**2).reshape(CELLS, CELLS)
    pairs = [
        (index[:-1], index[1:]),
        (index[:, :-1], index[:, 1:]),
        (index[:-1, :-1], index[1:, 1:]),
        (index[1:, :-1], index[:-1, 1:]),
    ]
    ends = np.concatenate([np.stack([a.ravel(), b.ravel()]) for a, b in pairs], 1)
    rank = np.argsort(np.argsort(-density[ends].min(0), kind="stable"), kind="stable")
    return minimum_spanning_tree(coo_array((1.0 + rank, ends), (CELLS**2,) * 2)).tolil()
