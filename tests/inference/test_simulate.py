"""Simulated fields: parts, counts and weights."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from helpers import moved, seeded
from msign import Simulator
from msign.bijections import TriangularMap
from msign.inference import simulate as module
from msign.inference.simulate import drawn_parts, simulate
from msign.problems import synthetic
from msign.variables import Variables
from msign.variables import log_ratio as log_ratio_of

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_parts_count_and_weights(monkeypatch):
    simulator = Simulator(synthetic(4))
    basis = jnp.linalg.qr(jr.normal(jr.key(seeded(0)), (16, 2)))[0]
    model = Variables(moved(TriangularMap(2), 0.3), basis, 16)
    monkeypatch.setattr(module, "fields_at_once", lambda *_: 30)
    drawn = simulate(simulator, model, 2, jr.key(seeded(2)), 100)
    assert simulator.nfs == 100
    assert drawn.s.shape == (100, 2) and drawn.features.shape == (100, 1)
    assert len(np.unique(drawn.s[:, 0])) == 100  # parts have noise of their own
    np.testing.assert_allclose(drawn.log_ratio, log_ratio_of(model, drawn.s), rtol=0, atol=1e-10)
    np.testing.assert_allclose(drawn.log_likelihood, -0.5 * drawn.features[:, 0] ** 2)
    np.testing.assert_allclose(drawn.log_weights, drawn.log_likelihood - drawn.log_ratio)
    again = simulate(simulator, model, 2, jr.key(seeded(2)), 100)
    np.testing.assert_array_equal(again.s, drawn.s)


@pytest.mark.parametrize("many", [1, 10**9], ids=["compiled", "called"])
def test_fields_have_the_variables_of_the_model_and_noise_elsewhere(many, monkeypatch):
    """The same fields, however they are cut into parts."""
    monkeypatch.setattr(module, "MANY", many)
    basis = jnp.linalg.qr(jr.normal(jr.key(seeded(0)), (16, 2)))[0]
    model, n = Variables(moved(TriangularMap(2), 0.3), basis, 16), 2000
    u, s, log_ratio = map(np.concatenate, zip(*drawn_parts(model, jr.key(3), n, 70), strict=True))
    np.testing.assert_allclose(u @ basis, s, rtol=0, atol=1e-6)
    np.testing.assert_allclose(log_ratio_of(model, s), log_ratio, rtol=0, atol=1e-5)
    outside = u - (u @ basis) @ basis.T
    assert abs(np.mean(outside**2) * 16 / 14 - 1) < 5 * np.sqrt(2 / (14 * n))
    # Independent of the variables: products of both have mean zero.
    products = outside.T @ (s - s.mean(0)) / (n * s.std(0))
    assert np.abs(products).max() < 5.5 / np.sqrt(n)
    (whole,) = drawn_parts(model, jr.key(3), n, n)
    np.testing.assert_allclose(whole.u, u, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(whole.s, s)
