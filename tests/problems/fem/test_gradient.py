import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import seeded
from msign.problems.fem import EllipticSolver
from problems.fem import fem_reference as reference


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max() / np.abs(b).max())


def make(size: int, m: int = 3) -> tuple[EllipticSolver, np.ndarray]:
    weights = np.random.default_rng(seeded(0)).normal(size=(m, size, size))
    return EllipticSolver(size, reference.four_wells, weights), weights


def dense_observe(size: int, weights: np.ndarray):
    """The forward map in JAX with a dense matrix, to be differentiated automatically."""
    s = np.arange(size + 1) / size
    load = (reference.four_wells(*np.meshgrid(s, s, indexing="ij")) / size**2).ravel()
    c, inside = reference.corners(size), reference.interior(size)

    def observe(x):
        values = jnp.exp(x).reshape(-1, 1, 1) * reference.element_stiffness()
        matrix = jnp.zeros((len(load), len(load)))
        matrix = matrix.at[c[:, :, None], c[:, None, :]].add(values)
        u = jnp.zeros(len(load))
        u = u.at[inside].set(jnp.linalg.solve(matrix[jnp.ix_(inside, inside)], load[inside]))
        return weights.reshape(len(weights), -1) @ u[c].mean(axis=1)

    return observe


def test_vjp_agrees_with_automatic_differentiation():
    size = 9
    solver, weights = make(size)
    rng = np.random.default_rng(seeded(1))
    x, cotangent = rng.normal(size=(5, size, size)), rng.normal(size=(5, 3))
    dense = jax.jit(dense_observe(size, weights))
    pull = jax.jit(jax.grad(lambda x, cotangent: dense(x) @ cotangent))
    observed, gradient = solver.observe_and_vjp(x, cotangent)
    for k in range(5):
        assert relative(observed[k], dense(x[k])) < 1e-10
        assert relative(gradient[k], pull(x[k], cotangent[k])) < 1e-10


@pytest.mark.parametrize("size", [16, 64])
def test_vjp_agrees_with_finite_differences(size):
    solver, _ = make(size)
    rng = np.random.default_rng(seeded(2))
    x, cotangent = rng.normal(size=(size, size)), rng.normal(size=3)
    gradient = solver.vjp(x, cotangent)
    step = 1e-4
    directions = rng.normal(size=(8, size, size))
    shifts = np.concatenate([x + step * directions, x - step * directions])
    values = solver.observe(shifts) @ cotangent
    slopes = (values[:8] - values[8:]) / (2 * step)
    expected = np.einsum("nij,ij->n", directions, gradient)
    assert np.abs(slopes - expected).max() < 1e-6 * np.abs(expected).max()


def test_cotangent_as_a_function_of_the_observations():
    size = 16
    solver, _ = make(size)
    rng = np.random.default_rng(seeded(3))
    x, data = rng.normal(size=(101, size, size)), rng.normal(size=(101, 3))
    seen = []

    def misfit(observed, rows):
        seen.append(rows)
        return observed - data[rows]

    observed, gradient = solver.observe_and_vjp(x, misfit)
    np.testing.assert_array_equal(observed, solver.observe(x))
    np.testing.assert_array_equal(gradient, solver.vjp(x, observed - data))
    assert sorted(k for rows in seen for k in range(rows.start, rows.stop)) == list(range(101))


def test_an_error_in_the_cotangent_function_is_raised():
    solver, _ = make(16)

    def fail(observed, rows):
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        solver.observe_and_vjp(np.zeros((50, 16, 16)), fail)
    assert np.isfinite(solver.observe(np.zeros((50, 16, 16)))).all()
