"""Gaussians around several maxima as one map of noise."""

from collections.abc import Sequence

import numpy as np
import scipy.linalg
from flowjax.bijections import Chain
from scipy.special import logsumexp

from msign.bijections import GaussianMap, GaussianModes, InformedConfig, SplineMap, TriangularMap
from msign.bijections.subspace import NARROW
from msign.inference.methods.rearrangement import integrated, spline_to

Part = tuple[np.ndarray, np.ndarray]  # mean, and a matrix A with A A^T the covariance

LINES = 256  # tried, along which more than two modes may lie apart
REACH = 8.0  # standard deviations of a mode along the line on both sides of its mean
POINTS = 801  # of a mode on that line


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
    at, wide = means[:, 0], roots[:, 0, 0]
    grid = np.unique(at[:, None] + wide[:, None] * np.linspace(-REACH, REACH, POINTS))
    each = np.log(shares / wide) - 0.5 * ((grid[:, None] - at) / wide) ** 2
    return GaussianModes(
        _line_with(grid, logsumexp(each, axis=1)), axis, _cuts(grid, each, at), means, roots, shares
    )


def standard_modes(dim: int, modes: int) -> GaussianMap | GaussianModes:
    """A map of this many modes, for files: its numbers mean nothing."""
    if modes == 1:
        return GaussianMap(np.eye(dim), np.zeros(dim))
    line = _line_with(np.linspace(-REACH, REACH, POINTS), np.zeros(POINTS))
    shares = np.full(modes, 1 / modes)
    roots = np.tile(np.eye(dim), (modes, 1, 1))
    cuts, means = np.arange(modes - 1.0), np.zeros((modes, dim))
    return GaussianModes(line, -np.eye(1, dim)[0], cuts, means, roots, shares)


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


def _line_with(grid: np.ndarray, log_density: np.ndarray) -> Chain:
    """The increasing map of one variable that has a density on a grid."""
    config = InformedConfig()
    spline = SplineMap(1, config.single, config.interval, NARROW)
    moved, scale, shift, _ = spline_to(spline, integrated(grid, log_density, config.interval))
    return Chain([moved, TriangularMap.from_matrix(np.array([[scale]]), np.array([shift]))])


def _cuts(grid: np.ndarray, each: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Where two neighbours have the same density, between their means."""
    cuts = []
    for k in range(len(at) - 1):
        between = np.flatnonzero((grid >= at[k]) & (grid <= at[k + 1]))
        off = np.abs(each[between, k] - each[between, k + 1])
        cuts.append(grid[between[np.argmin(off)]])
    return np.array(cuts)
