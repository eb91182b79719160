"""Distributions of fields that know their coarse marginal and their conditional given it."""

from msign.priors.base import Conditioning, NearestConditioning, Prior, PriorConditioning
from msign.priors.dense import DensePrior, conditional_gaussian, pooling_matrix
from msign.priors.scalar import ScalarPrior, estimate_mu
from msign.priors.spectral import LaplacePrior, SpectralPrior

__all__ = [
    "Conditioning",
    "DensePrior",
    "LaplacePrior",
    "NearestConditioning",
    "Prior",
    "PriorConditioning",
    "ScalarPrior",
    "SpectralPrior",
    "conditional_gaussian",
    "estimate_mu",
    "pooling_matrix",
]
