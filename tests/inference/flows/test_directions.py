"""Informed directions: their number, their order, how they continue those of the scale before."""

import jax.random as jr
import numpy as np
import pytest

from helpers import seeded
from msign import LaplacePrior
from msign.inference.flows.directions import (
    align,
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
    # As coefficients of an orthonormal span the same gradients have the same directions.
    within = subspace_from_gradients(gradients @ q.T, 10, 0.01, span=q.T)
    np.testing.assert_allclose(
        within.basis @ within.basis.T, found.basis @ found.basis.T, atol=1e-9
    )
    np.testing.assert_allclose(within.eigenvalues, found.eigenvalues)


@pytest.mark.parametrize("shape", [(30, 200), (200, 30)], ids=str)
def test_small_eigenvalues_beside_large_ones_are_those_of_a_singular_value_decomposition(shape):
    """Over twenty powers of ten, of which products of rows alone would know the first sixteen."""
    rng = np.random.default_rng(seeded(4))
    left, right = (np.linalg.qr(rng.normal(size=(k, 20)))[0] for k in shape)
    values = 10.0 ** np.arange(10, -10, -1)
    gradients = np.sqrt(shape[0] * values) * left @ right.T
    found = subspace_from_gradients(gradients, 30, tolerance=1e-6)
    assert found.basis.shape[1] == 16  # the others are 1.1e-6 in all, of which half counts
    np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(16), rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.eigenvalues, values[:16], rtol=1e-6)
    overlap = np.abs(np.sum(found.basis * right[:, :16], 0))
    np.testing.assert_allclose(overlap, 1, atol=1e-6)
    assert found.discarded == pytest.approx(0.5 * values[16:].sum(), rel=1e-6)


def test_directions_are_had_where_gradients_vanish():
    found = subspace_from_gradients(np.zeros((5, 9)), 4, 0.01, min_rank=2)
    np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(2), atol=1e-15)
    np.testing.assert_array_equal(found.eigenvalues, 0)
    assert found.discarded == 0


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
