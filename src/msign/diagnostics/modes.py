"""Modes of a sample: regions of high density between which significant valleys lie.

Parts of the sample are cut in two at their clearest valley until no part has one:

1. Axes on which a part may be bimodal are its coordinates, its principal axes, and axes of low
   or high kurtosis or of skewness. The latter are learnt from one half of the points and judged
   by the other half.
2. On each axis, distances between sorted points show the valley that is least likely in a density
   of one peak. The level of the test counts all positions and axes searched.
3. The valley may belong to one curved ridge, such as a ring, seen from the side. The direction
   whose mean or spread changes most across the valley joins the axis, and half of the valley's
   depth, in logarithms, has to remain in this plane, on the best path from peak to peak. Where
   points are too few to know this direction, there is no cut.
4. Where the density itself is given, it judges instead: the lowest density on a path between the
   peaks that climbs (`msign.diagnostics.saddle`) against the lower peak.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike
from scipy.ndimage import gaussian_filter
from scipy.sparse import coo_array, lil_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree
from scipy.special import betainc

from msign import checks
from msign.diagnostics.saddle import Density, log_saddle
from msign.variables import Variables, log_ratio
from msign.weights import normalised

DEPTH = 0.5  # A valley counts if its density is below this part of the lower peak's: Gaussians
# of equal size and width are two modes from 3.4 standard deviations between them.
CHANCE = 0.01  # Nominal probability of a cut within one mode. Bounds on bounds: measured 0.001.
NEIGHBOURS = (24, 96)  # Points at a peak: few for small modes, many for shallow valleys.
FEWEST = 4  # Points in an empty valley; as many as at the peak otherwise.
TRIES = 4  # Axes tried for a cut, the clearest first.
CONNECTION = 0.05  # Part of the points between two peaks below which no ridge can join them.
BANDWIDTH = 0.4  # Of the density in a plane, in standard deviations times n^(-1/6).
CELLS, EDGE = 72, 3.6  # Grid of the plane: cells a side, and its end in standard deviations.


class Modes(NamedTuple):
    """Modes in the order of their centres on the coordinate that separates them best.

    Attributes:
        labels: Mode of each point, `(n,)`, from 0.
        fractions: Masses, `(k,)`; they sum to one.
        stderr: Standard errors of the fractions for independent points, `(k,)`.
        centres: Means of the points, without weights, `(k, m)`.
    """

    labels: np.ndarray
    fractions: np.ndarray
    stderr: np.ndarray
    centres: np.ndarray

    def reweighted(self, log_weights: ArrayLike | None) -> "Modes":
        """The same modes with the masses that these importance weights give them."""
        inside = self.labels[:, None] == np.arange(len(self.centres))
        weights = normalised(np.zeros(len(inside)) if log_weights is None else log_weights)
        checks.shape("log_weights", weights.shape, (len(inside),))
        fractions = weights @ inside
        # Delta method for self-normalised weights.
        stderr = np.sqrt(weights**2 @ (inside - fractions) ** 2)
        return self._replace(fractions=fractions, stderr=stderr)


def find_modes(
    points: ArrayLike,
    log_weights: ArrayLike | None = None,
    log_density: Density | None = None,
    max_modes: int = 8,
    depth: float = DEPTH,
) -> Modes:
    """Modes of `(n, m)` independent points, and their masses.

    Importance weights move mass between modes, and do not define them. `log_density` is that of
    which the points are samples, from `(k, m)` to `(k,)` and up to a constant. A valley counts
    if its density is below `depth` times the lower peak's; repeated points count once.
    Permuting the points permutes the labels. Takes O(n m^2) operations and memory O(n m).
    """
    x = checks.finite_array("points", points)
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"points must have shape (n, m), got {x.shape}")
    checks.integer("max_modes", max_modes, 1)
    distinct, inverse = np.unique(x, axis=0, return_inverse=True)
    whole: list[np.ndarray] = []
    open_parts = [np.arange(len(distinct))]
    while open_parts:
        part = open_parts.pop(0)
        full = len(whole) + len(open_parts) + 1 >= max_modes
        second = None if full else _second_part(distinct[part], depth, log_density)
        if second is None:
            whole.append(part)
        else:
            open_parts += [part[~second], part[second]]
    labels = np.empty(len(distinct), int)
    for k, part in enumerate(whole):
        labels[part] = k
    return _ordered(x, labels[inverse.reshape(-1)], len(whole)).reweighted(log_weights)


def find_model_modes(variables: Variables, draws: ArrayLike) -> Modes:
    """Modes of a model by draws of its variables, or of the first of them, `(n, k)`.

    The model's own density is the judge where the draws have all its variables.
    """
    s = np.asarray(draws, np.float64)
    if s.shape[1] < variables.size:
        return find_modes(s)

    def log_density(s: np.ndarray) -> np.ndarray:
        ratio = np.asarray(log_ratio(variables.alone, s), np.float64)
        return ratio - 0.5 * np.sum(s**2, axis=1)

    return find_modes(s, log_density=log_density)


def valley_depth(x: np.ndarray, labels: np.ndarray, i: int, j: int) -> float:
    """Density between two clusters over its lower peak, on the line through their centres."""
    a, b = x[labels == i].mean(0), x[labels == j].mean(0)
    both = x[(labels == i) | (labels == j)]
    direction = (b - a) / max(np.linalg.norm(b - a), 1e-300)
    t = (both - a) @ direction / max(np.linalg.norm(b - a), 1e-300)
    density, edges = np.histogram(t, bins=np.linspace(-0.5, 1.5, 33))
    smooth = np.convolve(density, np.ones(3) / 3, "same")
    centres = 0.5 * (edges[1:] + edges[:-1])
    left, right = smooth[centres < 0.5].max(), smooth[centres >= 0.5].max()
    valley = smooth[(centres > 0.2) & (centres < 0.8)].min()
    return float(valley / max(min(left, right), 1e-300))


def _ordered(x: np.ndarray, labels: np.ndarray, count: int) -> Modes:
    """Modes without masses."""
    centres = np.stack([x[labels == k].mean(0) for k in range(count)])
    within = np.mean((x - centres[labels]) ** 2, axis=0)
    best = np.argmax(centres.var(0) / np.maximum(within, 1e-300))
    order = np.argsort(centres[:, best], kind="stable")
    return Modes(np.argsort(order)[labels], np.ones(0), np.ones(0), centres[order])


# --- one cut -------------------------------------------------------------------------------------


def _second_part(x: np.ndarray, depth: float, log_density: Density | None) -> np.ndarray | None:
    """Which points lie beyond the clearest valley; none if no valley counts."""
    if len(x) < 2 * NEIGHBOURS[0]:
        return None
    z, clipped, transform = _whitened(x)
    # A valley that the density is going to judge needs to be no more than likely.
    sigmas, level = (2.0, np.log(CHANCE)) if log_density is None else (0.0, 0.0)
    for axis, place in _valleys(z, clipped, transform, depth, sigmas, level):
        axis, place = _sharpened(clipped, axis, place)
        cut = _line_cut(z @ axis, place)
        if z.shape[1] > 1 and np.mean(_distance(z @ axis, place) < 0.5) > CONNECTION:
            bend = _bend(clipped, axis, place)
            if not (bend.is_known or log_density is not None):
                continue
            if bend.direction is not None:
                cut = _plane_cut(z @ np.stack([axis, bend.direction], 1), place[1], z.shape[1])
        if not 0 < cut.second.sum() < len(x):
            continue
        if log_density is not None:
            path = np.stack([w @ x / w.sum() for w in cut.around])
            if log_saddle(log_density, path, x, cut.second) < np.log(depth):
                return _centred(z, cut.second)
        elif cut.is_valley(np.sqrt(depth)):
            return _centred(z, cut.second)
    return None


def _centred(z: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The cut half-way between the medians of both parts, on the line through their means.

    The lowest place of a shallow valley is a matter of few points; means and medians rest on all of
    them. A cut that such a line does not show stays as it is.
    """
    moved = second
    for _ in range(10):
        t = z @ _unit(z[moved].mean(0) - z[~moved].mean(0))
        moved = t > 0.5 * (np.median(t[moved]) + np.median(t[~moved]))
        if moved.all() or not moved.any():
            return second
    return moved if np.mean(moved != second) < 0.1 else second


