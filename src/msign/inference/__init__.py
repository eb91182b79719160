"""How a posterior is learned: flows, methods, stages (Algorithm 1), `fit`, `Posterior`."""

from msign.inference.config import FitConfig
from msign.inference.fit import fit
from msign.inference.flows import Cellwise, Combined, Glow, Informed
from msign.inference.methods import Cells, Emulator, Fresh, Pool
from msign.inference.posterior import Posterior
from msign.inference.refine import Refined
from msign.inference.smc import SMC

__all__ = [
    "SMC",
    "Cells",
    "Cellwise",
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
