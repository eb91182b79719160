"""Finding the likelihood-informed subspace of whitened space.

The matrix E[g g^T] of likelihood gradients g says in which directions data pull the posterior
away from the prior. Leaving out directions costs at most about half of the sum of their
eigenvalues in nats, which is how the rank is chosen.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from flowjax.bijections import AbstractBijection
from jaxtyping import Array

from msign.noise import on_device
from msign.priors import Prior

ROWS_PER_DIRECTION = 3  # fields that a linear fit needs for each direction


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
    gradients: np.ndarray, max_rank: int, tolerance: float, min_rank: int = 1
) -> Subspace:
    """Leading directions of `(n, d)` gradients: few, with less than `tolerance` left out."""
    g = np.asarray(gradients, np.float64) / np.sqrt(len(gradients))
    _, singular, directions = np.linalg.svd(g, full_matrices=False)
    values = singular**2
    tails = 0.5 * np.append(np.cumsum(values[::-1])[::-1], 0.0)
    rank = int(np.argmax(tails <= tolerance))
    rank = min(max(rank, min_rank), max_rank, len(values))
    return Subspace(directions[:rank].T, values[:rank], float(tails[rank]))


def align(basis: np.ndarray, lifted: np.ndarray) -> np.ndarray:
    """The basis rotated so that its first columns come closest to `lifted` (Procrustes).

    A flow trained along `lifted` can then be carried over. The other columns keep their order. A
    basis of fewer columns than `lifted` is extended by what it lacks of these.
    """
    r, old = basis.shape[1], lifted.shape[1]
    if r < old:
        rest = lifted - basis @ (basis.T @ lifted)
        basis = np.concatenate([basis, np.linalg.svd(rest)[0][:, : old - r]], 1)
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


def gradients_by_regression(
    s: np.ndarray, rest: np.ndarray, residuals: np.ndarray, score: np.ndarray | None = None
) -> np.ndarray:
    """Gradients of the log-likelihood without derivatives, from evaluated fields.

    The whitened residuals r(u), or other features of the observations, are fitted by a quadratic
    in the known variables s plus terms linear in the rest, whose slopes may vary linearly with s;
    the gradient is the score, -r of Gaussian noise, times the derivative of the fit. Slopes that do
    not stand out of the sampling noise are zero.

    Args:
        s: Variables along the known directions `(n, r)`.
        rest: The other whitened coordinates `(n, d)`, their parts along the known directions
            removed; standard normal and independent of s.
        residuals: Or other features `(n, m)`.
        score: Derivative of the log-likelihood with respect to them `(n, m)`; None: -residuals.

    Returns:
        Gradients with respect to s and to the rest, `(n, r + d)`.
    """
    n, r = s.shape
    score = -residuals if score is None else score
    upper = np.triu_indices(r)
    centre, spread = s.mean(0), s.std(0) + 1e-12
    t = (s - centre) / spread
    quadratic = np.concatenate([np.ones((n, 1)), t, t[:, upper[0]] * t[:, upper[1]]], 1)
    fit, *_ = np.linalg.lstsq(quadratic, residuals, rcond=1e-8)
    left = residuals - quadratic @ fit
    # Derivative of the quadratic along s: (n, r, m).
    linear, second = fit[1 : r + 1], np.zeros((r, r, residuals.shape[1]))
    second[upper] = fit[r + 1 :]
    second = second + second.transpose(1, 0, 2)
    slope_s = (linear + np.einsum("nk,kjm->njm", t, second)) / spread[:, None]
    gradient_s = np.einsum("nm,njm->nj", score, slope_s)
    # Slopes along the rest, for each residual and each of the weights 1, t_1, ..., t_r.
    weights = np.concatenate([np.ones((n, 1)), t], 1)
    weights = np.linalg.qr(weights)[0] * np.sqrt(n)
    products = (left[:, :, None] * weights[:, None, :]).reshape(n, -1)
    slopes = products.T @ rest / n
    noise = (products**2).mean(0) * rest.shape[1] / n
    slopes[(slopes**2).sum(1) < 2 * noise] = 0.0
    slopes = slopes.reshape(residuals.shape[1], r + 1, -1)
    gradient_rest = np.einsum("nm,nq,mqd->nd", score, weights, slopes, optimize=True)
    return np.concatenate([gradient_s, gradient_rest], 1)


def gradients_of_linear_residuals(
    u: np.ndarray, residuals: np.ndarray, tolerance: float, score: np.ndarray | None = None
) -> np.ndarray | None:
    """Exact gradients where residuals `(n, m)` are linear in all coordinates `(n, d)`; else None.

    `tolerance` is the mean squared error, summed over residuals, up to which they are. They may be
    other features of the observations, with the log-likelihood's `score` (default: -residuals).
    """
    n, d = u.shape
    if n < ROWS_PER_DIRECTION * (d + 1):
        return None
    design = np.concatenate([np.ones((n, 1)), u], 1)
    fit, *_ = np.linalg.lstsq(design, residuals, rcond=None)
    if np.mean(np.sum((residuals - design @ fit) ** 2, 1)) > tolerance:
        return None
    return (-residuals if score is None else score) @ fit[1:].T


def lift_directions(prior: Prior, basis: np.ndarray) -> np.ndarray:
    """Directions of the next coarser scale's whitened space, in that of `prior`."""
    d = prior.lattice.dim
    padded = np.concatenate([basis.T, np.zeros((basis.shape[1], d - basis.shape[0]))], 1)
    return np.asarray(_rotated(prior.rotation(), on_device(padded)), np.float64).T


@eqx.filter_jit
def _rotated(rotation: AbstractBijection, directions: Array) -> Array:
    return jax.vmap(rotation.transform)(directions)
