"""A Gaussian of some variables given others: what it is to first order, and where it stops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance import conditional
from helpers import matrix_of, seeded
from msign.bijections import ConditionalGaussian
from msign.bijections.conditional import Range
from msign.bijections.polynomials import Polynomials, Terms

pytestmark = pytest.mark.usefixtures("quick_compilation")


def quadratic(size):
    """Three variables given two, with matrices of a size; and b and E as functions of s."""
    rng = np.random.default_rng(seeded(0))
    terms = Terms.of(2, 0, 100)
    coefficients = rng.normal(size=(len(terms), 2))
    functions = Polynomials.of(terms, 0, coefficients, np.zeros(2), np.ones(2))
    wide = Range(np.full(2, -100.0), np.full(2, 100.0))
    shifts, slopes = rng.normal(size=(3, 3, 3)), size * rng.normal(size=(3, 3, 3))
    matrices, scales = slopes + slopes.mT, np.array([0.5, 1.0, 2.0])
    layer = ConditionalGaussian(functions, (wide, wide), shifts, matrices, scales)

    def b_and_e(s):
        f = np.concatenate([[1.0], terms.design(s[None])[0] @ coefficients])
        x = np.concatenate([[1.0], s])
        return np.tensordot(f, shifts, 1) @ x, np.tensordot(f, matrices, 1)

    return layer, b_and_e, scales


def errors(size):
    """Largest errors of mean and covariance, relative to the scales."""
    layer, b_and_e, scales = quadratic(size)
    s = np.array([0.4, -0.3])
    b, e = b_and_e(s)
    covariance = np.linalg.inv(np.eye(3) - e)

    def last(z):
        return layer.transform(jnp.concatenate([jnp.asarray(s), z]))[2:] / scales

    mean, root = np.asarray(last(jnp.zeros(3))), matrix_of(last, 3)
    return np.abs(mean - covariance @ b).max(), np.abs(root @ root.T - covariance).max()


def test_mean_and_covariance_are_those_of_the_density_to_first_order():
    """Of exp(b . y - y (I - E) y / 2): with E half as large the errors are a quarter."""
    large, small = errors(0.02), errors(0.01)
    for coarse, fine in zip(large, small, strict=True):
        assert 0 < fine < coarse
        assert coarse / fine == pytest.approx(4, rel=0.3)
    np.testing.assert_allclose(errors(0.0), 0, atol=1e-6)  # terms are in single precision


def test_what_it_is_given_passes_through():
    layer = conditional()
    x = np.random.default_rng(seeded(1)).normal(size=(6, 5))
    moved = np.asarray(jax.vmap(layer.transform)(jnp.asarray(x)))
    np.testing.assert_array_equal(moved[:, :3], x[:, :3])
    assert np.abs(moved[:, 3:] - x[:, 3:]).max() > 0.01


def test_far_from_what_a_fit_has_seen_nothing_grows():
    """A polynomial of s would: at twice the distance its cubes are eight times as large."""
    layer = conditional()
    direction = np.random.default_rng(seeded(2)).normal(size=3)
    far = [
        layer.transform(jnp.asarray(np.concatenate([k * direction, [0.3, -0.2]])))[3:]
        for k in (1e3, 2e3)
    ]
    np.testing.assert_allclose(*far, rtol=1e-9)
