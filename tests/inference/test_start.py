"""Starting models: never worse than what is known without them."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from helpers import ring
from msign import FitConfig, InverseProblem, LaplacePrior
from msign.inference.simulate import simulate
from msign.inference.start import start_model
from msign.weights import ess_fraction

pytestmark = pytest.mark.usefixtures("quick_compilation")

PRIOR = LaplacePrior((4,), alpha=0.2, beta=2.0)


def linear(x):
    return x @ jnp.array([[1.0, 1, 1, 1], [1.0, 1, -1, -1]]).T


def start_of(forward, data, noise):
    problem = InverseProblem(PRIOR, forward, data, noise, scales=1)
    return problem, start_model(problem, 1, None, FitConfig(), jr.key(0), 2000)


def test_a_gaussian_guess_that_fits_badly_is_not_taken():
    """It had an effective sample size of a thousandth where the prior's own has 5 percent."""
    problem, model = start_of(ring, [1.0, 0.1], 0.3)
    found = simulate(problem, model, 1, jr.key(1), 4000)
    u = np.asarray(jr.normal(jr.key(2), (4000, 4)))
    prior = ess_fraction(problem.evaluate(u, 1).log_likelihood)
    assert ess_fraction(found.log_weights) > 0.5 * prior


@pytest.mark.parametrize("noise", [0.3, 1e-3])
def test_a_gaussian_posterior_is_known_at_the_start(noise):
    """Also where the posterior is so narrow that no draw of the prior comes near to it."""
    problem, model = start_of(linear, [1.0, 0.1], noise)
    found = simulate(problem, model, 1, jr.key(1), 1000)
    assert ess_fraction(found.log_weights) > 0.99
