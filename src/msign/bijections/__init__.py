"""Invertible layers on lattices; each is a flowjax bijection."""

from msign.bijections.cells import CellFlow, CellMap, GaussianMap
from msign.bijections.channels import ActNorm, ChannelMix
from msign.bijections.conditional import ConditionalGaussian
from msign.bijections.coupling import AffineCoupling
from msign.bijections.dense import DenseCoupling
from msign.bijections.glow import GlowBlock, GlowConfig, glow_flow, glow_stack, start_from_data
from msign.bijections.modes import GaussianModes
from msign.bijections.plane import PlaneMap
from msign.bijections.spline import SplineMap
from msign.bijections.squeeze import Squeezed, squeeze_window, squeezed_shape
from msign.bijections.subspace import (
    InformedConfig,
    InformedFlow,
    informed_flow,
    informed_stack,
)
from msign.bijections.triangular import TriangularMap
from msign.bijections.whitened import Whitened

__all__ = [
    "ActNorm",
    "AffineCoupling",
    "CellFlow",
    "CellMap",
    "ChannelMix",
    "ConditionalGaussian",
    "DenseCoupling",
    "GaussianMap",
    "GaussianModes",
    "GlowBlock",
    "GlowConfig",
    "InformedConfig",
    "InformedFlow",
    "PlaneMap",
    "SplineMap",
    "Squeezed",
    "TriangularMap",
    "Whitened",
    "glow_flow",
    "glow_stack",
    "informed_flow",
    "informed_stack",
    "squeeze_window",
    "squeezed_shape",
    "start_from_data",
]
