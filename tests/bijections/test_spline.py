"""Rational quadratic splines: monotone, smooth at the knots, the identity outside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import seeded
from msign.bijections.spline import spline_forward, spline_inverse, spline_numbers

pytestmark = pytest.mark.usefixtures("quick_compilation")
INTERVAL = 3.0
NUMBERS = jnp.asarray(np.random.default_rng(seeded(0)).normal(size=spline_numbers(5)))
GRID = jnp.linspace(-3.5, 3.5, 2001)


def repeated(numbers, points):
    """The same spline for each point."""
    return jnp.repeat(numbers[:, None], len(points), 1)


@jax.jit
def forward(x):
    return spline_forward(x, repeated(NUMBERS, x), INTERVAL)


@jax.jit
def inverse(y):
    return spline_inverse(y, repeated(NUMBERS, y), INTERVAL)


def test_identity_for_zero_numbers_and_outside():
    zero = jnp.zeros((len(NUMBERS), len(GRID)))
    y, log_slope = spline_forward(GRID, zero, INTERVAL)
    np.testing.assert_allclose(y, GRID, atol=1e-12)
    np.testing.assert_allclose(log_slope, 0, atol=1e-12)
    outside = jnp.abs(GRID) >= INTERVAL
    y, log_slope = forward(GRID)
    np.testing.assert_array_equal(y[outside], GRID[outside])
    np.testing.assert_array_equal(log_slope[outside], 0)


def test_monotone_continuous_and_round_trips():
    y, log_slope = forward(GRID)
    steps = np.diff(np.asarray(y))
    assert np.all(steps > 0)
    assert steps.max() < 2 * float(jnp.exp(log_slope).max()) * float(GRID[1] - GRID[0])
    x, inverse_slope = inverse(y)
    np.testing.assert_allclose(x, GRID, atol=1e-10)
    np.testing.assert_allclose(inverse_slope, -log_slope, atol=1e-8)
    assert float(jnp.abs(y - GRID).max()) > 0.1


@pytest.mark.parametrize("function", [forward, inverse])
def test_log_slope_is_that_of_the_function(function):
    points = jnp.linspace(-2.9, 2.9, 301)
    slopes = jax.vmap(jax.grad(lambda x: function(x[None])[0][0]))(points)
    np.testing.assert_allclose(jnp.log(slopes), function(points)[1], atol=1e-9)


def test_gradient_of_the_numbers_against_finite_differences():
    points = jnp.linspace(-2.5, 2.5, 7)

    @jax.jit
    def total(numbers):
        x, log_slope = spline_inverse(points, repeated(numbers, points), INTERVAL)
        return jnp.sum(jnp.sin(x) + log_slope)

    gradient = jax.grad(total)(NUMBERS)
    step = 1e-6
    for i in range(len(NUMBERS)):
        unit = jnp.zeros_like(NUMBERS).at[i].set(step)
        slope = (total(NUMBERS + unit) - total(NUMBERS - unit)) / (2 * step)
        assert float(gradient[i]) == pytest.approx(float(slope), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("function", [spline_forward, spline_inverse])
def test_many_batches_are_single_calls(function):
    """Nested `vmap`, over values, numbers or both, and derivatives through it."""
    rng = np.random.default_rng(seeded(1))
    x = jnp.asarray(rng.uniform(-3.5, 3.5, (2, 3, 4)))  # two batches of three, four splines each
    numbers = jnp.asarray(rng.normal(size=(2, len(NUMBERS), 4)))

    def value(x, numbers):
        y, log_slope = function(x, numbers, INTERVAL)
        return jnp.sum(jnp.sin(y) + y * log_slope)

    both = jax.value_and_grad(value, (0, 1))
    found = jax.jit(jax.vmap(jax.vmap(both, (0, None)), (0, 0)))(x, numbers)
    single = jax.jit(both)
    for i in range(2):
        for j in range(3):
            expected = single(x[i, j], numbers[i])
            jax.tree.map(
                lambda a, b, i=i, j=j: np.testing.assert_allclose(a[i, j], b, rtol=0, atol=1e-10),
                found,
                expected,
            )
