"""The inverse of a triangular matrix, and its derivative."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import seeded
from msign.bijections.triangular import lower_inverse

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("n", [1, 2, 7, 33])
def test_triangular_inverse(n):
    """With a diagonal over four orders of magnitude, as stiff directions give.

    In units of the diagonal the matrix is well conditioned, and errors are n roundings or so.
    """
    rng = np.random.default_rng(seeded(n))
    unit = np.eye(n) + np.tril(rng.normal(size=(n, n)), -1) / n
    scale = np.geomspace(1e-2, 1e2, n)
    matrix = scale[:, None] * unit

    @jax.jit
    def inverse_and_slope(matrix):
        inverse, pull = jax.vjp(lower_inverse, matrix)
        return inverse, pull(jnp.cos(inverse))[0]

    inverse, slope = inverse_and_slope(matrix)
    exact = np.linalg.inv(unit)
    np.testing.assert_allclose(inverse * scale, exact, rtol=0, atol=1e-12)
    expected = np.tril(-exact.T @ np.cos(exact / scale) @ (exact / scale).T)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(scale[:, None] * slope, expected, rtol=0, atol=1e-11 * largest)
