"""Kinds of flow that may stand at each scale of the network; each is one file."""

from msign.inference.flows.base import FlowKind, Start
from msign.inference.flows.cellwise import Cellwise
from msign.inference.flows.combined import Combined
from msign.inference.flows.glow import Glow
from msign.inference.flows.informed import Informed
from msign.inference.flows.split_glow import SplitGlow

# By the names that files and the command line use.
KINDS: dict[str, type[FlowKind]] = {
    k.__name__: k for k in (Informed, Glow, Combined, Cellwise, SplitGlow)
}

__all__ = ["KINDS", "Cellwise", "Combined", "FlowKind", "Glow", "Informed", "SplitGlow", "Start"]
