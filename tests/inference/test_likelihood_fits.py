"""Fits with likelihoods other than Gaussian, against evidences by brute force."""

import types

import jax.numpy as jnp
import jax.scipy.stats
import numpy as np
import pytest
from scipy.special import logsumexp

from conformance import SMALL_INFORMED
from helpers import seeded
from msign import FitConfig, InverseProblem, LaplacePrior, fit, likelihoods
from msign.weights import ess_fraction

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROW = LaplacePrior((4,), alpha=0.2, beta=2.0)
COUNTS, ANSWERS, VALUES = [3, 0, 1, 2], [1, 1, 0, 1], [0.4, 0.9, -1.5, 0.2]
N = 300_000  # draws of brute force
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


def evidence_by_brute_force(problem, n=N):
    """Log evidence by draws of the prior, and what each of them is worth."""
    u = np.random.default_rng(seeded(3)).normal(size=(n, problem.dim))
    values = problem.log_likelihood(problem.prior.unwhiten(u))
    return logsumexp(values) - np.log(n), ess_fraction(values)


@pytest.mark.parametrize("name", PROBLEMS)
def test_evidence_is_that_of_brute_force(name):
    problem = PROBLEMS[name]()
    posterior = fit(problem, 4000, seed=seeded(0), config=CONFIG)
    report = posterior.certificate()
    expected, worth = evidence_by_brute_force(problem)
    tolerance = 5 * np.hypot(report.log_evidence_stderr, np.sqrt(1 / (N * worth)))
    assert abs(report.log_evidence - expected) < tolerance
    # The model's draws are worth more than those of the prior, with which training began.
    assert report.ess_fraction > worth
    assert posterior.nfs <= 4000
