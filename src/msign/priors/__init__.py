"""Distributions of fields that know their coarse marginal and their conditional given it."""

from msign.priors.base import Conditioning, Prior, PriorConditioning
from msign.priors.dense import DensePrior, Rotation, conditional_gaussian, pooling_matrix
from msign.priors.nearest import NearestConditioning, WhitenedNearest
from msign.priors.reflection import BlockReflection
from msign.priors.scalar import ScalarPrior, estimate_mu
from msign.priors.spectral import LaplacePrior, SpectralPrior

__all__ = [
    "BlockReflection",
    "Conditioning",
    "DensePrior",
    "LaplacePrior",
    "NearestConditioning",
    "Prior",
    "PriorConditioning",
    "Rotation",
    "ScalarPrior",
    "SpectralPrior",
    "WhitenedNearest",
    "conditional_gaussian",
    "estimate_mu",
    "pooling_matrix",
]
