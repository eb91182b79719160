"""The Haar prior of images: moment matching, and where it is a scalar matrix."""

import jax.random as jr
import numpy as np
import pytest

from helpers import covariance_of
from msign import ScalarPrior
from msign.priors import estimate_mu

pytestmark = pytest.mark.usefixtures("quick_compilation")


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
