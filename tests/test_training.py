"""Adam as all kinds of training use it: its schedule, its clipping, what it skips."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import paramax
import pytest

from helpers import seeded
from msign.training import (
    ADAM_RMS,
    WARM_UP,
    adam,
    combine,
    descend,
    muon,
    optimiser_step,
    running_average,
    schedule,
    split_trainable,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")
CENTRE = np.array([1.0, -2.0])
NOISE = 0.5


def noisy(params, key):
    """A bowl around CENTRE, seen through noise in its gradient."""
    return jnp.sum((params - CENTRE) ** 2) + NOISE * jr.normal(key, (2,)) @ params


def descended(steps, rate=0.05, loss=noisy, start=(0.0, 0.0)):
    keys = jr.split(jr.key(seeded(0)), steps)
    return descend(loss, jnp.asarray(start), keys, jnp.asarray(rate), muon(1.0))


def test_descends_to_the_minimum_of_the_expected_loss():
    """At the end the rate is so low that noise is averaged over many steps."""
    params, loss = descended(800)
    np.testing.assert_allclose(params, CENTRE, atol=0.1)
    # The mean of the last tenth: noise NOISE * |CENTRE| at each of 80 steps, and no way there.
    assert abs(loss) < 0.05 + 5 * NOISE * np.linalg.norm(CENTRE) / np.sqrt(80)


def test_nothing_moves_at_a_rate_of_zero():
    np.testing.assert_array_equal(descended(10, rate=0.0)[0], 0)


def test_learning_rate_rises_to_the_one_given_and_falls_to_zero():
    steps = 100
    rates = np.array([float(schedule(steps)(k)) for k in range(steps + 1)])
    top = round(WARM_UP * steps)
    assert np.all(np.diff(rates[: top + 1]) > 0) and np.all(np.diff(rates[top:]) < 0)
    assert rates[0] == pytest.approx(1 / top) and rates[top] == 1
    assert rates[-1] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_even_the_shortest_schedule_moves(steps):
    params, _ = descended(steps)
    assert np.all(np.isfinite(params)) and np.all(params != 0)


def test_gradients_are_clipped():
    """Adam's second moment remembers one huge gradient for long; a clipped one it forgets."""
    params, state, optimiser = jnp.zeros(2), None, adam(1.0)
    state = optimiser.init(params)
    for size in (1e6, 1.0):
        gradient = jnp.array([size, 0.0])
        params, state = optimiser_step(optimiser, params, gradient, state, jnp.asarray(0.1))
    # Two steps of equal, clipped gradients: each as long as the rate.
    np.testing.assert_allclose(params, [-0.2, 0], rtol=1e-5)


def test_a_step_that_is_not_finite_is_skipped():
    params = jnp.ones(2)
    optimiser = adam(1.0)
    state = optimiser.init(params)
    same, state = optimiser_step(
        optimiser, params, jnp.array([np.nan, 1.0]), state, jnp.asarray(0.1)
    )
    np.testing.assert_array_equal(same, params)
    moved, _ = optimiser_step(optimiser, same, jnp.ones(2), state, jnp.asarray(0.1))
    np.testing.assert_allclose(moved, 0.9, rtol=1e-6)


def test_each_step_has_its_own_input():
    """As single steps with the gradient of each input in turn, on a tree of parameters."""
    inputs = {"sign": jnp.array([1.0, -1.0, 1.0]), "at": jnp.array([0, 0, 1])}
    params = {"w": jnp.zeros(2), "unused": jnp.ones(3)}

    def loss(params, given):
        return given["sign"] * params["w"][given["at"]]

    found, last = descend(loss, params, inputs, jnp.asarray(0.1), muon(1.0))
    expected, optimiser, rate = jnp.zeros(2), muon(1.0), schedule(3)
    state = optimiser.init(expected)
    for k, gradient in enumerate(([1.0, 0.0], [-1.0, 0.0], [0.0, 1.0])):
        step = 0.1 * rate(k)
        before = expected
        expected, state = optimiser_step(optimiser, expected, jnp.array(gradient), state, step)
    np.testing.assert_allclose(found["w"], expected, rtol=1e-12)
    np.testing.assert_array_equal(found["unused"], 1)
    np.testing.assert_allclose(last, before[1], rtol=0, atol=1e-12)  # the loss of the last step


def test_stacks_of_matrices_move_in_all_directions_alike():
    """Singular values of a gradient differ by twenty times, those of the step by less than two."""
    rng = np.random.default_rng(seeded(2))
    stack = np.linalg.qr(rng.normal(size=(3, 8, 5)))[0] * np.array([1, 0.5, 0.2, 0.1, 0.05])
    gradient = jnp.asarray(stack * np.array([1.0, 1e-3, 10.0])[:, None, None])
    params = {"stack": jnp.zeros((3, 8, 5)), "bias": jnp.zeros(8)}

    def loss(params, _):
        return jnp.sum(params["stack"] * gradient) + params["bias"].sum()

    found, _ = descend(loss, params, jnp.zeros(1), jnp.asarray(0.1), muon(1e3))
    values = np.linalg.svd(found["stack"], compute_uv=False)
    assert np.all(values[:, 0] < 2 * values[:, -1])  # and so in each matrix of the stack
    # Its root mean square is ADAM_RMS of the rate, where Adam's, for one step, is the rate.
    rms = np.sqrt(np.mean(np.asarray(found["stack"]) ** 2, axis=(1, 2)))
    np.testing.assert_allclose(rms, ADAM_RMS * 0.1, rtol=0.35)
    assert np.all(found["bias"] < 0)
    along = np.einsum("bij,bij->b", found["stack"], gradient)
    assert np.all(along < 0)


def test_running_average():
    a, b = {"w": jnp.zeros(2)}, {"w": jnp.ones(2)}
    np.testing.assert_allclose(running_average(a, b, 0.9)["w"], 0.1)
    np.testing.assert_array_equal(running_average(a, b, 0.0)["w"], 1.0)


def test_what_is_marked_as_fixed_is_not_trainable():
    module = {"w": jnp.ones(2), "fixed": paramax.non_trainable({"v": jnp.zeros(3)}), "n": 4}
    trainable, rest = split_trainable(module)
    assert [leaf.shape for leaf in jax.tree.leaves(trainable)] == [(2,)]
    joined = combine(jax.tree.map(lambda a: 2 * a, trainable), rest)
    np.testing.assert_array_equal(joined["w"], 2)
    assert jax.tree.structure(joined) == jax.tree.structure(module)
    assert joined["n"] == 4
