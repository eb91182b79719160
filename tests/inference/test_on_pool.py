"""Updates on a pool: what a stage below its tolerance still learns."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from msign.bijections import InformedConfig
from msign.inference.config import FitConfig
from msign.inference.models import FlowCore, excess_all, forward_all, informed_flow
from msign.inference.objectives import pool_divergence, pool_variance
from msign.inference.on_pool import fit_pool
from msign.inference.pool import Pool

pytestmark = pytest.mark.usefixtures("quick_compilation")

N = 4096
CONFIG = FitConfig(steps=300, batch_size=1024)


def log_likelihood(s):
    return -0.5 * ((s[..., 0] ** 2 / 4 - 1) / 0.25) ** 2


def pool_of(core: FlowCore, pool: Pool | None, proposals: list[FlowCore], key) -> Pool:
    s = np.asarray(forward_all(core, jr.normal(key, (N, 1)))[0])
    pool = Pool.empty(3 * N, 1, 3) if pool is None else pool
    return pool.add(s, log_likelihood(s), proposals)


@pytest.fixture(scope="module")
def roughly_trained() -> tuple[FlowCore, Pool]:
    """A model that has learned the modes, with all fields that it has seen."""
    core = FlowCore(informed_flow(jr.key(0), (1,), InformedConfig(blocks=4, knots=10)), (1,))
    pool, proposals = None, []
    for i in range(3):
        proposals.append(core)
        pool = pool_of(core, pool, proposals, jr.key(i))
        core = learned(core, pool, pool_divergence, pool.mixture(), i)
    return core, pool


def learned(core, pool, divergence, measure, seed) -> FlowCore:
    arrays = (jnp.asarray(pool.s), jnp.asarray(pool.target(1.0)), jnp.asarray(measure))
    chances = jnp.asarray(pool.uniform())
    return fit_pool(core, *arrays, chances, jr.key(seed), CONFIG, 0.5, divergence)[0]


def variance(core: FlowCore, power: float) -> float:
    """Of log p - log q under a power of the posterior, by quadrature."""
    s = np.linspace(-4, 4, 2001)[:, None]
    weights = np.exp(power * (log_likelihood(s) - 0.5 * s[:, 0] ** 2))
    ratio = np.asarray(excess_all(core, jnp.asarray(s))) - log_likelihood(s)
    return np.cov(ratio, aweights=weights, ddof=0).item()


def test_flattened_weights_see_what_the_jeffreys_divergence_misses(roughly_trained):
    core, pool = roughly_trained
    usual = learned(core, pool, pool_divergence, pool.mixture(), 9)
    flat = learned(core, pool, pool_variance, pool.flattened(0.5 * pool.size), 9)
    assert variance(flat, 0.4) < variance(usual, 0.4)
