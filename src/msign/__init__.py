"""Multiscale invertible generative networks for high-dimensional Bayesian inference."""

from msign.bijections import GlowConfig
from msign.lattice import Lattice
from msign.network import MsIGN
from msign.priors import DensePrior, LaplacePrior, ScalarPrior, SpectralPrior

__all__ = [
    "DensePrior",
    "GlowConfig",
    "LaplacePrior",
    "Lattice",
    "MsIGN",
    "ScalarPrior",
    "SpectralPrior",
]
__version__ = "0.1.0"
