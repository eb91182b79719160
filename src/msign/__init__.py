"""Multiscale invertible generative networks for high-dimensional Bayesian inference."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    )
    from msign.inference.fit import fit
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

# Modules are imported when something of theirs is first asked for: a command that only prints its
# help should not wait for JAX.
_MODULES = {
    "bijections": ("GlowConfig", "InformedConfig"),
    "inference": (
        "Combined",
        "Emulator",
        "FitConfig",
        "Fresh",
        "Glow",
        "Informed",
        "Pool",
        "Posterior",
        "fit",
    ),
    "lattice": ("Lattice",),
    "network": ("MsIGN",),
    "priors": ("DensePrior", "LaplacePrior", "ScalarPrior", "SpectralPrior"),
    "problems": ("InverseProblem", "Simulator"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "problems":
        return importlib.import_module("msign.problems")
    if name not in _HOMES:
        raise AttributeError(f"module 'msign' has no attribute {name!r}")
    return getattr(importlib.import_module(f"msign.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
