"""The Haar prior of images: moment matching, and where it is a scalar matrix."""

import equinox as eqx
import jax.random as jr
import numpy as np
import pytest

from helpers import covariance_of, seeded
from msign import ScalarPrior
from msign.priors import estimate_mu

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_moment_matching_recovers_mu():
    bands = np.array([[0.4, 0.7], [0.8, 0.9], [0.5, 1.1]])
    prior = ScalarPrior((8, 8), (0.5, bands), std=1.3, channels=2)
    n = 4000
    x = eqx.filter_jit(lambda p: p.sample(jr.key(seeded(0)), n))(prior)
    scalar = estimate_mu(x, prior.lattice, 3)
    per_band = estimate_mu(x, prior.lattice, 3, per_band=True)
    # The size of k details is known to 1 / sqrt(2 k): 4 and 16 of each image, band and channel.
    for found in (scalar[0], per_band[0]):
        np.testing.assert_allclose(found, 0.5, rtol=6 / np.sqrt(2 * n * 4))
    for found, exact in ((scalar[1], np.sqrt((bands**2).mean())), (per_band[1], bands)):
        np.testing.assert_allclose(found, exact, rtol=6 / np.sqrt(2 * n * 16))


def test_scalar_prior_is_a_scalar_matrix_where_mu_says_so():
    """Appendix G: Sigma_l = c_l I with mu_l = sqrt(c_l / lambda), lambda = 2^-n."""
    c = 0.6  # at the finest scale; pooling divides the variance by 4
    prior = ScalarPrior((8, 8), np.sqrt([c / 4 * 4, c * 4]), np.sqrt(c / 16))
    np.testing.assert_allclose(covariance_of(prior), c * np.eye(64), atol=1e-14)