def _is_deep(few: ArrayLike, many: ArrayLike, depth: float, sigmas: float) -> np.ndarray:
    """Whether a count is below a part of another one, even if it is too low by some deviations."""
    few = np.asarray(few)
    return few + sigmas * np.sqrt(few) <= depth * np.asarray(many)


def _whitened(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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


def _valleys(
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
    groups = [(_unit(np.concatenate([coordinates, principal], 1)), z)]
    if z.shape[1] > 1:
        groups += [(_learnt_axes(clipped[::2]), z[1::2]), (_learnt_axes(clipped[1::2]), z[::2])]
    correction = np.log(sum(axes.shape[1] for axes, _ in groups))
    found: list[tuple[float, int, np.ndarray, np.ndarray]] = []
    for axes, judged in groups:
        log_p, places = _line_valleys(judged @ axes, depth, sigmas)
        for q in np.flatnonzero(log_p + correction < level):
            found.append((log_p[q] / len(judged), len(found), axes[:, q], places[q]))
    for _, _, axis, place in sorted(found, key=lambda candidate: candidate[:2])[:TRIES]:
        yield axis, place


def _learnt_axes(clipped: np.ndarray) -> np.ndarray:
    """Directions of low kurtosis, of high kurtosis and of large skewness (FastICA), `(m, 20)`."""
    z, _, transform = _whitened(clipped)
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
        skew = _unit(z.T @ (z @ skew) ** 2)
    halves = flat
    for _ in range(4):  # the line between the means of two halves, as in k-means
        halves = _unit(z.T @ np.sign(z @ halves))
    return _unit(transform @ np.concatenate([flat, halves, heavy, skew], 1))


def _fast_ica(z: np.ndarray, axes: np.ndarray) -> np.ndarray:
    g = np.tanh(z @ axes)
    return _unit(z.T @ g / len(z) - np.mean(1 - g**2, axis=0) * axes)


def _unit(columns: np.ndarray) -> np.ndarray:
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
                valley = 0.5 * (t[i[j] + s, j] + t[i[j] + s + a, j])
                best[j] = log_p[j]
                places[j] = middle[sides[0], j], valley, middle[sides[1], j]
    return best, places


# --- the same valley from peak to peak -----------------------------------------------------------


class _Cut(NamedTuple):
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


class _Bend(NamedTuple):
    """How a ridge bends at a valley.

    Attributes:
        direction: The one `(m,)` in which points change most, in mean or in spread, across the
            valley; None if the change is too small to make up for half of the density.
        is_known: Whether the points are enough to say so.
    """

    direction: np.ndarray | None
    is_known: bool


def _line_cut(t: np.ndarray, place: np.ndarray) -> _Cut:
    """The cut at a valley of one axis."""
    left, valley, right = place
    nodes = np.linspace(left, right, 9)[:, None]
    around = np.exp(-0.5 * ((t - nodes) / (0.15 * (right - left))) ** 2)
    return _Cut(t > valley, around, 0.0, float(len(t)))


def _distance(t: np.ndarray, place: np.ndarray) -> np.ndarray:
    """How far from the valley to its peaks points are: from 0 to 1."""
    left, valley, right = place
    side = np.where(t < valley, valley - left, right - valley)
    return np.minimum(np.abs(t - valley) / np.maximum(side, 1e-300), 1)


def _sharpened(z: np.ndarray, axis: np.ndarray, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The axis between the means of both sides of a valley, and the valley there.

    It is better known than an axis that comes from half of the points.
    """
    t = z @ axis
    below = np.mean(t[:, None] < place, axis=0)
    axis = _unit(z.T @ (t > place[1]) - z.sum(0) * (1 - below[1]))
    return axis, np.quantile(z @ axis, below)


def _bend(z: np.ndarray, axis: np.ndarray, place: np.ndarray) -> _Bend:
    n, m = z.shape
    far = _distance(z @ axis, place)
    far = (far - far.mean()) / far.std()
    others = np.linalg.qr(np.concatenate([axis[:, None], np.eye(m)], 1))[0][:, 1:]
    t = z @ axis - np.mean(z @ axis)
    rest = (z - z.mean(0)) @ others
    rest, _, root = _whitened(rest - np.outer(t, t @ rest / (t @ t)))
    shift = far @ rest / n
    spread, directions = np.linalg.eigh(rest.T @ (far[:, None] * rest) / n)
    widest = np.abs(spread).argmax()
    change = np.array([np.linalg.norm(shift), abs(spread[widest])])
    chance = np.sqrt([(m + 3 * np.sqrt(2 * m)) / n, 4.8 * m / n])  # edges of random spectra
    if np.all(change < np.maximum(chance, 0.2)):
        return _Bend(None, bool(chance[1] < 0.5))  # the spread of a ring changes by 0.7
    bend = [shift, directions[:, widest]][np.argmax(change / chance)]
    return _Bend(others @ root @ _unit(bend), m == 2 or bool(np.any(change > [2, 3] * chance)))


def _plane_cut(y: np.ndarray, valley: float, m: int) -> _Cut:
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
    return _Cut(second, around, density[path].min(), density[list(peaks)].min())


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
