"""Gaussians around several maxima as one map, and posteriors that need it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import paramax
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import msign
from conformance import modes
from helpers import seeded
from msign import InverseProblem, LaplacePrior
from msign.inference.flows.modes import gaussian_modes, standard_modes

pytestmark = pytest.mark.usefixtures("quick_compilation")

SHARES = np.array([0.2, 0.5, 0.3])


def log_density(layer, y):
    z, log_det = jax.vmap(layer.inverse_and_log_det)(jnp.asarray(y))
    return np.asarray(log_det - 0.5 * jnp.sum(z**2 + np.log(2 * np.pi), 1))


def test_the_density_is_that_of_the_mixture():
    parts = modes(4)
    layer = gaussian_modes(parts, SHARES)
    z = np.random.default_rng(seeded(0)).normal(size=(400, 4))
    y = np.asarray(jax.vmap(layer.transform)(jnp.asarray(z)))
    each = [multivariate_normal(m, a @ a.T).logpdf(y) for m, a in parts]
    exact = logsumexp(np.stack(each, 1) + np.log(SHARES), axis=1)
    found = log_density(layer, y)
    assert np.mean(np.abs(found - exact)) < 0.02  # where modes meet, one is cut off
    shares = [np.mean(np.argmax(np.stack(each, 1), 1) == k) for k in range(3)]
    np.testing.assert_allclose(shares, SHARES, atol=4 * np.sqrt(0.25 / 400))


def test_modes_know_their_own_noise():
    layer = paramax.unwrap(gaussian_modes(modes(4), SHARES))
    z = jnp.asarray(np.random.default_rng(seeded(1)).normal(size=(50, 4)))
    mode, own, slope = jax.vmap(layer.local)(z)
    gaussians = layer.gaussians()
    y = np.asarray(jax.vmap(layer.transform)(z))
    for k, (mean, root) in enumerate(gaussians):
        here = np.asarray(mode) == k
        # The first number of a mode's noise is the one along the line.
        np.testing.assert_allclose(y[here], mean + np.asarray(own)[here] @ root.T, atol=1e-5)
    derivative = jax.vmap(jax.grad(lambda z: layer.local(z)[1][0]))(z)[:, 0]
    np.testing.assert_allclose(slope, derivative, rtol=1e-4)
    opposite, back, _ = jax.vmap(layer.local)(jax.vmap(layer.opposite)(z))
    same = np.asarray(opposite) == np.asarray(mode)
    np.testing.assert_allclose(np.asarray(back)[same], -np.asarray(own)[same], atol=1e-4)
    assert same.mean() > 0.8


def test_one_gaussian_is_an_affine_map():
    (mean, root), *_ = modes(4)
    z = jnp.asarray(np.random.default_rng(seeded(2)).normal(size=4))
    moved = gaussian_modes([(mean, root)], np.ones(1)).transform(z)
    np.testing.assert_allclose(moved, mean + root @ z, rtol=1e-5)
    assert standard_modes(4, 1).modes == 1 and standard_modes(4, 3).modes == 3


# --- a posterior far from the prior with two modes ------------------------------------------------

PRIOR = LaplacePrior((8, 8), alpha=1.0, beta=30.0)
AXIS = np.linspace(-1, 1, 8)
TRUTH = 1.5 + np.outer(np.cos(1.2 * AXIS), AXIS)


def products(x):
    """Each cell times the mean of all, which a change of sign leaves as it is; and the mean."""
    mean = x.mean((1, 2))
    return jnp.concatenate([(x * mean[:, None, None]).reshape(len(x), -1), mean[:, None]], 1)


def signed(mean_noise):
    """Two mirror images, told apart by what is seen of the mean alone."""
    noise = np.append(np.full(64, 0.5), mean_noise)
    data = np.append((TRUTH * TRUTH.mean()).ravel(), 1.0)
    data[:64] += 0.5 * np.random.default_rng(0).normal(size=64)
    return InverseProblem(PRIOR, products, data, noise, scales=1)


@functools.cache
def fitted(mean_noise):
    return msign.fit(signed(mean_noise), 60_000, seeded(3), progress=False)


@pytest.mark.parametrize("mean_noise", [100.0, 2.0])
def test_both_signs_are_found_in_their_weights(mean_noise):
    """By symmetry: the odds are what the mean alone says of the positive mode and of its mirror."""
    posterior = fitted(mean_noise)
    u, log_weights = posterior.importance(4000, seeded(4))
    x = np.asarray(posterior.prior.unwhiten(u), np.float64)
    w = np.exp(log_weights - log_weights.max())
    positive = x.mean((1, 2)) > 0
    mean = np.abs(x.mean((1, 2)))
    for_sign = [np.exp(-0.5 * ((1.0 - s * mean) / mean_noise) ** 2) for s in (1, -1)]
    other = np.where(positive, *for_sign)  # what the sign itself adds is taken off again
    exact = np.average(for_sign[0], weights=w / other) / sum(
        np.average(f, weights=w / other) for f in for_sign
    )
    ess = w.sum() ** 2 / np.sum(w**2)
    assert posterior.certificate().ess_fraction > 0.1
    assert np.average(positive, weights=w) == pytest.approx(exact, abs=4 * np.sqrt(0.25 / ess))
    assert positive.mean() == pytest.approx(exact, abs=0.06)


def test_several_modes_are_saved_with_the_flow(tmp_path):
    posterior = fitted(100.0)
    posterior.save(tmp_path / "run")
    loaded = msign.Posterior.load(tmp_path / "run", posterior.problem)
    np.testing.assert_array_equal(loaded.sample(5, seed=1), posterior.sample(5, seed=1))
