"""Modes of a sample: regions of high density between which significant valleys lie.

Parts of the sample are cut in two along their clearest valley until no part has one:

1. Directions in which a part may be bimodal are its coordinates, its principal axes, and axes of
   low kurtosis, high kurtosis or skewness. The latter are learnt from one half of the points and
   judged by the other half.
2. On each direction, distances between sorted points show the valley that is least likely in a
   density of one peak. The level of the test counts all positions and directions searched.
3. The valley may belong to one curved ridge, such as a ring, seen from the side. Directions whose
   mean or spread changes across the valley join the first (`_companions`), and the valley has to
   show again in these one to three dimensions: on a graph of nearest neighbours, on the path
   that is lowest as late as possible, as few points around its lowest place against many around
   the lower of the two peaks.
4. Where the density itself is given, it decides: a path between the peaks climbs sideways until
   its lowest density is known (the string method), and candidates may be less significant.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree
from scipy.spatial import cKDTree
from scipy.special import betainc

from msign import checks
from msign.weights import normalised

DEPTH = 0.5  # A valley counts if its density is below this part of the lower peak's: Gaussians
# of equal size and width are two modes from 3.4 standard deviations between them.
FALSE_POSITIVES = (
    0.01  # Nominal probability of a cut within one mode. Bounds on bounds: measured 0.001.
)
CANDIDATES = 0.2  # The same where the density decides in the end.
SEARCHED = 4000  # Points among which a part's valley is searched; the others follow the nearest.
NEIGHBOURS = (24, 96)  # Points around a peak: few for small modes, many for shallow valleys.
FEWEST = 4  # Points around the lowest place of an empty valley; as many as at the peak otherwise.
EDGES = 10  # Neighbours of a point on the graph: enough to connect a smooth density's sample.
TRIES = 4  # Directions tried for a cut, the clearest first.
CONNECTION = 0.05  # Part of the points between two peaks below which no ridge can join them.
NODES = 12  # Points of a path along which the density is climbed.
BATCH = 128  # Points of each call of the density, so that a jitted function compiles once.
EVALUATIONS = 15_000  # Points at which the density is evaluated, before the last path is begun.
CLIMBS = 5  # Steps after which the valley of a climbing path has to have settled,
SETTLED = 0.2  # which it has when its logarithm changes by less than this part of it.

Density = Callable[[np.ndarray], ArrayLike]


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
    density = None if log_density is None else _CountedDensity(log_density)
    whole: list[np.ndarray] = []
    open_parts = [np.arange(len(distinct))]
    while open_parts:
        part = open_parts.pop(0)
        full = len(whole) + len(open_parts) + 1 >= max_modes
        second = None if full else _second_part(distinct[part], depth, density)
        if second is None:
            whole.append(part)
        else:
            open_parts += [part[~second], part[second]]
    labels = np.empty(len(distinct), int)
    for k, part in enumerate(whole):
        labels[part] = k
    return _ordered(x, labels[inverse.reshape(-1)], len(whole)).reweighted(log_weights)


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


class _Rule(NamedTuple):
    """When counts show a valley.

    Attributes:
        depth: Largest density of a valley over that of the lower peak.
        level: Log-probability, for all places searched, below which a valley is no chance.
        sigmas: Standard deviations by which a low count may be too low.
    """

    depth: float
    level: float
    sigmas: float

    def is_deep(self, few: ArrayLike, many: ArrayLike) -> np.ndarray:
        few = np.asarray(few)
        return few + self.sigmas * np.sqrt(few) <= self.depth * np.asarray(many)


def _second_part(
    x: np.ndarray, depth: float, density: "_CountedDensity | None"
) -> np.ndarray | None:
    """Which points lie beyond the clearest valley; none if no valley counts."""
    n = len(x)
    if n < 2 * NEIGHBOURS[0]:
        return None
    rng = np.random.default_rng(0)
    some = rng.permutation(n)[:SEARCHED]
    z, clipped, transform = _whitened(x)
    m = z.shape[1]
    strict, loose = (
        _Rule(depth, np.log(FALSE_POSITIVES), 2.0),
        _Rule(depth, np.log(CANDIDATES), 0.0),
    )
    if density is not None and density.left < 0:
        density = None
    rule = strict if density is None else loose
    for axes in _subspaces(z[some], clipped[some], transform, rule):
        y = _whitened(z @ axes)[0]
        # Learnt axes are known up to an angle of sqrt(m / n). Equal noise on all axes keeps the
        # density along a thin ring even, which errors of some of the axes would not.
        blur = np.sqrt(m / len(some)) if 1 < axes.shape[1] < m else 0.0
        seen = y[some] + blur * rng.normal(size=(len(some), y.shape[1]))
        for cut in _cuts(seen, rule):
            if density is not None:
                around = cKDTree(y[some]).query(seen[cut.path], NEIGHBOURS[0])[1]
                path = x[some][around].mean(1)
                if not density.has_valley(path, x[some], cut.second, depth):
                    continue
            second = cut.second[cKDTree(seen).query(y)[1]]
            if 0 < second.sum() < n:
                return second
    return None


def _whitened(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points in principal coordinates of unit variance, the same with clipped tails, the map.

    One percent of each coordinate is clipped before its moments are taken.
    """
    clipped = np.clip(x, *np.quantile(x, [0.005, 0.995], axis=0))
    mean = clipped.mean(0)
    values, vectors = np.linalg.eigh(np.cov(clipped.T, ddof=0).reshape(x.shape[1], -1))
    keep = values > 1e-14 * values.max()
    transform = vectors[:, keep] / np.sqrt(values[keep])
    return (x - mean) @ transform, (clipped - mean) @ transform, transform


