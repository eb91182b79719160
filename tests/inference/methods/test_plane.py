"""Flows of two variables made of a pool, against quadrature."""

import jax.random as jr
import numpy as np
import pytest

from helpers import seeded
from msign.bijections import InformedConfig, informed_stack
from msign.inference.methods.plane import interpolated, rearranged_plane, rearrangement
from msign.inference.methods.rearrangement import rearranged_line
from msign.variables import Variables, log_ratio, moved

FLOW = informed_stack(jr.key(0), 2, InformedConfig())


def ring(s):
    return -0.5 * ((np.sum(s**2, -1) - 2) / 0.25) ** 2


def four_modes(s):
    a, b = s[:, 0], s[:, 1]
    return -0.5 * (((a**2 + 0.1 * a - 1) / 0.2) ** 2 + ((b**2 - 0.15 * b - 1) / 0.2) ** 2)


def banana(s):
    return -0.5 * ((s[:, 1] - s[:, 0] ** 2 + 1) / 0.1) ** 2


def folded(s):
    """Given the first variable the second has one mode or three."""
    return -0.5 * ((np.sin(2 * s[:, 1]) + s[:, 0] - 0.5) / 0.1) ** 2


def ridge(s):
    return -0.5 * (((s[:, 0] - s[:, 1]) / 0.02) ** 2 + ((s[:, 0] + s[:, 1] - 1) / 0.5) ** 2)


# Log-likelihoods of standard normal variables.
TARGETS = {
    "the prior": lambda s: np.zeros(len(s)),
    "ring": ring,
    "four modes": four_modes,
    "banana": banana,
    "folded": folded,
    "ridge": ridge,
}


def made(s: np.ndarray, values: np.ndarray, emulated) -> Variables:
    return Variables(rearranged_plane(FLOW, s, values, emulated)[0], None, 2)


def exact_jeffreys(log_likelihood, model: Variables, n: int = 700) -> float:
    """By quadrature."""
    line = (np.arange(n) + 0.5) / n * 9 - 4.5
    s = np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
    log_q = log_likelihood(s) - 0.5 * np.sum(s**2, 1)
    s = s[log_q > log_q.max() - 40]
    log_q = log_q[log_q > log_q.max() - 40]
    log_q -= np.log(np.sum(np.exp(log_q)) * (line[1] - line[0]) ** 2)
    log_p = log_ratio(model, s) - 0.5 * np.sum(s**2, 1) - np.log(2 * np.pi)
    return float(
        np.sum((np.exp(log_p) - np.exp(log_q)) * (log_p - log_q)) * (line[1] - line[0]) ** 2
    )


@pytest.mark.parametrize("name", TARGETS)
def test_a_known_density_becomes_that_of_the_flow(name):
    s = np.random.default_rng(seeded(0)).normal(size=(2000, 2))
    log_likelihood = TARGETS[name]
    assert exact_jeffreys(log_likelihood, made(s, log_likelihood(s), log_likelihood)) < 1e-3


@pytest.mark.parametrize("name", ["ring", "four modes"])
def test_the_density_of_a_pool_becomes_that_of_the_flow(name):
    """Nothing is known but the values at fields, and more of them leave less to be wrong."""
    log_likelihood, rng = TARGETS[name], np.random.default_rng(seeded(1))
    s, errors = rng.normal(size=(4000, 2)), []
    for _ in range(3):
        model = made(s, log_likelihood(s), lambda s: np.zeros(len(s)))
        errors.append(exact_jeffreys(log_likelihood, model))
        s = np.concatenate([s, moved(model, rng.normal(size=(4000, 2)))[0]])
    assert errors[2] < 0.25 * errors[0]
    assert errors[2] < 0.01


def test_what_other_variables_add_to_single_fields_is_averaged():
    """Noise of 0.1 nats in each value: a flow through every one is off by its variance."""
    rng = np.random.default_rng(seeded(2))
    s = rng.normal(size=(16_000, 2))
    values = 0.5 * s[:, 0] + 0.1 * rng.normal(size=len(s))
    model = made(s, values, lambda s: 0.5 * s[:, 0])
    assert exact_jeffreys(lambda s: 0.5 * s[:, 0], model) < 0.25 * 0.1**2


def test_features_are_known_between_fields():
    rng = np.random.default_rng(seeded(3))

    def forward(s):
        return np.stack([np.sin(3 * s[:, 0]) / 0.2, s[:, 0] * s[:, 1] / 0.2], 1)

    s, inside = rng.normal(size=(4000, 2)), rng.uniform(-1, 1, size=(500, 2))
    found = interpolated(s, forward(s))(inside)
    off = np.abs(found - forward(inside))
    assert off[:, 0].max() < 0.3  # of the noise; sin(3 a) is no polynomial
    assert off[:, 1].max() < 1e-6


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n", [1, 2, 3, 5, 50])
def test_few_fields_and_worthless_ones_make_a_finite_flow(n):
    rng = np.random.default_rng(seeded(4))
    s = rng.normal(size=(n, 2))
    values = np.full(n, -1e4)
    values[0] = 0
    x, density = moved(made(s, values, lambda s: np.zeros(len(s))), rng.normal(size=(500, 2)))
    assert np.isfinite(x).all()
    assert np.isfinite(density).all()


def test_only_splines_and_an_affine_map_are_replaced():
    assert rearrangement(FLOW) is rearranged_plane
    assert rearrangement(informed_stack(jr.key(0), 1, InformedConfig())) is rearranged_line
    assert rearrangement(informed_stack(jr.key(0), 3, InformedConfig())) is None
    assert rearrangement(informed_stack(jr.key(0), 2, InformedConfig(spline_rank=1))) is None
