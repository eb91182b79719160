"""Pieces of informed flows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from msign.bijections.subspace import lower_inverse

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 33, 64])
def test_triangular_inverse(n):
    """With a diagonal over four orders of magnitude, as stiff directions give."""
    rng = np.random.default_rng(n)
    unit = np.eye(n) + np.tril(rng.normal(size=(n, n)), -1) / np.sqrt(n)
    matrix = np.geomspace(1e-2, 1e2, n)[:, None] * unit
    expected = np.linalg.inv(matrix)
    np.testing.assert_allclose(lower_inverse(jnp.asarray(matrix)), expected, rtol=1e-8, atol=1e-9)
    slope = jax.jit(jax.grad(lambda m: jnp.sum(jnp.sin(lower_inverse(m)))))(jnp.asarray(matrix))
    exact = -expected.T @ np.cos(expected) @ expected.T
    scale = np.abs(exact).max()
    np.testing.assert_allclose(np.tril(slope), np.tril(exact), rtol=1e-6, atol=1e-9 * scale)
