"""Levenberg-Marquardt on a pool: the sum of squares that it minimises, and where it ends."""

import itertools

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from helpers import seeded
from msign.bijections import InformedConfig, informed_stack
from msign.inference.methods.least_squares import Weights, least_squares
from msign.inference.methods.objectives import pool_jeffreys
from msign.training import split_trainable
from msign.variables import Variables, log_ratio

NOISE = 0.05  # of the observation s^2 of a standard normal s, whose value is 2


def log_likelihood(s: np.ndarray) -> np.ndarray:
    return -0.5 * ((s[:, 0] ** 2 - 2) / NOISE) ** 2


def one_variable() -> Variables:
    return Variables(informed_stack(jr.key(0), 1, InformedConfig()), None, 1)


def exact_jeffreys(model: Variables) -> float:
    """Between a model of one variable and the posterior of two narrow modes, by quadrature."""
    s = np.linspace(-6, 6, 60_001)[:, None]
    step = s[1, 0] - s[0, 0]
    prior = -0.5 * s[:, 0] ** 2 - 0.5 * np.log(2 * np.pi)
    log_q = log_likelihood(s) + prior
    log_q -= np.log(np.sum(np.exp(log_q)) * step)
    log_p = log_ratio(model, s) + prior
    return float(np.sum((np.exp(log_p) - np.exp(log_q)) * (log_p - log_q)) * step)


def test_the_divergence_of_a_pool_is_a_sum_of_squares():
    rng = np.random.default_rng(seeded(0))
    log_p, log_q, measure = rng.normal(size=(3, 500))
    a, b = log_p - measure, log_q - measure
    log_v, log_w = a - np.logaddexp.reduce(a), b - np.logaddexp.reduce(b)
    weights = Weights(np.exp(log_v), np.exp(log_w), log_v - log_w)
    squares = np.sum(weights.logarithmic_mean * weights.residual**2)
    np.testing.assert_allclose(weights.divergence, squares, rtol=1e-10)
    pooled = pool_jeffreys(*(jnp.asarray(x) for x in (log_p, log_q, measure)))
    np.testing.assert_allclose(weights.divergence, pooled, rtol=1e-4)


def test_two_narrow_modes_are_learned_from_one_pool():
    """From the prior, along a bridge; the modes are 20 standard deviations apart."""
    rng = np.random.default_rng(seeded(1))
    # A pool that covers both modes: half of it prior, half normal with the modes' own width.
    wide, near = rng.normal(size=2048), np.sign(rng.normal(size=2048)) * (2**0.5)
    s = np.concatenate([wide, near + 0.05 * rng.normal(size=2048)])
    normal = -0.5 * s**2 - 0.5 * np.log(2 * np.pi)
    modes = np.logaddexp(*(-0.5 * ((s - m) / 0.05) ** 2 for m in (2**0.5, -(2**0.5)))) - np.log(
        2 * 0.05 * np.sqrt(2 * np.pi)
    )
    measure = np.logaddexp(normal, modes) - normal
    s = s[:, None]
    model = one_variable()
    for temperature in (0.02, 0.3, 1.0):
        target = temperature * log_likelihood(s)
        model, reached = least_squares(model, s, target, measure, 1.0, 40, 1e-4)
    assert reached < 0.01
    assert exact_jeffreys(model) < 0.02


def test_it_ends_where_enough_is_reached_and_never_rises():
    s = np.random.default_rng(seeded(2)).normal(size=(1024, 1))
    target = -0.5 * (s[:, 0] - 0.5) ** 2
    divergences = [
        least_squares(one_variable(), s, target, np.zeros(1024), 1.0, n, 1e-12)[1] for n in range(4)
    ]
    assert all(a >= b for a, b in itertools.pairwise(divergences))
    assert divergences[3] < 0.1 * divergences[0]
    once = least_squares(one_variable(), s, target, np.zeros(1024), 1.0, 40, 1.01 * divergences[1])
    assert once[1] == pytest.approx(divergences[1], rel=1e-6)


def test_parameters_that_no_field_informs_do_not_move():
    s = np.random.default_rng(seeded(3)).uniform(0, 2, size=(1024, 1))
    target = np.sin(3 * s[:, 0])
    model, _ = least_squares(one_variable(), s, target, np.zeros(1024), 1.0, 10, 1e-6)
    before, after = (split_trainable(m)[0].flow.bijections[0] for m in (one_variable(), model))
    knots = InformedConfig().knots
    slopes = [np.asarray(m.bijection.numbers)[:, 2 * knots :, 0] for m in (before, after)]
    # Inner slopes at knots left of -2 belong to bins that hold no field.
    np.testing.assert_allclose(slopes[1][:, :3], slopes[0][:, :3], atol=1e-6)
    assert not eqx.tree_equal(before, after)