def _subspaces(
    z: np.ndarray, clipped: np.ndarray, transform: np.ndarray, rule: _Rule
) -> Iterator[np.ndarray]:
    """Axes `(m, 1 to 3)` of subspaces in which whitened points may have a valley."""
    n, m = z.shape
    fixed = np.eye(m)
    groups = [(fixed, z)]
    if m > 1:
        coordinates = np.linalg.pinv(transform)
        standard = coordinates / np.maximum(np.linalg.norm(coordinates, axis=0), 1e-300)
        principal = standard @ np.linalg.eigh(standard.T @ standard)[1]
        fixed = np.concatenate([fixed, _unit(coordinates), _unit(principal)], 1)
        h = n // 2
        groups = [
            (fixed, z),
            (_learnt_axes(clipped[:h]), z[h:]),
            (_learnt_axes(clipped[h:]), z[:h]),
        ]
    correction = np.log(sum(axes.shape[1] for axes, _ in groups))
    found: list[tuple[float, int, np.ndarray, np.ndarray]] = []
    for axes, judged in groups:
        log_p, places = _line_valleys(judged @ axes, rule)
        for q in np.flatnonzero(log_p + correction < rule.level):
            found.append((log_p[q] / len(judged), len(found), axes[:, q], places[q]))
    everything = False  # whether all dimensions have been looked at together
    for _, _, axis, place in sorted(found, key=lambda candidate: candidate[:2])[:TRIES]:
        axes = np.concatenate([axis[:, None], _companions(clipped, axis, place)], 1)
        if axes.shape[1] < m or not everything:
            everything |= axes.shape[1] == m
            yield axes
    if m <= 3 and not everything:
        yield np.eye(m)


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


def _log_p(few: ArrayLike, many: ArrayLike, volume: ArrayLike = 1.0) -> np.ndarray:
    """Log-probability of so deep a valley where densities are equal.

    A ball of `volume` holds `few` points and one of unit volume `many`: volumes up to the a-th
    point are Gamma(a). Below the smallest numbers Chernoff's bound takes over.
    """
    a, b, v = (np.asarray(value, np.float64) for value in (few, many, volume))
    exact = betainc(b, a, 1 / (1 + v))
    bound = a * np.log((a + b) * v / ((1 + v) * a)) + b * np.log((a + b) / ((1 + v) * b))
    return np.where(exact > 1e-290, np.log(np.maximum(exact, 1e-300)), bound)


