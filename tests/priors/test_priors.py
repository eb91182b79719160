"""Every prior of the table keeps its contract, against dense linear algebra."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from conformance import BOUNDARIES, PRIORS, laplace
from helpers import (
    covariance_of,
    identical,
    in_float32,
    matrix_by_values,
    matrix_of,
    moved,
    origin_and_basis,
    pooling_of,
    random_covariance,
    seeded,
)
from msign import archive
from msign.priors import DensePrior, conditional_gaussian, pooling_matrix

pytestmark = pytest.mark.usefixtures("quick_compilation")


def mean_of(prior):
    return np.broadcast_to(prior.mean, prior.lattice.field_shape).reshape(-1)


@pytest.mark.parametrize("name", PRIORS)
def test_density(name):
    prior = PRIORS[name]()
    x = np.random.default_rng(seeded(0)).normal(size=(2, 3, *prior.lattice.field_shape))
    reference = multivariate_normal(mean_of(prior), covariance_of(prior))
    expected = reference.logpdf(x.reshape(2, 3, -1))
    log_p, again = eqx.filter_jit(lambda p, x: (p.log_prob(x), p.unwhiten(p.whiten(x))))(prior, x)
    np.testing.assert_allclose(log_p, expected, rtol=1e-10)
    np.testing.assert_allclose(again, x, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", PRIORS)
def test_whitening_in_float32(name):
    """Loses a few dozen roundings, each as large as the condition number makes it."""
    prior = PRIORS[name]()
    u = np.random.default_rng(seeded(0)).normal(size=(3, prior.lattice.dim)).astype(np.float32)
    again = eqx.filter_jit(lambda p, u: p.whiten(p.unwhiten(u)))(in_float32(prior), u)
    assert again.dtype == jnp.float32
    condition = np.linalg.cond(matrix_of(prior.unwhiten, prior.lattice.dim))
    lost = 100 * np.finfo(np.float32).eps * condition
    np.testing.assert_allclose(again, u, rtol=0, atol=lost)


@pytest.mark.parametrize("name", ["Laplace mean", "Dense 3-D"])
def test_samples_have_the_mean_and_covariance(name):
    prior, n = PRIORS[name](), 20_000
    x = eqx.filter_jit(lambda p: p.sample(jr.key(seeded(0)), n))(prior)
    x = np.asarray(x).reshape(n, -1) - mean_of(prior)
    sigma = covariance_of(prior)
    variance = np.diag(sigma)
    # In units of the estimators' own standard deviations; 6 is passed by chance once in 10^6
    # by any of the 600 numbers.
    assert np.abs(x.mean(0) / np.sqrt(variance / n)).max() < 6
    error = np.sqrt((np.outer(variance, variance) + sigma**2) / n)
    assert np.abs((x.T @ x / n - sigma) / error).max() < 6


def test_sample_moments_on_30_x_48():
    """Variances of cells and of pooled fields: what samples have and what every scale says."""
    prior, n = laplace((30, 48)), 4000
    x = eqx.filter_jit(lambda p: p.sample(jr.key(seeded(0)), n))(prior)
    while True:
        std = prior.marginal_std((1, 1)).reshape(prior.lattice.shape)
        # Means and variances in units of their standard deviations, of at most 1440 cells.
        assert np.abs(np.mean(x, 0) / std).max() * np.sqrt(n) < 6
        assert np.abs(np.mean(np.square(x), 0) / std**2 - 1).max() * np.sqrt(n / 2) < 7
        if prior.max_scales == 1:
            break
        x, prior = prior.lattice.pool(x), prior.coarsen()
    assert prior.lattice.shape == (1, 6)


@pytest.mark.parametrize("name", PRIORS)
def test_coarsening_and_conditioning_are_exact(name):
    prior = PRIORS[name]()
    sigma, a = covariance_of(prior), pooling_of(prior)
    coarse = prior.coarsen()
    np.testing.assert_allclose(covariance_of(coarse), a @ sigma @ a.T, rtol=0, atol=1e-10)
    np.testing.assert_allclose(mean_of(coarse), a @ mean_of(prior), rtol=0, atol=1e-12)
    check_conditioning(prior, sigma, a)


ACCEPTANCE = [(16,), (8, 8), (8, 16), (4, 4, 8), (6,), (15,), (6, 10), (4, 9), (6, 4, 3)]


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("shape", ACCEPTANCE, ids=str)
def test_laplace_conditioning_is_theorem_3_1(shape, boundary):
    """At every scale, each coarser covariance being that of the pooled field."""
    prior = laplace(shape, boundary)
    while prior.lattice.dim > 1 and prior.max_scales > 1:
        sigma, a = covariance_of(prior), pooling_matrix(prior.lattice)
        check_conditioning(prior, sigma, a)
        prior = prior.coarsen()
        np.testing.assert_allclose(covariance_of(prior), a @ sigma @ a.T, rtol=0, atol=1e-10)


@eqx.filter_jit
def refined(layer, coarse, noise, points):
    fine = layer.upsample(coarse, noise)
    log_det = layer.transform_and_log_det(fine.reshape(-1))[1]
    return fine, layer.split(fine), log_det, jax.vmap(layer.transform)(points)


def check_conditioning(prior, sigma, a):
    """PC(x_c, z) = U^c x_c + W z with the conditional mean and covariance of Theorem 3.1."""
    layer = prior.conditioning()
    rng = np.random.default_rng(seeded(1))
    coarse = rng.normal(size=layer.coarse_lattice.field_shape)
    noise = rng.normal(size=layer.shape[0] - coarse.size)
    points = origin_and_basis(prior.lattice.dim)
    fine, parts, log_det, values = refined(layer, coarse, noise, points)
    j = matrix_by_values(values)
    mean_part, noise_part = np.split(j, [len(a)], 1)
    gain = sigma @ a.T @ np.linalg.inv(a @ sigma @ a.T)
    np.testing.assert_allclose(mean_part, gain, rtol=0, atol=1e-10)
    conditional = sigma - gain @ a @ sigma
    np.testing.assert_allclose(noise_part @ noise_part.T, conditional, rtol=0, atol=1e-10)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(j)[1], rtol=0, atol=1e-9)
    assert fine.shape == prior.lattice.field_shape
    np.testing.assert_allclose(a @ np.ravel(fine), np.ravel(coarse), rtol=0, atol=1e-11)
    for found, given in zip(parts, (coarse, noise), strict=True):
        np.testing.assert_allclose(found, given, rtol=0, atol=1e-10)


def test_conditional_gaussian_is_theorem_3_1():
    sigma = random_covariance(8)
    a = np.random.default_rng(seeded(0)).normal(size=(3, 8))
    u, w = conditional_gaussian(sigma, a)
    gain = sigma @ a.T @ np.linalg.inv(a @ sigma @ a.T)
    np.testing.assert_allclose(u, gain, atol=1e-12)
    np.testing.assert_allclose(w @ w.T, sigma - gain @ a @ sigma, atol=1e-12)
    np.testing.assert_allclose(a @ w, 0, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in PRIORS if "downsampling" not in n])
def test_marginal_std(name):
    prior = PRIORS[name]()
    lattice = prior.lattice
    dense = DensePrior(covariance_of(prior), lattice.shape, channels=lattice.channels)
    pairs = tuple(2 - n % 2 for n in lattice.shape)
    windows = {(1,) * lattice.ndim, pairs, lattice.shape}
    for window in windows:
        np.testing.assert_allclose(
            prior.marginal_std(window), dense.marginal_std(window), rtol=1e-9, err_msg=str(window)
        )


def test_marginal_std_of_one_cell_windows_is_the_diagonal():
    prior = PRIORS["Dense 2-D"]()
    expected = np.sqrt(np.diag(covariance_of(prior))).reshape(4, 4, 1, 1)
    np.testing.assert_allclose(prior.marginal_std((1, 1)), expected)


@pytest.mark.parametrize("name", PRIORS)
def test_rebuilt_from_its_description(name):
    prior = PRIORS[name]()
    again = archive.rebuild_prior(prior.describe(), prior.arrays())
    assert again.lattice == prior.lattice and again.max_scales == prior.max_scales
    for mine, theirs in zip(jax.tree.leaves(again), jax.tree.leaves(prior), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-14)


@pytest.mark.parametrize("name", PRIORS)
def test_file_bit_for_bit(name, tmp_path):
    prior = PRIORS[name]()
    archive.save(tmp_path / "prior", prior, {})
    other = moved(prior)
    assert identical(archive.load(tmp_path / "prior", other), prior)
