"""Modes of a sample: regions of high density between which significant valleys lie.

Parts of the sample are cut in two at their clearest valley until no part has one:

1. Axes on which a part may be bimodal are its coordinates, its principal axes, and axes of low
   or high kurtosis or of skewness. The latter are learnt from one half of the points and assessed
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

from typing import NamedTuple

import numpy as np
from jaxtyping import ArrayLike

from msign import checks
from msign.diagnostics.saddle import Density, log_saddle
from msign.diagnostics.valleys import (
    NEIGHBOURS,
    bend_of,
    distance,
    line_cut,
    plane_cut,
    sharpened,
    unit,
    valleys,
    whitened,
)
from msign.variables import Variables, log_ratio
from msign.weights import normalised

DEPTH = 0.5  # A valley counts if its density is below this part of the lower peak's: Gaussians
# of equal size and width are two modes from 3.4 standard deviations between them.
CHANCE = 0.01  # Nominal probability of a cut within one mode. Bounds on bounds: measured 0.001.
CONNECTION = 0.05  # Part of the points between two peaks below which no ridge can join them.


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

    The model's own density decides where the draws have all its variables.
    """
    s = np.asarray(draws, np.float64)
    if s.shape[1] < variables.size:
        return find_modes(s)

    def log_density(s: np.ndarray) -> np.ndarray:
        ratio = np.asarray(log_ratio(variables.alone, s), np.float64)
        return ratio - 0.5 * np.sum(s**2, axis=1)

    return find_modes(s, log_density=log_density)


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
    z, clipped, transform = whitened(x)
    # Where the density decides, a valley needs to be no more than likely.
    sigmas, level = (2.0, np.log(CHANCE)) if log_density is None else (0.0, 0.0)
    for axis, place in valleys(z, clipped, transform, depth, sigmas, level):
        axis, place = sharpened(clipped, axis, place)
        if not place[0] < place[2]:
            continue
        cut = line_cut(z @ axis, place)
        if z.shape[1] > 1 and np.mean(distance(z @ axis, place) < 0.5) > CONNECTION:
            bend = bend_of(clipped, axis, place)
            if not (bend.is_known or log_density is not None):
                continue
            if bend.direction is not None:
                cut = plane_cut(z @ np.stack([axis, bend.direction], 1), place[1], z.shape[1])
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
        t = z @ unit(z[moved].mean(0) - z[~moved].mean(0))
        moved = t > 0.5 * (np.median(t[moved]) + np.median(t[~moved]))
        if moved.all() or not moved.any():
            return second
    return moved if np.mean(moved != second) < 0.1 else second
