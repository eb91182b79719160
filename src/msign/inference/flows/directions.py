"""Finding the likelihood-informed subspace of whitened space.

The matrix E[g g^T] of likelihood gradients g says in which directions data pull the posterior
away from the prior. Leaving out directions costs at most about half of the sum of their
eigenvalues in nats, which is how the rank is chosen.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
import scipy.linalg
from flowjax.bijections import AbstractBijection
from jaxtyping import Array

from msign.bijections import InformedConfig
from msign.noise import on_device
from msign.priors import Prior

ROWS_PER_DIRECTION = 3  # fields that least squares need for each coefficient, at the least
MOST_VARIABLES = InformedConfig.max_rank  # of a polynomial that is fitted to what was simulated
PRECISE = 1e-8  # of the largest eigenvalue: those above it are right to half of all digits


class Subspace(NamedTuple):
    """Orthonormal directions `(d, r)` in order of falling eigenvalues `(r,)`, and what is left out.

    Attributes:
        basis: The directions.
        eigenvalues: Of E[g g^T] along them.
        discarded: Half of the sum of the other eigenvalues, in nats.
    """

    basis: np.ndarray
    eigenvalues: np.ndarray
    discarded: float


def subspace_from_gradients(
    gradients: np.ndarray,
    max_rank: int,
    tolerance: float,
    min_rank: int = 1,
    span: np.ndarray | None = None,
) -> Subspace:
    """Leading directions of `(n, d)` gradients: few, with less than `tolerance` left out.

    Gradients may be coefficients `(n, k)` of the orthonormal columns `(d, k)` of `span`.
    """
    g = np.asarray(gradients, np.float64) / np.sqrt(len(gradients))
    values, directions = np.zeros(0), np.zeros((g.shape[1], 0))
    while True:  # a matrix of products has half of the digits: what is small is found in the rest
        found, along = _leading_products(g, max_rank - len(values))
        values, directions = np.append(values, found), np.concatenate([directions, along], 1)
        g = g - (g @ along) @ along.T
        left = np.sum(g**2)
        if 0.5 * left <= tolerance or len(values) >= max_rank or not len(found):
            break
    missing = min(min_rank, max_rank, *g.shape) - len(values)
    if missing > 0:  # directions that no gradient has
        values = np.append(values, np.zeros(missing))
        directions = np.concatenate([directions, np.eye(len(directions), missing)], 1)
    tails = 0.5 * (np.append(np.cumsum(values[::-1])[::-1], 0.0) + left)
    rank = int(np.argmax(tails <= tolerance)) if tails[-1] <= tolerance else len(values)
    rank = min(max(rank, min_rank), max_rank, len(values))
    basis = _orthonormal(directions[:, :rank])
    return Subspace(basis if span is None else span @ basis, values[:rank], float(tails[rank]))


def _leading_products(g: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues, falling, and eigenvectors of g^T g: `most`, or as many as are known.

    From products of rows or of columns, whichever are fewer: forty times faster than a singular
    value decomposition of a few gradients on a large lattice.
    """
    few = len(g) < g.shape[1]
    products = g @ g.T if few else g.T @ g
    size = len(products)
    wanted = (max(0, size - most), size - 1)
    values, vectors = scipy.linalg.eigh(products, subset_by_index=wanted)
    values, vectors = values[::-1], vectors[:, ::-1]
    known = values > PRECISE * values[0] if values[0] > 0 else np.zeros(len(values), bool)
    values, vectors = values[known], vectors[:, known]
    return values, _orthonormal(g.T @ (vectors / np.sqrt(values))) if few else vectors


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    """Columns made orthonormal, each by those before it."""
    q, r = np.linalg.qr(columns)
    return q * np.where(np.diag(r) < 0, -1.0, 1.0)


def align(basis: np.ndarray, lifted: np.ndarray) -> np.ndarray:
    """The basis rotated so that its first columns come closest to `lifted` (Procrustes).

    A flow trained along `lifted` can then be carried over. The other columns keep their order. A
    basis of fewer columns than `lifted` is extended by what it lacks of these.
    """
    r, old = basis.shape[1], lifted.shape[1]
    if r < old:
        rest = lifted - basis @ (basis.T @ lifted)
        basis = np.concatenate(
            [basis, np.linalg.svd(rest, full_matrices=False)[0][:, : old - r]], 1
        )
        r = old
    left, _, right = np.linalg.svd(basis.T @ lifted, full_matrices=False)
    first = basis @ (left @ right)
    if r == old:
        return first
    rest = basis - first @ (first.T @ basis)
    return np.concatenate([first, _leading_columns(rest, r - old)], 1)


def _leading_columns(rest: np.ndarray, count: int) -> np.ndarray:
    """`count` orthonormal columns spanning the columns of `rest`, earlier ones first."""
    span = np.linalg.svd(rest, full_matrices=False)[0][:, :count]
    order = np.argsort(np.argmax(np.abs(span.T @ rest), axis=1), kind="stable")
    return span[:, order]


def lift_directions(prior: Prior, basis: np.ndarray) -> np.ndarray:
    """Directions of the next coarser scale's whitened space, in that of `prior`."""
    d = prior.lattice.dim
    padded = np.concatenate([basis.T, np.zeros((basis.shape[1], d - basis.shape[0]))], 1)
    return np.asarray(_rotated(prior.rotation(), on_device(padded)), np.float64).T


@eqx.filter_jit
def _rotated(rotation: AbstractBijection, directions: Array) -> Array:
    return jax.vmap(rotation.transform)(directions)
