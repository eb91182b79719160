"""Fits with likelihoods other than Gaussian, against evidences by brute force."""

import types

import jax.numpy as jnp
import jax.scipy.stats
import numpy as np
import pytest

from conformance import SMALL_INFORMED
from helpers import seeded
from inference.small import exact_ess
from msign import FitConfig, InverseProblem, LaplacePrior, fit, likelihoods
from msign.weights import normalised, weight_report

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROW = LaplacePrior((4,), alpha=0.2, beta=2.0)
COUNTS, ANSWERS, VALUES = [3, 0, 1, 2], [1, 1, 0, 1], [0.4, 0.9, -1.5, 0.2]
N = 50_000  # draws of brute force
CONFIG = FitConfig(flow=SMALL_INFORMED, steps=150, round_size=300, certificate=600, rounds=4)


def doubled(x):
    return 2.0 * x


def counts_by_hand(predicted):
    """A distribution of all counts together, so that one power flattens all of them."""

    def log_prob(y):
        return jnp.sum(jax.scipy.stats.poisson.logpmf(y, jnp.exp(predicted)))

    return types.SimpleNamespace(log_prob=log_prob)


def own_log_likelihood(x):
    return -(jnp.sum(jnp.abs(x - 0.5), 1) ** 1.5) / 0.3


PROBLEMS = {
    "Poisson": lambda: InverseProblem(
        ROW, doubled, COUNTS, likelihood=likelihoods.Poisson(), scales=1
    ),
    "Poisson black box": lambda: InverseProblem(
        ROW, lambda x: 2 * np.asarray(x), COUNTS, likelihood=likelihoods.Poisson(), scales=1
    ),
    "own distribution": lambda: InverseProblem(
        ROW, doubled, COUNTS, likelihood=counts_by_hand, scales=1
    ),
    "Bernoulli": lambda: InverseProblem(
        ROW, doubled, ANSWERS, likelihood=likelihoods.Bernoulli(), scales=1
    ),
    "StudentT": lambda: InverseProblem(
        ROW, doubled, VALUES, likelihood=likelihoods.StudentT(0.3, 3), scales=2
    ),
    "log-likelihood": lambda: InverseProblem(ROW, log_likelihood=own_log_likelihood, scales=1),
    "log-likelihood black box": lambda: InverseProblem(
        ROW, log_likelihood=lambda x: np.asarray(own_log_likelihood(np.array(x))), scales=1
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_evidence_is_that_of_brute_force(name):
    """By draws of the prior, which also have what a draw of the model is worth."""
    problem = PROBLEMS[name]()
    posterior = fit(problem, 4000, seed=seeded(0), config=CONFIG)
    assert posterior.nfs <= 4000
    u = np.random.default_rng(seeded(3)).normal(size=(N, problem.dim))
    values = np.asarray(problem.log_likelihood(problem.prior.unwhiten(u)))
    prior, q, report = weight_report(values), normalised(values), posterior.certificate()
    worth = exact_ess(posterior, u, values - prior.log_evidence, q)
    for found in (report, weight_report(posterior.importance(20_000, seeded(5))[1])):
        error = np.hypot(1 / np.sqrt(found.n * worth), 1 / np.sqrt(N * prior.ess_fraction))
        assert abs(np.expm1(found.log_evidence - prior.log_evidence)) < 5 * error
    # The model is nearer to the posterior q than the prior is, with which training began: this is
    # what KL(q||p) has fallen by.
    gained = posterior.log_ratio(u)
    assert q @ gained > 5 * np.sqrt(q**2 @ (gained - q @ gained) ** 2)
