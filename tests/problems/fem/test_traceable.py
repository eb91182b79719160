"""The solver as a JAX function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import seeded
from msign.problems.fem import EllipticSolver
from problems.fem import fem_reference as reference


def make(size: int) -> EllipticSolver:
    weights = np.random.default_rng(seeded(0)).normal(size=(3, size, size))
    return EllipticSolver(size, reference.four_wells, weights)


def test_jax_function_under_jit_grad_and_vmap():
    size = 12
    solver = make(size)
    x = np.random.default_rng(seeded(4)).normal(size=(2, 3, size, size))
    flat = x.reshape(6, size, size)
    observed, data = solver.observe(flat), np.arange(3.0)
    gradient = solver.vjp(flat, 2 * (observed - data)).reshape(x.shape)

    def misfit(x):
        return jnp.sum((solver.jax_observe(x) - data) ** 2)

    def check(actual, expected):
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12 * np.abs(expected).max())

    check(jax.jit(solver.jax_observe)(x), observed.reshape(2, 3, 3))
    check(jax.jit(jax.grad(misfit))(x[0, 0]), gradient[0, 0])
    check(jax.jit(jax.grad(misfit))(x), gradient)
    check(jax.jit(jax.vmap(jax.vmap(jax.grad(misfit))))(x), gradient)
    jacobian = jax.jacrev(solver.jax_observe)(x[0, 0])
    check(jacobian, solver.vjp(np.stack([x[0, 0]] * 3), np.eye(3)))


def test_jax_function_keeps_single_precision():
    solver = make(12)
    x = jnp.zeros((2, 12, 12), jnp.float32)
    assert solver.jax_observe(x).dtype == jnp.float32
    assert jax.grad(lambda x: solver.jax_observe(x).sum())(x).dtype == jnp.float32


def test_jax_function_refuses_a_wrong_shape():
    solver = make(12)
    with pytest.raises(ValueError, match="x must have shape"):
        jax.jit(solver.jax_observe)(jnp.zeros((12, 13)))
