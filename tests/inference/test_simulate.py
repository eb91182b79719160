"""Simulated fields: parts, counts and weights."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from msign.bijections import InformedConfig
from msign.inference import simulate as module
from msign.inference.models import FlowCore, StageModel, informed_flow
from msign.inference.simulate import simulate
from msign.problems import synthetic


def test_parts_count_and_weights(monkeypatch):
    problem = synthetic(4)
    basis = jnp.linalg.qr(jr.normal(jr.key(0), (16, 2)))[0]
    core = FlowCore(informed_flow(jr.key(1), (2,), InformedConfig(blocks=2, knots=4)), (2,))
    model = StageModel(core, basis, 16)
    monkeypatch.setattr(module, "VALUES_AT_ONCE", 16 * 30)
    drawn = simulate(problem, model, 2, jr.key(2), 100)
    assert problem.nfs == 100
    assert drawn.s.shape == (100, 2) and drawn.log_weights.shape == (100,)
    np.testing.assert_allclose(drawn.excess, 0, atol=1e-12)  # an untrained model is the prior
    np.testing.assert_allclose(drawn.log_weights, drawn.log_likelihood)
    assert len(np.unique(drawn.s[:, 0])) == 100  # parts have noise of their own
    again = simulate(problem, model, 2, jr.key(2), 100)
    np.testing.assert_array_equal(again.s, drawn.s)
