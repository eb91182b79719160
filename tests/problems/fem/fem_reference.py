"""Slow, independent versions of the elliptic problem to test against."""

from decimal import Decimal, localcontext

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla


def element_stiffness() -> np.ndarray:
    """Stiffness matrix of the bilinear unit square by Gauss quadrature, corners as in `corners`."""
    points = 0.5 + np.array([-1, 1]) / (2 * np.sqrt(3))
    matrix = np.zeros((4, 4))
    for s in points:
        for t in points:
            ds = np.array([-(1 - t), -t, 1 - t, t])
            dt = np.array([-(1 - s), 1 - s, -s, s])
            matrix += (np.outer(ds, ds) + np.outer(dt, dt)) / 4
    return matrix


def corners(size: int) -> np.ndarray:
    """Node numbers (cells, 4) of the corners (0,0), (0,1), (1,0), (1,1) of each cell."""
    nodes = np.arange((size + 1) ** 2).reshape(size + 1, size + 1)
    return np.stack(
        [nodes[i : i + size, j : j + size].ravel() for i in (0, 1) for j in (0, 1)], axis=1
    )


def interior(size: int) -> np.ndarray:
    return np.arange((size + 1) ** 2).reshape(size + 1, size + 1)[1:-1, 1:-1].ravel()


def solve(x: np.ndarray, nodal_load: np.ndarray) -> np.ndarray:
    """Nodal solution for one field by SciPy's sparse LU."""
    size = len(x)
    c, inside = corners(size), interior(size)
    values = np.exp(x).reshape(-1, 1, 1) * element_stiffness()
    rows, columns = np.repeat(c, 4, axis=1).ravel(), np.tile(c, (1, 4)).ravel()
    matrix = sp.csc_matrix((values.ravel(), (rows, columns)))
    u = np.zeros((size + 1) ** 2)
    u[inside] = sla.splu(matrix[inside][:, inside]).solve(nodal_load.ravel()[inside])
    return u.reshape(size + 1, size + 1)


def solve_in_many_digits(x: np.ndarray, nodal_load: np.ndarray) -> np.ndarray:
    """Solution at the inner nodes by Gaussian elimination in 60 decimal digits."""
    size = len(x)
    stiffness = np.rint(6 * element_stiffness()).astype(int)
    full = np.full(((size + 1) ** 2,) * 2, Decimal(0))
    inside = interior(size)
    with localcontext(prec=60):
        for coefficient, nodes in zip(np.exp(x).ravel(), corners(size), strict=True):
            entries = [[Decimal(float(coefficient)) * int(k) / 6 for k in row] for row in stiffness]
            full[np.ix_(nodes, nodes)] += np.array(entries)
        a = full[np.ix_(inside, inside)]
        b = np.array([Decimal(float(value)) for value in nodal_load.flat[inside]])
        for k in range(len(b)):
            ratios = a[k + 1 :, k] / a[k, k]
            a[k + 1 :] -= ratios[:, None] * a[k]
            b[k + 1 :] -= ratios * b[k]
        for k in reversed(range(len(b))):
            b[k] = (b[k] - (a[k, k + 1 :] * b[k + 1 :]).sum()) / a[k, k]
    return b.astype(float)


def observe(u: np.ndarray, weights: np.ndarray) -> np.ndarray:
    cells = (u[:-1, :-1] + u[1:, :-1] + u[:-1, 1:] + u[1:, 1:]) / 4
    return np.einsum("kij,ij->k", weights, cells)


def smooth_field(size: int) -> np.ndarray:
    s = (np.arange(size) + 0.5) / size
    return np.sin(5 * s[:, None]) + np.cos(3 * s[None, :] + s[:, None])


def four_wells(s1: np.ndarray, s2: np.ndarray) -> np.ndarray:
    """A load with sign changes, symmetric under s2 -> 1 - s2."""
    total = np.zeros_like(s1)
    for sign, a, b in ((1, 0.3, 0.3), (1, 0.3, 0.7), (-1, 0.7, 0.3), (-1, 0.7, 0.7)):
        total += sign * 100 * np.exp(-((s1 - a) ** 2 + (s2 - b) ** 2) / 0.02)
    return total
