"""Informed directions: their number, their order, how they continue those of the scale before."""

import jax.random as jr
import numpy as np
import pytest

from helpers import seeded
from msign import LaplacePrior
from msign.inference.flows.directions import (
    align,
    gradients_by_regression,
    gradients_of_linear_residuals,
    lift_directions,
    subspace_from_gradients,
)


def orthonormal(d: int, r: int, seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seeded(seed)).normal(size=(d, r)))[0]


def test_rank_is_the_smallest_that_keeps_the_tolerance():
    rng, n = np.random.default_rng(seeded(0)), 4000
    q = orthonormal(20, 20, 1)
    scales = np.array([10.0, 3.0, 0.5, 0.01])
    gradients = rng.normal(size=(n, 4)) * scales @ q[:4]
    found = subspace_from_gradients(gradients, 10, tolerance=0.01)
    assert found.basis.shape == (20, 3)
    # Directions are found up to a relative error of the order of 1 / sqrt(n), eigenvalues (mean
    # squares of n normal numbers) up to sqrt(2 / n).
    overlap = np.linalg.svd(found.basis.T @ q[:3].T)[1]
    np.testing.assert_allclose(overlap, 1, atol=25 / n)
    np.testing.assert_allclose(found.eigenvalues, scales[:3] ** 2, rtol=5 * np.sqrt(2 / n))
    assert found.discarded < 0.01
    assert subspace_from_gradients(gradients, 2, 0.01).basis.shape[1] == 2
    assert subspace_from_gradients(gradients, 10, 0.01, min_rank=4).basis.shape[1] == 4


@pytest.mark.parametrize(
    ("directions", "carried"), [(5, 2), (5, 5), (2, 4), (1, 3), (3, 0)], ids=str
)
def test_aligned_basis_continues_the_old_one(directions, carried):
    """Also where there are fewer new directions than old ones."""
    basis, old = orthonormal(30, directions, 2), orthonormal(30, carried, 3)
    aligned = align(basis, old)
    rank = max(directions, carried)
    np.testing.assert_allclose(aligned.T @ aligned, np.eye(rank), atol=1e-10)
    # It spans the new directions, ...
    np.testing.assert_allclose(aligned @ (aligned.T @ basis), basis, atol=1e-10)
    # ... and of all orthonormal columns in its span its first are the closest to the old ones
    # (their products are a symmetric positive matrix), which is what a rotation needs.
    products = aligned[:, :carried].T @ old
    np.testing.assert_allclose(products, products.T, atol=1e-10)
    assert carried == 0 or np.linalg.eigvalsh(products)[0] > -1e-10
    nuclear = np.linalg.svd(aligned.T @ old)[1].sum()
    assert np.trace(products) == pytest.approx(nuclear, abs=1e-9)


def test_fewer_directions_than_carried_ones_keep_what_they_lack_of_these():
    """The old directions lie in the aligned span but for what the new ones push out of it."""
    basis, old = orthonormal(30, 1, 4), orthonormal(30, 3, 5)
    within = np.linalg.qr(np.concatenate([basis, old], 1))[0]
    aligned = align(basis, old)
    np.testing.assert_allclose(within @ (within.T @ aligned), aligned, atol=1e-10)
    lost = np.sort(1 - np.linalg.svd(aligned.T @ old)[1] ** 2)
    np.testing.assert_allclose(lost[:2], 0, atol=1e-10)


def test_an_old_basis_within_the_new_one_is_kept_as_it_is():
    basis = orthonormal(30, 5, 6)
    old = basis @ orthonormal(5, 2, 7)
    np.testing.assert_allclose(align(basis, old)[:, :2], old, atol=1e-10)


def test_lifted_directions_are_those_of_the_pooled_field():
    prior = LaplacePrior((8, 8), 0.3, 2.0)
    direction = orthonormal(16, 2, 8)
    lifted = lift_directions(prior, direction)
    x = prior.sample(jr.key(seeded(0)), 6)
    fine = np.asarray(prior.whiten(x)) @ lifted
    pooled = np.asarray(prior.coarsen().whiten(prior.lattice.pool(x))) @ direction
    np.testing.assert_allclose(fine, pooled, atol=1e-8)


def test_regression_finds_the_gradient_of_a_quadratic_map():
    """r = (w u)^2 - 1 with w mostly, not wholly, along the known direction."""
    rng = np.random.default_rng(seeded(3))
    d, n = 20, 4000
    w = np.zeros(d)
    w[0], w[5] = 0.95, 0.2
    s = rng.normal(size=(n, 1)) + rng.choice([-2, 2], size=(n, 1))
    rest = rng.normal(size=(n, d))
    rest[:, 0] = 0
    t = w[0] * s[:, 0] + rest @ w
    residual = (t**2 - 1)[:, None]
    estimated = gradients_by_regression(s, rest, residual)
    g = np.concatenate([estimated[:, :1], np.zeros((n, d - 1))], 1) + estimated[:, 1:]
    found = subspace_from_gradients(g, 5, 1e-9).basis[:, 0]
    true = w / np.linalg.norm(w)
    # The known direction alone is off by 0.2; forty draws of these fields left 0.03 at most.
    assert np.sqrt(1 - (found @ true) ** 2) < 0.1 < np.sqrt(1 - true[0] ** 2)


def test_gradients_of_linear_residuals_are_exact_and_of_others_unknown():
    """The log-likelihood is -|r|^2 / 2."""
    rng = np.random.default_rng(seeded(20))
    u, slope, constant = rng.normal(size=(60, 5)), rng.normal(size=(5, 2)), rng.normal(size=2)
    residuals = constant + u @ slope
    found = gradients_of_linear_residuals(u, residuals, 1e-5)
    np.testing.assert_allclose(found, -residuals @ slope.T, rtol=0, atol=1e-10)
    assert gradients_of_linear_residuals(u, residuals + 0.03 * u[:, :1] ** 2, 1e-5) is None
    assert gradients_of_linear_residuals(u[:11], residuals[:11], 1e-5) is None  # five unknown each
