"""How a posterior is learned: flows, methods, stages (Algorithm 1), `fit`, `Posterior`."""

from msign.inference.config import FitConfig
from msign.inference.fit import fit
from msign.inference.flows import Combined, Glow, Informed
from msign.inference.methods import Emulator, Fresh, Pool
from msign.inference.posterior import Posterior
from msign.inference.refine import Refined
from msign.inference.smc import SMC

__all__ = [
    "SMC",
    "Combined",
    "Emulator",
    "FitConfig",
    "Fresh",
    "Glow",
    "Informed",
    "Pool",
    "Posterior",
    "Refined",
    "fit",
]