def _scales(n: int) -> list[int]:
    return [k for k in NEIGHBOURS if 4 * k <= n] or [n // 4]


def _line_valleys(t: np.ndarray, rule: _Rule) -> tuple[np.ndarray, np.ndarray]:
    """Clearest valley in each column: log-p of all positions, `(c,)`; left peak, valley, right."""
    n, c = t.shape
    t, columns = np.sort(t, axis=0), np.arange(c)
    best, places = np.zeros(c), np.zeros((c, 3))
    for k in _scales(n):
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
            log_p = _log_p(a, k, volume) + np.log(2 * len(_scales(n)) * n / k * n / a)
            for j in np.flatnonzero((log_p < best) & rule.is_deep(a, k * volume)):
                high = np.flatnonzero(width[:, j] <= lower_peak[i[j], j])
                sides = high[high <= i[j]][-1], high[high >= i[j]][0]
                valley = 0.5 * (t[i[j] + s, j] + t[i[j] + s + a, j])
                best[j] = log_p[j]
                places[j] = middle[sides[0], j], valley, middle[sides[1], j]
    return best, places


def _companions(z: np.ndarray, axis: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Up to two directions in which points change, in mean or spread, across a valley.

    None if the change could be chance (edges of the spectrum of random matrices), is too small
    to make up for half of the density, or if hardly a point is there to join the peaks.
    """
    n, m = z.shape
    t = z @ axis
    left, valley, right = place
    side = np.where(t < valley, valley - left, right - valley)
    far = np.minimum(np.abs(t - valley) / np.maximum(side, 1e-300), 1)
    if m == 1 or np.mean(far < 0.5) < CONNECTION:
        return np.zeros((m, 0))
    far = (far - far.mean()) / far.std()
    others = np.linalg.qr(np.concatenate([axis[:, None], np.eye(m)], 1))[0][:, 1:]
    t = t - t.mean()
    rest = (z - z.mean(0)) @ others
    rest, _, root = _whitened(rest - np.outer(t, t @ rest / (t @ t)))
    shift = far @ rest / n
    spread, directions = np.linalg.eigh(rest.T @ (far[:, None] * rest) / n)
    chance = np.sqrt((m + 3 * np.sqrt(2 * m)) / n), 2.2 * np.sqrt(m / n)
    changes = [(np.linalg.norm(shift) / max(chance[0], 0.2), shift)]
    changes += [
        (abs(s) / max(chance[1], 0.2), v) for s, v in zip(spread, directions.T, strict=True)
    ]
    taken = np.zeros((rest.shape[1], 0))
    for size, direction in sorted(changes, key=lambda change: -change[0]):
        new = _unit(direction) - taken @ (taken.T @ _unit(direction))
        if size > 1 and taken.shape[1] < 2 and np.linalg.norm(new) > 0.5:
            taken = np.concatenate([taken, _unit(new)[:, None]], 1)
    return others @ root @ taken


# --- valleys on a graph --------------------------------------------------------------------------


class _Cut(NamedTuple):
    """A cut of n points in two.

    Attributes:
        log_p: Log-probability of so clear a valley in a sample of one mode.
        second: Which points lie beyond the valley, `(n,)`.
        path: Indices of points from peak to peak.
    """

    log_p: float
    second: np.ndarray
    path: np.ndarray


def _cuts(y: np.ndarray, rule: _Rule) -> Iterator[_Cut]:
    """Up to three cuts of points in one to three dimensions, the clearest first.

    Balls of one radius around the lowest place of a path and around the lower peak are compared:
    equal radii are fair to points near a curve or a sheet, too, whose dimension is not that of
    the space.
    """
    n = len(y)
    tree = cKDTree(y)
    radii, near = tree.query(y, max(_scales(n)) + 1)
    pairs = [(FEWEST, _scales(n)[0]), *((k, k) for k in _scales(n))]
    found: list[tuple[float, int, int, int, np.ndarray]] = []
    for few, k in pairs:
        ends, lows = _spanning_tree(y, tree, near, radii[:, few], few)
        correction = np.log(len(pairs) * n / few * n / k)
        size = radii[:, k].tolist()
        peak = list(range(n))  # leads from each point to the densest one of its region
        for e, (i, j, radius) in enumerate(zip(*ends.T.tolist(), lows.tolist(), strict=True)):
            low, high = _last(peak, i), _last(peak, j)
            if size[low] < size[high]:
                low, high = high, low
            log_p = 0.0
            if radius > size[low]:
                many = int(np.searchsorted(radii[low], radius, "right")) - 1
                if many >= radii.shape[1] - 1:
                    many = tree.query_ball_point(y[low], radius, return_length=True) - 1
                if rule.is_deep(few, many):
                    log_p = float(_log_p(few, many)) + correction
            if log_p < rule.level:
                found.append((log_p, e, low, high, ends))
            else:
                peak[low] = high
    for log_p, e, low, high, ends in sorted(found, key=lambda cut: cut[:2])[:3]:
        whole = coo_array((np.ones(n - 1), ends.T), (n, n))
        cut = coo_array((np.ones(n - 2), np.delete(ends, e, 0).T), (n, n))
        before = breadth_first_order(whole, low, directed=False)[1]
        path = [high]
        while path[-1] != low:
            path.append(int(before[path[-1]]))
        second = connected_components(cut, directed=False)[1] == 1
        yield _Cut(log_p, second, np.array(path))


def _last(chain: list[int], i: int) -> int:
    """The end of a chain of links, which becomes shorter on the way."""
    while chain[i] != i:
        chain[i] = chain[chain[i]]
        i = chain[i]
    return i


def _spanning_tree(
    y: np.ndarray, tree: cKDTree, near: np.ndarray, radius: np.ndarray, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Tree of edges through the densest places: ends `(n - 1, 2)`, largest radii on them.

    `radius` is the distance of the k-th neighbour of each point. Edges come from the densest to
    the emptiest. Among all ways between two points on the graph, the one on the tree has the
    smallest largest radius. A point without a denser neighbour is joined to the nearest denser
    point, however far.
    """
    n = len(y)
    rank = np.argsort(np.argsort(-radius, kind="stable"), kind="stable")
    tops = np.flatnonzero((rank[near[:, : EDGES + 1]].max(1) == rank) & (rank < n - 1))
    denser = rank[near[tops]] > rank[tops, None]
    nearest = near[tops, denser.argmax(1)]
    for q in np.flatnonzero(~denser.any(1)):
        above = np.flatnonzero(rank > rank[tops[q]])
        nearest[q] = above[np.sum((y[above] - y[tops[q]]) ** 2, axis=1).argmin()]
    starts = np.concatenate([np.repeat(np.arange(n), EDGES), tops])
    targets = np.concatenate([near[:, 1 : EDGES + 1].ravel(), nearest])
    key = np.minimum(starts, targets) * n + np.maximum(starts, targets)
    long = key[len(key) - len(tops) :]
    key = np.unique(key[starts != targets])
    ends = np.stack([key // n, key % n], 1)
    largest = radius[ends].max(1)
    if len(tops):  # a long edge may be emptier between its ends
        long = np.searchsorted(key, long)
        a, b = y[ends[long, 0]], y[ends[long, 1]]
        inside = a + np.linspace(0, 1, 9)[1:-1, None, None] * (b - a)
        largest[long] = np.maximum(largest[long], tree.query(inside, [k])[0][..., 0].max(0))
    cost = coo_array((1 + np.argsort(np.argsort(largest, kind="stable")), ends.T), (n, n))
    kept = minimum_spanning_tree(cost).tocoo()
    kept = np.searchsorted(key, kept.row.astype(int) * n + kept.col)
    kept = kept[np.argsort(largest[kept], kind="stable")]
    return ends[kept], largest[kept]


# --- valleys of a density ------------------------------------------------------------------------


class _CountedDensity:
    """A log-density in batches of one size, of which `left` points may still be asked for."""

    def __init__(self, log_density: Density) -> None:
        self.log_density = log_density
        self.left = EVALUATIONS

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Values at `(..., m)`; not a number counts as no density."""
        flat = points.reshape(-1, points.shape[-1])
        padding = -len(flat) % BATCH
        padded = np.concatenate([flat, np.repeat(flat[-1:], padding, axis=0)])
        self.left -= len(padded)
        batches = np.split(padded, len(padded) // BATCH)
        values = [np.asarray(self.log_density(batch), np.float64) for batch in batches]
        checks.shape("log_density(points)", values[0].shape, (BATCH,))
        found = np.concatenate(values)[: len(flat)].reshape(points.shape[:-1])
        return np.where(np.isnan(found), -1e300, np.maximum(found, -1e300))

    def has_valley(self, path: np.ndarray, x: np.ndarray, second: np.ndarray, depth: float) -> bool:
        """Whether a valley stays on a path `(l, m)` between two parts of the points x that climbs.

        It climbs sideways by Newton's method as long as this fills the valley.
        """
        parts = [x[second], x[~second]]
        inner = np.concatenate([part - part.mean(0) for part in parts])
        values, vectors = np.linalg.eigh(np.cov(inner.T, ddof=0).reshape(x.shape[1], -1))
        axes = vectors * np.sqrt(np.maximum(values, 1e-14 * values.max()))  # columns
        nodes = _respaced(np.linalg.solve(axes, path.T).T, NODES)
        log_ratio, shallow = np.inf, np.log(depth)
        for _ in range(CLIMBS):
            nodes = _respaced(self._climbed(nodes, axes), NODES)
            before, log_ratio = log_ratio, self._log_ratio(nodes, axes)
            if log_ratio >= shallow:
                return False
            if abs(log_ratio - before) < SETTLED * (shallow - log_ratio):
                return True
        return False

    def _log_ratio(self, nodes: np.ndarray, axes: np.ndarray) -> float:
        """Lowest density on a path over the lower one of the peaks at its two sides."""
        values = self(_respaced(nodes, 4 * NODES) @ axes.T)
        left = np.maximum.accumulate(values)
        right = np.maximum.accumulate(values[::-1])[::-1]
        return float(np.min(values - np.minimum(left, right)))

    def _climbed(self, nodes: np.ndarray, axes: np.ndarray) -> np.ndarray:
        """One step of each node, in units of the axes; those between the ends move sideways."""
        step, m = 0.3, nodes.shape[1]
        here = self(nodes @ axes.T)
        around = nodes[:, None, None] + step * np.array([1, -1])[:, None, None] * np.eye(m)
        plus, minus = np.moveaxis(self(around @ axes.T), 1, 0)
        slope = (plus - minus) / (2 * step)
        bend = (plus + minus - 2 * here[:, None]) / step**2
        # Where the path is in a hole, all nodes in it leave by the same side.
        side = np.sign(np.sum(np.where(bend < 0, 0, slope), axis=0))
        newton = np.where(bend < 0, -slope / np.minimum(bend, -1e-300), side).clip(-1, 1)
        along = _unit((nodes[2:] - nodes[:-2]).T).T
        newton[1:-1] -= np.sum(newton[1:-1] * along, axis=1, keepdims=True) * along
        trials = nodes + np.array([0, 1, 0.5, 0.2, 0.05])[:, None, None] * newton
        best = self(trials @ axes.T).argmax(0)
        return trials[best, np.arange(len(nodes))]


def _respaced(path: np.ndarray, count: int) -> np.ndarray:
    """So many points at equal distances along a polygon."""
    lengths = np.linalg.norm(np.diff(path, axis=0), axis=1)
    at = np.concatenate([[0], np.cumsum(lengths)])
    wanted = np.linspace(0, at[-1], count)
    return np.stack([np.interp(wanted, at, coordinate) for coordinate in path.T], 1)
