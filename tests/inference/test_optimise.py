"""Adam as the stages use it."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from msign import FitConfig, GlowConfig, MsIGN
from msign.inference.models import NetworkCore, split_trainable
from msign.inference.optimise import WARM_UP, descend, optimiser, running_average
from msign.priors import LaplacePrior

pytestmark = pytest.mark.usefixtures("quick_compilation")
CENTRE = np.array([1.0, -2.0])


def noisy(params, key):
    """A bowl around CENTRE, seen through noise in its gradient."""
    return jnp.sum((params - CENTRE) ** 2) + 0.5 * jr.normal(key, (2,)) @ params


def descended(steps, averaging, rate=1.0):
    adam = optax.adam(0.05)
    return descend(noisy, jnp.zeros(2), adam, jnp.asarray(rate), jr.key(0), steps, averaging)


def test_descends_to_the_minimum_of_the_expected_loss():
    params, loss = descended(800, 0.99)
    np.testing.assert_allclose(params, CENTRE, atol=0.05)
    assert abs(float(loss)) < 0.5  # the mean of the last tenth, without the way there


def test_step_sizes_fall_to_zero_from_the_rate_given():
    """Adam's first step is its learning rate; the sum of all is half as long as at full rate."""
    still, _ = descended(10, 0.0, rate=0.0)
    np.testing.assert_array_equal(still, 0)
    one, _ = descended(1, 0.0)
    np.testing.assert_allclose(np.abs(one), 0.05, rtol=1e-5)
    ten, _ = descended(10, 0.0)
    assert np.all(np.abs(ten) < 0.05 * 10 * 0.6)


def test_running_average():
    a, b = {"w": jnp.zeros(2)}, {"w": jnp.ones(2)}
    np.testing.assert_allclose(running_average(a, b, 0.9)["w"], 0.1)
    np.testing.assert_array_equal(running_average(a, b, 0.0)["w"], 1.0)


def test_steps_on_a_network_rise_from_zero():
    config = FitConfig(flow="glow", glow=GlowConfig(blocks=1, hidden=4))
    core = NetworkCore(
        MsIGN(LaplacePrior((2, 2), alpha=0.5, beta=1.0), 1, config.glow, key=jr.key(0)), 1
    )
    params, _ = split_trainable(core)
    adam, ones = optimiser(config, core), jax.tree.map(jnp.ones_like, params)
    state, sizes, update = adam.init(params), [], jax.jit(adam.update)
    for _ in range(WARM_UP + 2):
        change, state = update(ones, state, params)
        sizes.append(max(float(jnp.abs(c).max()) for c in jax.tree.leaves(change)))
    np.testing.assert_allclose(
        sizes[: WARM_UP + 1], 2e-3 * np.arange(WARM_UP + 1) / WARM_UP, rtol=1e-5
    )
    assert sizes[-1] == pytest.approx(2e-3)
