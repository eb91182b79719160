"""Simulated fields: parts, counts and weights."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from helpers import moved, seeded
from msign import Simulator
from msign.bijections import TriangularMap
from msign.inference import simulate as module
from msign.inference.simulate import simulate
from msign.problems import synthetic
from msign.variables import Variables, log_ratio

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
    np.testing.assert_allclose(drawn.log_ratio, log_ratio(model, drawn.s), rtol=0, atol=1e-10)
    np.testing.assert_allclose(drawn.log_likelihood, -0.5 * drawn.features[:, 0] ** 2)
    np.testing.assert_allclose(drawn.log_weights, drawn.log_likelihood - drawn.log_ratio)
    again = simulate(simulator, model, 2, jr.key(seeded(2)), 100)
    np.testing.assert_array_equal(again.s, drawn.s)
