"""Glow stacks, the paper's own flows."""

import dataclasses
from typing import Any, cast

import jax.random as jr
from flowjax.bijections import AbstractBijection

from msign.bijections import GlowConfig, glow_flow
from msign.inference.flows.base import FlowKind, Start
from msign.network import MsIGN


@dataclasses.dataclass(frozen=True)
class Glow(FlowKind):
    """A stack of Glow blocks at each scale, the identity at the start (Algorithm 1).

    Attributes:
        config: Hyper-parameters of the stacks.
        rate: Highest learning rate.
        units: Hidden channels of all trained blocks up to which it holds; it falls in inverse
            proportion beyond. Adam moves all parameters alike, so that what a network gives moves
            in proportion to its depth and width.
    """

    config: GlowConfig = dataclasses.field(default_factory=GlowConfig)
    rate: float = 8e-3
    units: int = 512

    @property
    def whole_fields(self) -> bool:
        return True

    def start(self, given: Start) -> AbstractBijection:
        key = jr.fold_in(given.key, 2)
        config = self.config.at(given.scale, given.network.scales)
        return glow_flow(key, given.network.prior_at(given.scale), config)

    def learning_rate(self, network: MsIGN, scale: int, train: str) -> float:
        trained = [
            self.config.at(l, network.scales)
            for l in range(scale if train == "last" else 1, scale + 1)
        ]
        units = sum(cast(int, g.blocks) * cast(int, g.hidden) for g in trained)
        return self.rate * min(1.0, self.units / max(units, 1))

    def describe(self, flow: AbstractBijection) -> Any:
        return {}

    def like(self, network: MsIGN, scale: int, description: Any) -> AbstractBijection:
        config = self.config.at(scale, network.scales)
        return glow_flow(jr.key(0), network.prior_at(scale), config)
