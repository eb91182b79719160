"""The saddle of a density between two peaks, by the string method.

W. E, W. Ren, E. Vanden-Eijnden: Simplified and improved string method for computing the minimum
energy paths in barrier-crossing events, J. Chem. Phys. 126, 2007.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import ArrayLike

from msign import checks

NODES = 12  # Points of a path.
CLIMBS = 8  # Steps of a path.
BATCH = 128  # Points of each call of the density, so that a jitted function compiles once.

Density = Callable[[np.ndarray], ArrayLike]


def log_saddle(log_density: Density, path: np.ndarray, x: np.ndarray, second: np.ndarray) -> float:
    """Log of the saddle's density over the lower peak's, between two parts of the points x.

    A path `(l, m)` from peak to peak climbs sideways by Newton's method, and its ends climb
    freely; steps are measured by the spread of points within the parts.
    """
    parts = [x[second], x[~second]]
    inner = np.concatenate([part - part.mean(0) for part in parts])
    values, vectors = np.linalg.eigh(np.cov(inner.T, ddof=0).reshape(x.shape[1], -1))
    axes = vectors * np.sqrt(np.maximum(values, 1e-14 * values.max()))  # columns

    def scaled(nodes: np.ndarray) -> np.ndarray:
        return _evaluated(log_density, nodes @ axes.T)

    nodes = _respaced(np.linalg.solve(axes, path.T).T, NODES)
    for _ in range(CLIMBS):
        nodes = _respaced(_climbed(scaled, nodes), NODES)
    found = scaled(_respaced(nodes, 4 * NODES))
    left = np.maximum.accumulate(found)
    right = np.maximum.accumulate(found[::-1])[::-1]
    return float(np.min(found - np.minimum(left, right)))


def _climbed(log_density: Callable[[np.ndarray], np.ndarray], nodes: np.ndarray) -> np.ndarray:
    """One step of each node; those between the ends move sideways."""
    step, m = 0.3, nodes.shape[1]
    here = log_density(nodes)
    around = nodes[:, None, None] + step * np.array([1, -1])[:, None, None] * np.eye(m)
    plus, minus = np.moveaxis(log_density(around), 1, 0)
    slope = (plus - minus) / (2 * step)
    bend = (plus + minus - 2 * here[:, None]) / step**2
    newton = np.where(bend < 0, -slope / np.minimum(bend, -1e-300), np.sign(slope)).clip(-1, 1)
    along = nodes[2:] - nodes[:-2]
    along /= np.maximum(np.linalg.norm(along, axis=1, keepdims=True), 1e-300)
    newton[1:-1] -= np.sum(newton[1:-1] * along, axis=1, keepdims=True) * along
    trials = nodes + np.array([0, 1, 0.5, 0.2, 0.05])[:, None, None] * newton
    best = log_density(trials).argmax(0)
    return trials[best, np.arange(len(nodes))]


def _evaluated(log_density: Density, points: np.ndarray) -> np.ndarray:
    """Values at `(..., m)` in batches of one size; not a number counts as no density."""
    flat = points.reshape(-1, points.shape[-1])
    padded = np.concatenate([flat, np.repeat(flat[-1:], -len(flat) % BATCH, axis=0)])
    batches = np.split(padded, len(padded) // BATCH)
    values = [np.asarray(log_density(batch), np.float64) for batch in batches]
    checks.shape("log_density(points)", values[0].shape, (BATCH,))
    found = np.concatenate(values)[: len(flat)].reshape(points.shape[:-1])
    return np.where(np.isnan(found), -1e300, np.maximum(found, -1e300))


def _respaced(path: np.ndarray, count: int) -> np.ndarray:
    """Points at equal distances along a polygon."""
    lengths = np.linalg.norm(np.diff(path, axis=0), axis=1)
    at = np.concatenate([[0], np.cumsum(lengths)])
    wanted = np.linspace(0, at[-1], count)
    return np.stack([np.interp(wanted, at, coordinate) for coordinate in path.T], 1)
