"""Versions of what computed a result."""

import importlib.metadata
import platform

import msign

PACKAGES = ("jax", "jaxlib", "numpy", "equinox", "flowjax", "optax")


def versions() -> dict[str, str]:
    """Of msign, Python and the packages that numbers depend on, and the kind of machine."""
    found = {"msign": msign.__version__, "python": platform.python_version()}
    found |= {name: importlib.metadata.version(name) for name in PACKAGES}
    return {**found, "machine": f"{platform.system()} {platform.machine()}"}
