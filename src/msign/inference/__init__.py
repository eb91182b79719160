"""How a posterior is learned: objectives, stages (Algorithm 1), `fit`, `Posterior`."""

from msign.inference.config import FitConfig
from msign.inference.fit import fit
from msign.inference.posterior import Posterior

__all__ = ["FitConfig", "Posterior", "fit"]
