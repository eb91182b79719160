import jax.random as jr
import numpy as np

from msign import LaplacePrior
from msign.inference.models import lift_directions
from msign.inference.subspace import align, gradients_by_regression, subspace_from_gradients


def test_rank_is_the_smallest_that_keeps_the_tolerance():
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    scales = np.array([10.0, 3.0, 0.5, 0.01])
    gradients = rng.normal(size=(4000, 4)) * scales @ q[:4]
    found = subspace_from_gradients(gradients, 10, tolerance=0.01)
    assert found.basis.shape == (20, 3)
    overlap = np.linalg.svd(found.basis.T @ q[:3].T)[1]
    np.testing.assert_allclose(overlap, 1, atol=1e-3)
    np.testing.assert_allclose(found.eigenvalues, scales[:3] ** 2, rtol=0.15)
    assert found.discarded < 0.01
    assert subspace_from_gradients(gradients, 2, 0.01).basis.shape[1] == 2
    assert subspace_from_gradients(gradients, 10, 0.01, min_rank=4).basis.shape[1] == 4


def test_aligned_basis_spans_the_same_space_and_continues_the_old_one():
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(rng.normal(size=(30, 5)))[0]
    old = np.linalg.qr(basis[:, [3, 1]] + 0.05 * rng.normal(size=(30, 2)))[0]
    aligned = align(basis, old)
    np.testing.assert_allclose(aligned.T @ aligned, np.eye(5), atol=1e-10)
    np.testing.assert_allclose(aligned @ (aligned.T @ basis), basis, atol=1e-10)
    assert np.all(np.sum(aligned[:, :2] * old, 0) > 0.9)


def test_lifted_directions_are_those_of_the_pooled_field():
    prior = LaplacePrior((8, 8), 0.3, 2.0)
    coarse = prior.coarsen()
    direction = np.linalg.qr(np.random.default_rng(2).normal(size=(16, 2)))[0]
    lifted = lift_directions(prior, direction)
    x = prior.sample(jr.key(0), 6)
    fine = np.asarray(prior.whiten(x)) @ lifted
    pooled = np.asarray(coarse.whiten(prior.lattice.pool(x))) @ direction
    np.testing.assert_allclose(fine, pooled, atol=1e-8)


def test_regression_finds_the_gradient_of_a_quadratic_map():
    """r = (w u)^2 - 1 with w mostly, not wholly, along the known direction."""
    rng = np.random.default_rng(3)
    d, n = 20, 4000
    w = np.zeros(d)
    w[0], w[5] = 0.95, 0.2
    s = rng.normal(size=(n, 1)) + rng.choice([-2, 2], size=(n, 1))
    rest = rng.normal(size=(n, d))
    rest[:, 0] = 0
    t = w[0] * s[:, 0] + rest @ w
    residual = (t**2 - 1)[:, None]
    exact = -residual * (2 * t)[:, None] * w
    estimated = gradients_by_regression(s, rest, residual)
    g = np.concatenate([estimated[:, :1], np.zeros((n, d - 1))], 1) + estimated[:, 1:]
    found = subspace_from_gradients(g, 5, 1e-9).basis[:, 0]
    true = subspace_from_gradients(exact, 1, 1e-9).basis[:, 0]
    assert abs(found @ true) > 0.995
    assert abs(true @ np.eye(d)[0]) < 0.98
