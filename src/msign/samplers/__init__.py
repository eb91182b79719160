"""The methods that MsIGN is compared with, one call signature for all.

`SAMPLERS[name].run(problem, scale, budget, n, seed)` gives `Samples`.
"""

from msign.samplers.amortized import AmortizedSVGD
from msign.samplers.base import Sampler, Samples
from msign.samplers.function_space import CrankNicolson, EllipticalSlice
from msign.samplers.hmc import HMC, NUTS
from msign.samplers.informed import InformedSMC
from msign.samplers.laplace import LaplaceMixture
from msign.samplers.nifty_vi import MGVI, GeoVI
from msign.samplers.smc import TemperedSMC
from msign.samplers.stein import SVGD, ProjectedSVGD

SAMPLERS: dict[str, Sampler] = {
    "hmc": HMC(),
    "nuts": NUTS(),
    "pcn": CrankNicolson(),
    "slice": EllipticalSlice(),
    "smc": TemperedSMC(),
    "ismc": InformedSMC(),
    "svgd": SVGD(),
    "psvgd": ProjectedSVGD(),
    "asvgd": AmortizedSVGD(),
    "laplace": LaplaceMixture(),
    "mgvi": MGVI(),
    "geovi": GeoVI(),
}

__all__ = [
    "HMC",
    "MGVI",
    "NUTS",
    "SAMPLERS",
    "SVGD",
    "AmortizedSVGD",
    "CrankNicolson",
    "EllipticalSlice",
    "GeoVI",
    "InformedSMC",
    "LaplaceMixture",
    "ProjectedSVGD",
    "Sampler",
    "Samples",
    "TemperedSMC",
]
