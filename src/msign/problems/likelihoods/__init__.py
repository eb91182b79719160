"""Likelihoods: how data are distributed given what the forward map predicts for them.

    InverseProblem(prior, forward, data, likelihood=Poisson())

The log-likelihood of each has all of its normalising constants, so that evidences of different
likelihoods of the same data can be compared. `InverseProblem(..., noise_std=0.1)` is Gaussian noise
without its constant, `likelihood=Gaussian(0.1)` the same with it.
"""

from msign.problems.likelihoods.base import Likelihood
from msign.problems.likelihoods.counts import Bernoulli, Binomial, NegativeBinomial, Poisson
from msign.problems.likelihoods.measurements import Gaussian, Laplace, StudentT

__all__ = [
    "Bernoulli",
    "Binomial",
    "Gaussian",
    "Laplace",
    "Likelihood",
    "NegativeBinomial",
    "Poisson",
    "StudentT",
]
