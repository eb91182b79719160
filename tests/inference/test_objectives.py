"""Objectives against quadrature on a one-dimensional problem."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from msign.bijections import InformedConfig
from msign.inference.models import FlowCore, combine, informed_flow, split_trainable
from msign.inference.objectives import (
    Batch,
    CentredJeffreys,
    PathwiseJeffreys,
    ScoreJeffreys,
    SteinObjective,
    forward_kl,
    kernelised_stein_discrepancy,
    pool_divergence,
    pool_jeffreys,
    pool_variance,
    reverse_kl,
    stein_direction,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

GRID = jnp.linspace(-9.0, 9.0, 4001)[:, None]
STEP = float(GRID[1, 0] - GRID[0, 0])


def core_with(seed: int, size: float) -> FlowCore:
    """A one-dimensional flow whose parameters are moved at random from the identity."""
    core = FlowCore(informed_flow(jr.key(0), (1,), InformedConfig(blocks=2, knots=5)), (1,))
    trainable, rest = split_trainable(core)
    leaves, tree = jax.tree.flatten(trainable)
    keys = jr.split(jr.key(seed), len(leaves))
    moved = [a + size * jr.normal(k, a.shape) for a, k in zip(leaves, keys, strict=True)]
    return combine(jax.tree.unflatten(tree, moved), rest)


# Near enough to the target that no log-ratio is clipped (at 0.4 nearly all are, and clipped ratios
# have no gradient by design).
CORE = core_with(1, 0.1)
OTHER = core_with(2, 0.1)


@eqx.filter_jit
def excess(core: FlowCore, s: jax.Array) -> jax.Array:
    return jax.vmap(lambda s: core.backward(s)[1])(s)


def log_target(s: jax.Array) -> jax.Array:
    """A bimodal log-likelihood."""
    return -0.5 * ((0.3 * s[..., 0] ** 2 + 0.2 * s[..., 0] - 1) / 0.6) ** 2


def quadrature(core: FlowCore, target, reverse: float, forward: float) -> jax.Array:
    """Both divergences by a sum over a grid."""
    log_normal = -0.5 * GRID[:, 0] ** 2 - 0.5 * jnp.log(2 * jnp.pi)
    log_p = excess(core, GRID) + log_normal
    log_q = target(GRID) + log_normal
    log_q = log_q - jax.nn.logsumexp(log_q) - jnp.log(STEP)
    p, q = jnp.exp(log_p), jnp.exp(log_q)
    return STEP * jnp.sum(reverse * p * (log_p - log_q) + forward * q * (log_q - log_p))


@eqx.filter_jit
def batch_of(core: FlowCore, key: jax.Array, n: int, target=log_target) -> Batch:
    z = jr.normal(jr.fold_in(key, 0), (n, 1))
    s = jax.vmap(lambda z: core.forward(z)[0])(z)
    slope = jax.vmap(jax.grad(lambda s: target(s[None])[0]))(s)
    ps = jax.vmap(lambda z: OTHER.forward(z)[0])(jr.normal(jr.fold_in(key, 1), (n, 1)))
    return Batch(z, s, target(s), slope, ps, target(ps), excess(OTHER, ps))


def flat_gradient(f, core: FlowCore) -> jax.Array:
    trainable, rest = split_trainable(core)
    gradient = jax.jit(jax.grad(lambda p: f(combine(p, rest))))(trainable)
    return jnp.concatenate([g.ravel() for g in jax.tree.leaves(gradient)])


OBJECTIVES = {
    "score": (ScoreJeffreys(), 1, 1),
    "score, reverse": (ScoreJeffreys(forward=0.0), 1, 0),
    "centred": (CentredJeffreys(), 1, 1),
    "pathwise": (PathwiseJeffreys(max_weight=1e9), 1, 1),
    "reverse KL, pathwise": (reverse_kl(True), 1, 0),
    "reverse KL, centred": (reverse_kl(False), 1, 0),
    "forward KL": (forward_kl(), 0, 1),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_expected_gradient_is_that_of_quadrature(name):
    objective, reverse, forward = OBJECTIVES[name]
    exact = flat_gradient(lambda c: quadrature(c, log_target, reverse, forward), CORE)
    batches = 40

    def one(key):
        batch = batch_of(CORE, key, 4000)
        return flat_gradient(lambda c: objective(c, batch), CORE)

    estimates = jax.lax.map(jax.jit(one), jr.split(jr.key(3), batches))
    mean, error = estimates.mean(0), estimates.std(0) / np.sqrt(batches)
    assert float(jnp.linalg.norm(exact)) > 0.1
    assert float(jnp.linalg.norm(error)) < 0.3 * float(jnp.linalg.norm(exact))
    # Every component, of a few thousand that share their samples, within four standard errors.
    assert float(jnp.max(jnp.abs(mean - exact) - 4 * error)) < 1e-9


@pytest.mark.parametrize("name", ["centred", "pathwise", "reverse KL, pathwise"])
def test_variance_vanishes_where_model_is_target(name):
    objective = OBJECTIVES[name][0]

    def own(s):
        return excess(CORE, s) - 3.0

    batch = batch_of(CORE, jr.key(4), 64, own)
    gradient = flat_gradient(lambda c: objective(c, batch), CORE)
    assert float(jnp.abs(gradient).max()) < 1e-10
    noisy = flat_gradient(lambda c: ScoreJeffreys()(c, batch), CORE)
    assert float(jnp.abs(noisy).max()) > 1e-3  # the paper's form does not have this property


def test_one_sample_does_not_outweigh_its_batch():
    """A slope of 1e9, as near a sharp fold of the model, pulls no more than the others together."""
    batch = batch_of(CORE, jr.key(6), 256)
    wild = eqx.tree_at(lambda b: b.slope, batch, batch.slope.at[0].set(1e9))
    trainable, rest = split_trainable(CORE)
    gradient = jax.grad(lambda t, b: PathwiseJeffreys()(combine(t, rest), b))
    size = lambda b: float(optax.tree.norm(gradient(trainable, b)))  # noqa: E731
    assert size(wild) < 5 * size(batch)


def test_pool_value_and_gradient():
    s = 2 * jr.normal(jr.key(5), (200_000, 1))  # a proposal wider than prior, model and target
    mixture = (0.5 - 0.125) * s[:, 0] ** 2 - jnp.log(2.0)

    def value(core):
        return pool_jeffreys(excess(core, s), log_target(s), mixture)

    exact = quadrature(CORE, log_target, 1, 1)
    assert abs(float(value(CORE)) - float(exact)) < 0.02 * float(exact)
    gradient = flat_gradient(value, CORE)
    wanted = flat_gradient(lambda c: quadrature(c, log_target, 1, 1), CORE)
    assert float(jnp.linalg.norm(gradient - wanted)) < 0.1 * float(jnp.linalg.norm(wanted))


def test_pool_is_zero_where_model_is_target_and_ignores_empty_rows():
    s = jr.normal(jr.key(6), (100, 1)) * 2
    mixture = jnp.where(jnp.arange(100) < 80, 0.3 * s[:, 0], jnp.inf)
    same = excess(CORE, s) + 5.0

    def value(core):
        return pool_jeffreys(excess(core, s), same, mixture)

    assert abs(float(value(CORE))) < 1e-12
    assert float(jnp.abs(flat_gradient(value, CORE)).max()) < 1e-10
    changed = s.at[80:].set(7.0)
    other = pool_jeffreys(excess(OTHER, changed), log_target(changed), mixture)
    assert float(other) == pytest.approx(
        float(pool_jeffreys(excess(OTHER, s), log_target(s), mixture)), rel=1e-12
    )


def test_pool_divergence_sees_mass_that_has_left_the_pool():
    s = jr.normal(jr.key(6), (100, 1)) * 2
    mixture = jnp.where(jnp.arange(100) < 80, 0.3 * s[:, 0], jnp.inf)
    target = excess(CORE, s)  # as the pool would have normalised it

    def value(core):
        return pool_divergence(excess(core, s), target, mixture)

    assert abs(float(value(CORE))) < 1e-12
    assert float(jnp.abs(flat_gradient(value, CORE)).max()) < 1e-10
    for lost, penalty in ((0.5, 0.0), (10.0, 2 * (10.0 - np.log(2)))):
        left = target - lost
        assert abs(float(pool_jeffreys(left, target, mixture))) < 1e-12
        assert float(pool_divergence(left, target, mixture)) == pytest.approx(penalty, abs=1e-12)
    pull = jax.grad(lambda e: pool_divergence(e, target, mixture))(target - 10.0)
    assert float(pull.sum()) == pytest.approx(-2.0)  # bounded, however far the model has gone


def test_pool_variance_is_the_jeffreys_divergence_near_the_target():
    log_normal = -0.5 * GRID[:, 0] ** 2

    def near(s):  # a target that differs from the model by a hundredth of a nat
        return excess(CORE, s) + 0.01 * jnp.sin(2 * s[:, 0]) + 4.0

    value = pool_variance(excess(CORE, GRID), near(GRID), excess(CORE, GRID) + log_normal)
    exact = quadrature(CORE, near, 1, 1)
    assert float(value) == pytest.approx(float(exact), rel=0.01)


@pytest.mark.parametrize("flatness", [0.0, 0.5, 1.0])
def test_pool_variance_is_zero_where_model_is_target_and_ignores_empty_rows(flatness):
    s = jr.normal(jr.key(6), (100, 1)) * 2
    log_weights = jnp.where(jnp.arange(100) < 80, flatness * s[:, 0], -jnp.inf)
    same = excess(CORE, s) + 5.0

    def value(core):
        return pool_variance(excess(core, s), same, log_weights)

    assert abs(float(value(CORE))) < 1e-20
    assert float(jnp.abs(flat_gradient(value, CORE)).max()) < 1e-10
    assert float(value(OTHER)) > 1e-4
    changed = s.at[80:].set(7.0)
    other = pool_variance(excess(OTHER, changed), excess(CORE, changed) + 5.0, log_weights)
    assert float(other) == pytest.approx(float(value(OTHER)), rel=1e-12)


def test_stein_direction_vanishes_at_the_target_and_moves_towards_it():
    s = jr.normal(jr.key(7), (800, 2))
    at_target = stein_direction(s, -s)
    shifted = stein_direction(s, -(s - 2.0))
    assert float(jnp.abs(at_target.mean(0)).max()) < 0.05
    assert float(shifted.mean(0).min()) > 0.1
    ksd = kernelised_stein_discrepancy
    assert float(ksd(s, -(s - 2.0))) > 20 * float(ksd(s, -s))


def test_stein_objective_descends_towards_the_target():
    batch = batch_of(CORE, jr.key(8), 500)
    trainable, rest = split_trainable(CORE)
    descend = jax.jit(jax.grad(lambda p: SteinObjective()(combine(p, rest), batch)))
    gradient = descend(trainable)
    moved = combine(eqx.apply_updates(trainable, jax.tree.map(lambda g: -0.02 * g, gradient)), rest)

    def discrepancy(core):
        fresh = batch_of(core, jr.key(9), 500)
        return float(kernelised_stein_discrepancy(fresh.s, fresh.slope - fresh.s))

    assert discrepancy(moved) < discrepancy(CORE)
