"""Every prior of the table keeps its contract, against dense linear algebra."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.linalg import fractional_matrix_power
from scipy.stats import multivariate_normal

from conformance import BOUNDARIES, PRIORS, laplace
from helpers import covariance_of, in_float32, matrix_of, pooling_of
from msign import LaplacePrior, ScalarPrior, archive
from msign.priors import DensePrior, conditional_gaussian, estimate_mu, pooling_matrix

pytestmark = pytest.mark.usefixtures("quick_compilation")


def mean_of(prior):
    return np.broadcast_to(prior.mean, prior.lattice.field_shape).reshape(-1)


@pytest.mark.parametrize("name", PRIORS)
def test_density(name):
    prior = PRIORS[name]()
    x = np.random.default_rng(0).normal(size=(2, 3, *prior.lattice.field_shape))
    reference = multivariate_normal(mean_of(prior), covariance_of(prior))
    expected = reference.logpdf(x.reshape(2, 3, -1))
    log_p, again = eqx.filter_jit(lambda p, x: (p.log_prob(x), p.unwhiten(p.whiten(x))))(prior, x)
    np.testing.assert_allclose(log_p, expected, rtol=1e-10)
    np.testing.assert_allclose(again, x, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", PRIORS)
def test_whitening_in_float32(name):
    prior = in_float32(PRIORS[name]())
    u = np.random.default_rng(0).normal(size=(3, prior.lattice.dim)).astype(np.float32)
    again = eqx.filter_jit(lambda p, u: p.whiten(p.unwhiten(u)))(prior, jnp.asarray(u))
    assert again.dtype == jnp.float32
    np.testing.assert_allclose(again, u, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", PRIORS)
def test_samples_have_the_mean_and_covariance(name):
    prior, n = PRIORS[name](), 20_000
    x = eqx.filter_jit(lambda p: p.sample(jr.key(0), n))(prior)
    x = np.asarray(x).reshape(n, -1) - mean_of(prior)
    sigma = covariance_of(prior)
    variance = np.diag(sigma)
    # In units of the estimators' own standard deviations; 5 is passed by chance once in 10^6.
    assert np.abs(x.mean(0) / np.sqrt(variance / n)).max() < 5
    error = np.sqrt((np.outer(variance, variance) + sigma**2) / n)
    assert np.abs((x.T @ x / n - sigma) / error).max() < 5


@pytest.mark.parametrize("name", PRIORS)
def test_coarsening_and_conditioning_are_exact(name):
    prior = PRIORS[name]()
    sigma, a = covariance_of(prior), pooling_of(prior)
    coarse = prior.coarsen()
    np.testing.assert_allclose(covariance_of(coarse), a @ sigma @ a.T, rtol=0, atol=1e-10)
    np.testing.assert_allclose(mean_of(coarse), a @ mean_of(prior), rtol=0, atol=1e-12)
    check_conditioning(prior, sigma, a)


ACCEPTANCE = [(16,), (8, 8), (8, 16), (4, 4, 8)]


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("shape", ACCEPTANCE, ids=str)
def test_laplace_conditioning_is_theorem_3_1(shape, boundary):
    prior = laplace(shape, boundary)
    check_conditioning(prior, covariance_of(prior), pooling_matrix(prior.lattice))


def check_conditioning(prior, sigma, a):
    """PC(x_c, z) = U^c x_c + W z with the conditional mean and covariance of Theorem 3.1."""
    layer = prior.conditioning()
    j = matrix_of(layer.transform, prior.lattice.dim)
    mean_part, noise_part = np.split(j, [len(a)], 1)
    gain = sigma @ a.T @ np.linalg.inv(a @ sigma @ a.T)
    np.testing.assert_allclose(mean_part, gain, rtol=0, atol=1e-10)
    conditional = sigma - gain @ a @ sigma
    np.testing.assert_allclose(noise_part @ noise_part.T, conditional, rtol=0, atol=1e-10)
    rng = np.random.default_rng(1)
    coarse = rng.normal(size=layer.coarse_lattice.field_shape)
    noise = rng.normal(size=layer.shape[0] - coarse.size)
    fine, parts = eqx.filter_jit(
        lambda layer, c, z: (layer.upsample(c, z), layer.split(layer.upsample(c, z)))
    )(layer, coarse, noise)
    assert fine.shape == prior.lattice.field_shape
    np.testing.assert_allclose(a @ fine.reshape(-1), coarse.reshape(-1), rtol=0, atol=1e-11)
    for found, given in zip(parts, (coarse, noise), strict=True):
        np.testing.assert_allclose(found, given, rtol=0, atol=1e-10)


def test_conditional_gaussian_is_theorem_3_1():
    sigma = covariance_of(PRIORS["Dense 1-D"]())
    a = np.random.default_rng(0).normal(size=(3, 8))
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
    windows = {(1,) * lattice.ndim, (2,) * lattice.ndim, lattice.shape}
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
    other = jax.tree.map(lambda a: a + 1 if eqx.is_inexact_array(a) else a, prior)
    assert eqx.tree_equal(archive.load(tmp_path / "prior", other), prior)


ENDS = {"dirichlet": 3.0, "neumann": 1.0, "periodic": 2.0}


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("shape", [(6,), (4, 3), (2, 3, 2)], ids=str)
def test_laplace_covariance_is_a_power_of_the_finite_difference_operator(shape, boundary):
    alpha, beta, kappa = 0.3, 2.0, 1.5
    operator = kappa**2 * np.eye(np.prod(shape))
    for axis, n in enumerate(shape):
        line = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
        line[0, 0] = line[-1, -1] = ENDS[boundary]
        if boundary == "periodic":
            line[0, -1] -= 1
            line[-1, 0] -= 1
        before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        operator += n**2 * np.kron(np.kron(np.eye(before), line), np.eye(after))
    expected = np.prod(shape) * beta**2 * fractional_matrix_power(operator, -1 - alpha)
    prior = LaplacePrior(shape, alpha, beta, boundary, kappa)
    np.testing.assert_allclose(covariance_of(prior), expected, rtol=0, atol=1e-10)


def test_laplace_prior_does_not_depend_on_the_mesh():
    """The variance of a smooth functional converges under refinement, at second order."""
    variances = []
    for n in (16, 32, 64):
        prior = LaplacePrior((n,), 0.5, 2.0)
        phi = np.sin(np.pi * (np.arange(n) + 0.5) / n) / n
        variances.append(phi @ covariance_of(prior) @ phi)
    exact = 2.0**2 * np.pi**-3.0 / 2  # lambda_1 <phi, e_1>^2
    errors = np.abs(np.array(variances) - exact)
    np.testing.assert_allclose(errors[:-1] / errors[1:], 4, rtol=0.05)


def test_moment_matching_recovers_mu():
    bands = np.array([[0.4, 0.7], [0.8, 0.9], [0.5, 1.1]])
    prior = ScalarPrior((8, 8), (0.5, bands), std=1.3, channels=2)
    x = prior.sample(jr.key(0), 4_000)
    scalar = estimate_mu(x, prior.lattice, 3)
    np.testing.assert_allclose(scalar[0], 0.5, rtol=0.01)
    np.testing.assert_allclose(scalar[1], np.sqrt((bands**2).mean()), rtol=0.01)
    per_band = estimate_mu(x, prior.lattice, 3, per_band=True)
    np.testing.assert_allclose(per_band[0], 0.5, rtol=0.02)
    np.testing.assert_allclose(per_band[1], bands, rtol=0.02)


def test_scalar_prior_is_a_scalar_matrix_where_mu_says_so():
    """Appendix G: Sigma_l = c_l I with mu_l = sqrt(c_l / lambda), lambda = 2^-n."""
    c = 0.6  # at the finest scale; pooling divides the variance by 4
    prior = ScalarPrior((8, 8), np.sqrt([c / 4 * 4, c * 4]), np.sqrt(c / 16))
    np.testing.assert_allclose(covariance_of(prior), c * np.eye(64), atol=1e-14)
