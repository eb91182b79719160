"""Cores and stage models: densities by change of variables, coordinates, growth."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from helpers import moved
from msign import GlowConfig, InformedConfig, LaplacePrior, MsIGN
from msign.inference.models import (
    FlowCore,
    NetworkCore,
    StageModel,
    combine,
    draw,
    excess_all,
    informed_flow,
    split_trainable,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

SMALL = InformedConfig(blocks=2, hidden=4, knots=4)
PRIOR = LaplacePrior((4, 4), alpha=0.1, beta=2.0)


def flow_core() -> FlowCore:
    return moved(FlowCore(informed_flow(jr.key(0), (3,), SMALL), (3,)), 0.3)


def network_core() -> NetworkCore:
    network = MsIGN(PRIOR, 2, GlowConfig(blocks=2, hidden=4), key=jr.key(0))
    return NetworkCore(moved(network), 2)


@pytest.mark.parametrize("make", [flow_core, network_core])
def test_excess_is_the_density_over_that_of_the_prior(make):
    core = make()
    z = jr.normal(jr.key(1), (core.size,))
    s, excess = eqx.filter_jit(core.forward)(z)
    back, same = eqx.filter_jit(core.backward)(s)
    np.testing.assert_allclose(back, z, atol=1e-9)
    jacobian = jax.jacrev(lambda z: core.forward(z)[0])(z)
    density = -0.5 * jnp.sum(z**2) - jnp.linalg.slogdet(jacobian)[1]
    assert float(excess) == pytest.approx(float(density + 0.5 * jnp.sum(s**2)), abs=1e-9)
    assert float(same) == pytest.approx(float(excess), abs=1e-9)


def test_untrained_cores_are_the_prior():
    core = FlowCore(informed_flow(jr.key(0), (3,), SMALL), (3,))
    s, excess = core.forward(jnp.array([0.3, -1.0, 2.0]))
    np.testing.assert_allclose(s, [0.3, -1.0, 2.0], atol=1e-12)
    assert abs(float(excess)) < 1e-12


def test_a_grown_flow_starts_as_the_old_one_on_the_leading_variables():
    old = flow_core()
    grown = informed_flow(jr.key(1), (3, 5), SMALL)
    grown = eqx.tree_at(lambda f: f.bijections[1].bijection, grown, old.flow)
    z = jr.normal(jr.key(2), (5,))
    s, excess = FlowCore(grown, (3, 5)).forward(z)
    np.testing.assert_allclose(s[:3], old.forward(z[:3])[0], atol=1e-12)
    np.testing.assert_allclose(s[3:], z[3:], atol=1e-12)
    assert float(excess) == pytest.approx(float(old.forward(z[:3])[1]), abs=1e-12)


def test_fields_have_the_trained_variables_along_the_basis_and_noise_elsewhere():
    basis = jnp.linalg.qr(jr.normal(jr.key(3), (16, 3)))[0]
    model = StageModel(flow_core(), basis, 16)
    eta = jr.normal(jr.key(4), (10, 16))
    u, s, excess = draw(model, eta)
    np.testing.assert_allclose(model.reduce(u), s, atol=1e-12)
    across = jnp.eye(16) - basis @ basis.T
    np.testing.assert_allclose(u @ across, eta @ across, atol=1e-12)
    np.testing.assert_allclose(excess_all(model.core, s), excess, atol=1e-9)


def test_the_network_of_a_model_has_its_density():
    basis = jnp.linalg.qr(jr.normal(jr.key(3), (16, 3)))[0]
    model = StageModel(flow_core(), basis, 16)
    u, _, excess = draw(model, jr.normal(jr.key(5), (4, 16)))
    x = PRIOR.unwhiten(u)
    network = model.to_network(PRIOR, 2)
    np.testing.assert_allclose(network.log_prob(x), PRIOR.log_prob(x) + excess, atol=1e-8)


def test_only_the_last_flow_is_trained_if_asked():
    core = network_core()
    count = lambda last: sum(a.size for a in jax.tree.leaves(split_trainable(core, last)[0]))  # noqa: E731
    flows = [sum(a.size for a in jax.tree.leaves(eqx.filter(f, eqx.is_inexact_array))) for f in
             core.network.flows]  # fmt: skip
    assert 0 < count(True) <= flows[1] < count(False) <= sum(flows)
    trainable, rest = split_trainable(core, True)
    assert eqx.tree_equal(combine(trainable, rest), core)
