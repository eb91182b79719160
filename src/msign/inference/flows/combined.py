"""Several kinds of flow at every scale, one after the other."""

import dataclasses
from typing import Any

import jax.random as jr
from flowjax.bijections import AbstractBijection, Chain

from msign.inference.flows.base import FlowKind, Start
from msign.network import MsIGN


@dataclasses.dataclass(frozen=True)
class Combined(FlowKind):
    """F_l is a chain of flows, the first next to the conditioning layer.

    Attributes:
        kinds: Of the flows.
    """

    kinds: tuple[FlowKind, ...]

    def start(self, given: Start) -> AbstractBijection:
        alone = given._replace(allowance=given.allowance // len(self.kinds))
        return Chain(
            [
                kind.start(alone._replace(key=jr.fold_in(given.key, i)))
                for i, kind in enumerate(self.kinds)
            ]
        )

    def learning_rate(self, network: MsIGN, scale: int, train: str) -> float:
        return min(kind.learning_rate(network, scale, train) for kind in self.kinds)

    def describe(self, flow: AbstractBijection) -> Any:
        assert isinstance(flow, Chain)
        return [k.describe(f) for k, f in zip(self.kinds, flow.bijections, strict=True)]

    def like(self, network: MsIGN, scale: int, description: Any) -> AbstractBijection:
        pairs = zip(self.kinds, description, strict=True)
        return Chain([kind.like(network, scale, d) for kind, d in pairs])

    def least_allowance(self, dim: int) -> int:
        return len(self.kinds) * max(kind.least_allowance(dim) for kind in self.kinds)

    @property
    def whole_fields(self) -> bool:
        return any(kind.whole_fields for kind in self.kinds)

    @property
    def needs_exact_conditioning(self) -> bool:
        return any(kind.needs_exact_conditioning for kind in self.kinds)
