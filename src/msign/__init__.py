"""Multiscale invertible generative networks for high-dimensional Bayesian inference."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from msign import problems
    from msign.bijections import GlowConfig, InformedConfig
    from msign.inference import (
        SMC,
        Cells,
        Cellwise,
        Combined,
        Emulator,
        FitConfig,
        Fresh,
        Glow,
        Informed,
        Pool,
        Posterior,
    )
    from msign.inference.fit import fit
    from msign.lattice import Lattice
    from msign.network import MsIGN
    from msign.priors import DensePrior, LaplacePrior, ScalarPrior, SpectralPrior
    from msign.problems import InverseProblem, Simulator, likelihoods

__all__ = [
    "SMC",
    "Cells",
    "Cellwise",
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
    "likelihoods",
    "problems",
]
__version__ = "0.1.0"

# Modules are imported when something is first asked for, light ones first: a command that only
# prints its help should not wait for JAX.
_MODULES = ("lattice", "priors", "bijections", "network", "problems", "inference")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'msign' has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(f"msign.{name}")
    modules = (importlib.import_module(f"msign.{module}") for module in _MODULES)
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
