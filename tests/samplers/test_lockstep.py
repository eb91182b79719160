"""Programs that pause compute what compiled ones do, and ask for no simulation too many."""

import blackjax
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from msign.samplers.lockstep import Answer, Program, log_likelihood, log_posterior

pytestmark = pytest.mark.usefixtures("quick_compilation")
PRECISION = np.array([1.0, 30.0, 4.0])


def likelihood(u):
    return -0.5 * (PRECISION * u**2).sum(-1)


def finished(paused):
    """What a program returns, and how many fields it asked for."""
    asked, answer = 0, None
    try:
        while True:
            request = paused.send(answer)
            u = np.asarray(request.u)
            asked += u.size // u.shape[-1]
            answer = Answer(likelihood(u), -PRECISION * u if request.gradient else None)
    except StopIteration as end:
        return end.value, asked


def test_nuts_is_blackjax_nuts():
    kernel = blackjax.mcmc.nuts.build_kernel()
    start = blackjax.mcmc.nuts.init(jnp.zeros(3), lambda u: likelihood(u) - 0.5 * jnp.sum(u**2))

    def step(density):
        return lambda key, state: kernel(key, state, density, 0.2, jnp.ones(3), 6)

    program = Program(step(log_posterior), jr.key(0), start)
    compiled = jax.jit(step(lambda u: likelihood(u) - 0.5 * jnp.sum(u**2)))
    state = start
    for i in range(5):
        (own, info), asked = finished(program.start(jr.key(i), state))
        other, _ = compiled(jr.key(i), state)
        np.testing.assert_allclose(own.position, other.position, rtol=1e-9)
        assert asked == int(info.num_integration_steps)  # one gradient for a leapfrog step
        state = own


def test_chains_at_once_share_their_requests():
    kernel = blackjax.mcmc.hmc.build_kernel()

    def step(key, state, length):
        return kernel(key, state, log_posterior, 0.1, jnp.ones(3), length)

    keys = jr.split(jr.key(0), 4)
    init = Program(jax.vmap(lambda u: blackjax.mcmc.hmc.init(u, log_posterior)), jnp.ones((4, 3)))
    states, asked = finished(init.start(jnp.ones((4, 3))))
    assert asked == 4
    program = Program(jax.vmap(step, (0, 0, None)), keys, states, 1)
    (states, info), asked = finished(program.start(keys, states, 7))
    assert asked == 4 * 7
    assert np.asarray(info.acceptance_rate).shape == (4,)


def test_a_simulation_without_gradient_costs_one():
    def both(u):
        return jax.lax.cond(u[0] > 0, lambda: log_likelihood(u), lambda: 0.0)

    program = Program(both, jnp.ones(3))
    assert finished(program.start(jnp.ones(3))) == (pytest.approx(likelihood(np.ones(3))), 1)
    assert finished(program.start(-jnp.ones(3))) == (0.0, 0)


def test_what_cannot_be_paused_for_is_named():
    def stacked(u):
        return jax.lax.scan(lambda c, x: (c, log_likelihood(x)), 0.0, u)[1]

    with pytest.raises(NotImplementedError, match="scan"):
        Program(stacked, jnp.ones((2, 3)))
