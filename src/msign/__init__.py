"""Multiscale invertible generative networks for high-dimensional Bayesian inference."""

from msign import problems
from msign.bijections import GlowConfig, InformedConfig
from msign.inference import (
    Combined,
    Emulator,
    FitConfig,
    Fresh,
    Glow,
    Informed,
    Pool,
    Posterior,
    fit,
)
from msign.lattice import Lattice
from msign.network import MsIGN
from msign.priors import DensePrior, LaplacePrior, ScalarPrior, SpectralPrior
from msign.problems import InverseProblem, Simulator

__all__ = [
    "Combined",
    "DensePrior",
    "Emulator",
    "FitConfig",
    "Fresh",
    "Glow",
    "GlowConfig",
    "Informed",
    "InformedConfig",
    "InverseProblem",
    "LaplacePrior",
    "Lattice",
    "MsIGN",
    "Pool",
    "Posterior",
    "ScalarPrior",
    "Simulator",
    "SpectralPrior",
    "fit",
    "problems",
]
__version__ = "0.1.0"
