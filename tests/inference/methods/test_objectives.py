"""Objectives against quadrature, on a problem of one variable and a model of four parameters."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from flowjax.bijections import Chain, LeakyTanh
from jax.flatten_util import ravel_pytree

from helpers import seeded
from msign.bijections import TriangularMap
from msign.inference.methods import NAMED
from msign.inference.methods.objectives import (
    Batch,
    CentredJeffreys,
    PathwiseJeffreys,
    ScoreJeffreys,
    SteinObjective,
    kernelised_stein_discrepancy,
    pool_jeffreys,
    stein_direction,
    stray_penalty,
)
from msign.training import combine, split_trainable
from msign.variables import Variables

pytestmark = pytest.mark.usefixtures("quick_compilation")

GRID = jnp.linspace(-9.0, 9.0, 8001)[:, None]
STEP = float(GRID[1, 0] - GRID[0, 0])


def model_of(first: float, shift: float, second: float) -> Variables:
    """Not Gaussian: an affine map, a hyperbolic tangent with straight ends, an affine map.

    Wide enough that its samples carry any of the weights below.
    """
    affine = [
        TriangularMap.from_matrix(np.array([[a]]), np.array([b]))
        for a, b in ((first, shift), (second, -0.1))
    ]
    return Variables(Chain([affine[0], LeakyTanh(0.5, (1,)), affine[1]]), None, 1)


MODEL = model_of(1.0, 0.15, 1.6)
OTHER = model_of(0.9, -0.1, 1.9)
TRAINABLE, REST = split_trainable(MODEL)
PARAMETERS, UNRAVEL = ravel_pytree(TRAINABLE)


def with_parameters(p: jax.Array) -> Variables:
    return combine(UNRAVEL(p), REST)


def log_ratio(model: Variables, s: jax.Array) -> jax.Array:
    return model.backward(s)[1]


def log_target(s: jax.Array) -> jax.Array:
    """A log-likelihood that falls so slowly that no log-ratio of a sample is ever clipped."""
    return -0.5 * ((0.3 * s[..., 0] ** 2 + 0.2 * s[..., 0] - 1) / 1.2) ** 2


def quadrature(model: Variables, target, reverse: float, forward: float) -> jax.Array:
    """Both divergences by a sum over a grid."""
    log_normal = -0.5 * GRID[:, 0] ** 2 - 0.5 * jnp.log(2 * jnp.pi)
    log_p = log_ratio(model, GRID) + log_normal
    log_q = target(GRID) + log_normal
    log_q = log_q - jax.nn.logsumexp(log_q) - jnp.log(STEP)
    p, q = jnp.exp(log_p), jnp.exp(log_q)
    return STEP * jnp.sum(reverse * p * (log_p - log_q) + forward * q * (log_q - log_p))


@eqx.filter_jit
def exact_gradient(reverse: float, forward: float) -> jax.Array:
    value = lambda p: quadrature(with_parameters(p), log_target, reverse, forward)  # noqa: E731
    return jax.grad(value)(PARAMETERS)


@eqx.filter_jit
def objective_gradient(objective, batch: Batch) -> jax.Array:
    return jax.grad(lambda p: objective(with_parameters(p), batch))(PARAMETERS)


@eqx.filter_jit
def on_pool(p: jax.Array, s: jax.Array, target: jax.Array, measure: jax.Array):
    """Value and gradient of the divergence on a pool."""
    value = lambda p: pool_jeffreys(log_ratio(with_parameters(p), s), target, measure)  # noqa: E731
    return jax.value_and_grad(value)(p)


def differences(value, step: float = 1e-5) -> np.ndarray:
    """Derivatives with respect to the parameters by finite differences."""
    steps = step * np.eye(len(PARAMETERS))
    return np.array([(value(PARAMETERS + h) - value(PARAMETERS - h)) / (2 * step) for h in steps])


@eqx.filter_jit
def batch_of(model: Variables, key: jax.Array, n: int, target=log_target) -> Batch:
    z = jr.normal(jr.fold_in(key, 0), (n, 1))
    s = model.forward(z)[0]
    score = jax.vmap(jax.grad(lambda s: target(s[None])[0]))(s)
    ps = OTHER.forward(jr.normal(jr.fold_in(key, 1), (n, 1)))[0]
    return Batch(
        z,
        s,
        target(s),
        score,
        proposal_s=ps,
        proposal_target=target(ps),
        proposal_log_ratio=log_ratio(OTHER, ps),
    )


# --- estimators from samples ----------------------------------------------------------------------

OBJECTIVES = {
    "score": (ScoreJeffreys(), 1, 1),
    "score, reverse": (ScoreJeffreys(forward=0.0), 1, 0),
    "centred": (CentredJeffreys(), 1, 1),
    "pathwise": (PathwiseJeffreys(max_weight=1e9), 1, 1),
    "reverse KL, pathwise": (NAMED["reverse_kl"](True).objective, 1, 0),
    "reverse KL, centred": (NAMED["reverse_kl"](False).objective, 1, 0),
    "forward KL": (NAMED["forward_kl"](True).objective, 0, 1),
}


@functools.cache
def estimates() -> dict[str, np.ndarray]:
    """The gradient of every objective on the same batches, all compiled at once."""

    def one(key):
        batch = batch_of(MODEL, key, 5000)
        return {name: objective_gradient(o, batch) for name, (o, *_) in OBJECTIVES.items()}

    return jax.jit(lambda keys: jax.lax.map(one, keys))(jr.split(jr.key(seeded(3)), 30))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_expected_gradient_is_that_of_quadrature(name):
    _, reverse, forward = OBJECTIVES[name]
    exact, found = exact_gradient(reverse, forward), estimates()[name]
    mean, error = found.mean(0), found.std(0, ddof=1) / np.sqrt(len(found))
    assert np.linalg.norm(error) < 0.1 * np.linalg.norm(exact)
    # Weights that are normalised by their own sum have a bias of the order of one over their
    # number, small beside the error of the mean of all batches.
    np.testing.assert_array_less(np.abs(mean - exact), 5.5 * error)


def test_quadrature_is_differentiated_correctly():
    value = jax.jit(lambda p: quadrature(with_parameters(p), log_target, 1, 1))
    np.testing.assert_allclose(exact_gradient(1, 1), differences(value), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["centred", "pathwise", "reverse KL, pathwise"])
def test_variance_vanishes_where_model_is_target(name):
    batch = batch_of(MODEL, jr.key(seeded(4)), 256, own_target)
    assert np.abs(objective_gradient(OBJECTIVES[name][0], batch)).max() < 1e-10
    noisy = objective_gradient(ScoreJeffreys(), batch)
    assert np.abs(noisy).max() > 1e-3  # the paper's form does not have this property


def own_target(s: jax.Array) -> jax.Array:
    return log_ratio(MODEL, s) - 3.0


def test_one_sample_does_not_outweigh_its_batch():
    """One field that has all the weight counts as ten, of 256, and not as all of them."""
    n = 256
    batch = batch_of(MODEL, jr.key(seeded(6)), n)
    wild = batch._replace(target=batch.target.at[0].add(90.0))
    capped, free = (
        objective_gradient(PathwiseJeffreys(reverse=0.0, max_weight=limit), wild)
        for limit in (10.0, 1e9)
    )
    np.testing.assert_allclose(capped, 10 / n * free, rtol=1e-6)


def test_variables_that_are_at_hand_already_give_the_same_gradient():
    batch, objective = batch_of(MODEL, jr.key(seeded(11)), 256), PathwiseJeffreys()

    @jax.jit
    def gradient(p):
        def value(p):
            model = with_parameters(p)
            return objective(model, batch._replace(moved=model.forward(batch.z)[0]))

        return jax.grad(value)(p)

    expected = objective_gradient(objective, batch)
    np.testing.assert_allclose(gradient(PARAMETERS), expected, rtol=1e-9)


# --- divergences on a pool ------------------------------------------------------------------------


def test_pool_value_is_the_jeffreys_divergence():
    """On draws of a proposal that is wider than prior, model and target."""

    def one(key):
        s = 2 * jr.normal(key, (5000, 1))
        mixture = (0.5 - 0.125) * s[:, 0] ** 2 - jnp.log(2.0)
        value, slope = on_pool(PARAMETERS, s, log_target(s), mixture)
        return jnp.append(slope, value)

    pools = jax.jit(lambda keys: jax.lax.map(one, keys))(jr.split(jr.key(seeded(10)), 30))
    mean, error = pools.mean(0), pools.std(0, ddof=1) / np.sqrt(len(pools))
    exact = jnp.append(exact_gradient(1, 1), quadrature(MODEL, log_target, 1, 1))
    np.testing.assert_array_less(np.abs(mean - exact), 5.5 * error)
    assert np.linalg.norm(error) < 0.1 * np.linalg.norm(exact)


FIELDS = 2 * jr.normal(jr.key(seeded(6)), (100, 1))


def test_gradient_on_a_pool_is_that_of_its_value():
    measure = 0.4 * FIELDS[:, 0] ** 2
    given = (FIELDS, log_target(FIELDS), measure)
    expected = differences(lambda p: on_pool(p, *given)[0])
    found = on_pool(PARAMETERS, *given)[1]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_pool_is_at_its_minimum_where_model_is_target_and_ignores_empty_rows():
    measure = jnp.where(jnp.arange(100) < 80, 0.3 * FIELDS[:, 0], jnp.inf)
    same = log_ratio(MODEL, FIELDS) + 5.0
    value, slope = on_pool(PARAMETERS, FIELDS, same, measure)
    assert abs(value) < 1e-12
    assert np.abs(slope).max() < 1e-10
    away = PARAMETERS + 0.1
    value, _ = on_pool(away, FIELDS, same, measure)
    assert value > 1e-4
    elsewhere = FIELDS.at[80:].set(7.0)
    changed, _ = on_pool(away, elsewhere, same, measure)
    np.testing.assert_allclose(changed, value, rtol=1e-12)


# --- Stein ----------------------------------------------------------------------------------------


def test_stein_direction_vanishes_at_the_target_and_moves_towards_it():
    n = 800
    s = jr.normal(jr.key(seeded(7)), (n, 2))
    at_target = stein_direction(s, -s)
    shifted = stein_direction(s, -(s - 2.0))
    # The mean direction is a mean of n scores of variance one, each times its mean kernel < 1.
    assert np.abs(at_target.mean(0)).max() < 5 / np.sqrt(n)
    # A shift of the target by 2 is followed by 2 times the mean kernel.
    gain = (shifted - at_target).mean(0)
    np.testing.assert_allclose(gain[0], gain[1], rtol=1e-9)
    assert gain[0] > 0.1
    ksd = kernelised_stein_discrepancy
    assert ksd(s, -(s - 2.0)) > 20 * ksd(s, -s)


def test_stein_objective_descends_towards_the_target():
    step = objective_gradient(SteinObjective(), batch_of(MODEL, jr.key(seeded(8)), 256))

    def discrepancy(model):
        fresh = batch_of(model, jr.key(seeded(9)), 256)
        return kernelised_stein_discrepancy(fresh.s, fresh.score - fresh.s)

    moved = with_parameters(PARAMETERS - 0.02 * step / jnp.linalg.norm(step))
    assert discrepancy(moved) < discrepancy(MODEL)


# --- strays ---------------------------------------------------------------------------------------


@eqx.filter_jit
def gradients_of_the_excess(bound):
    """Of its mean over the model's samples: as they move, and of the penalty where they are.

    By quadrature over the noise of the samples.
    """
    weight = len(GRID) * STEP * jnp.exp(-0.5 * GRID[:, 0] ** 2) / jnp.sqrt(2 * jnp.pi)
    samples = MODEL.forward(GRID)[0]

    def moving(p):
        s, density = with_parameters(p).forward(GRID)
        return jnp.mean(weight * jnp.maximum(0.0, density - bound(s)))

    def still(p):
        density = log_ratio(with_parameters(p), samples)
        each = jax.vmap(lambda *one: stray_penalty(*(jnp.atleast_1d(a) for a in one)))
        return jnp.mean(weight * each(density, bound(samples)))

    return jax.grad(moving)(PARAMETERS), jax.grad(still)(PARAMETERS)


def test_what_strays_pay_where_they_are_is_the_slope_of_their_excess():
    moving, still = gradients_of_the_excess(lambda s: log_target(s) - 0.5)
    assert np.abs(moving).max() > 0.1
    np.testing.assert_allclose(still, moving, rtol=1e-3, atol=1e-4)


def test_nothing_is_paid_below_the_bound():
    assert not np.any(gradients_of_the_excess(lambda s: log_ratio(MODEL, s) + 1.0))
