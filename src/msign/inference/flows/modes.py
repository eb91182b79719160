"""Gaussians around several maxima as one map of noise."""

from collections.abc import Sequence

import numpy as np
import scipy.linalg
from scipy.optimize import brentq

from msign.bijections import GaussianMap, GaussianModes

Part = tuple[np.ndarray, np.ndarray]  # mean, and a matrix A with A A^T the covariance

LINES = 256  # tried, along which more than two modes may lie apart


def gaussian_modes(parts: Sequence[Part], shares: np.ndarray) -> GaussianMap | GaussianModes:
    """The map of a mixture of Gaussians, along the line on which they lie furthest apart.

    Args:
        parts: Mean and matrix of each.
        shares: Mass of each, up to a factor.
    """
    if len(parts) == 1:
        mean, root = parts[0]
        return GaussianMap(root, mean)
    axis = _best_line(parts)
    order = np.argsort([mean @ axis for mean, _ in parts])
    means = np.stack([parts[k][0] for k in order])
    shares = np.asarray(shares, np.float64)[order] / np.sum(shares)
    mirror = axis - np.eye(1, len(axis))[0]
    mirror /= np.linalg.norm(mirror)
    means = means - 2 * np.outer(means @ mirror, mirror)
    roots = np.stack([_lower(_reflected(parts[k][1], mirror)) for k in order])
    cuts = [
        _cut(shares[k : k + 2], means[k : k + 2, 0], roots[k : k + 2, 0, 0])
        for k in range(len(parts) - 1)
    ]
    return GaussianModes(axis, np.array(cuts), means, roots, shares)


def standard_modes(dim: int, modes: int) -> GaussianMap | GaussianModes:
    """A map of this many modes, for files: its numbers mean nothing."""
    if modes == 1:
        return GaussianMap(np.eye(dim), np.zeros(dim))
    shares, roots = np.full(modes, 1 / modes), np.tile(np.eye(dim), (modes, 1, 1))
    cuts, means = np.arange(modes - 1.0), np.zeros((modes, dim))
    return GaussianModes(-np.eye(1, dim)[0], cuts, means, roots, shares)


def _best_line(parts: Sequence[Part]) -> np.ndarray:
    """The unit vector along which the means lie furthest apart, in deviations of their Gaussians.

    For two Gaussians it is Fisher's; for more the best of many in the span of those of all pairs.
    Its first entry is not positive.
    """
    within = sum(root @ root.T for _, root in parts)
    means = np.stack([mean for mean, _ in parts])
    away = scipy.linalg.solve(within, (means[1:] - means[0]).T, assume_a="pos")
    mixed = np.random.default_rng(0).normal(size=(away.shape[1], LINES if len(parts) > 2 else 1))
    lines = away / np.linalg.norm(away, axis=0) @ mixed
    lines /= np.linalg.norm(lines, axis=0)
    at = means @ lines
    wide = np.stack([np.linalg.norm(root.T @ lines, axis=0) for _, root in parts])
    order = np.argsort(at, axis=0)
    at, wide = (np.take_along_axis(a, order, 0) for a in (at, wide))
    best = lines[:, np.argmax(np.min(np.diff(at, axis=0) / (wide[1:] + wide[:-1]), axis=0))]
    return best if best[0] <= 0 else -best


def _reflected(root: np.ndarray, mirror: np.ndarray) -> np.ndarray:
    return root - 2 * np.outer(mirror, mirror @ root)


def _lower(root: np.ndarray) -> np.ndarray:
    """Lower triangular L with L L^T = A A^T and a positive diagonal."""
    upper = scipy.linalg.qr(root.T, mode="r")[0]
    return upper.T * np.sign(np.diag(upper))


def _cut(shares: np.ndarray, at: np.ndarray, wide: np.ndarray) -> float:
    """Where two Gaussians with these shares, means and deviations have the same density.

    Between their means, or at the mean of the one that is lower everywhere.
    """

    def excess(t: float) -> float:
        first, second = np.log(shares / wide) - 0.5 * ((t - at) / wide) ** 2
        return first - second

    if excess(at[0]) <= 0 or excess(at[1]) >= 0:
        return float(at[0] if excess(at[0]) <= 0 else at[1])
    return float(brentq(excess, *at))
