"""A Gaussian of any rank and a map of each cell: for data that inform all of a field."""

import dataclasses
from typing import Any

import numpy as np
from flowjax.bijections import AbstractBijection

from msign import checks
from msign.bijections import CellFlow, GaussianMap, Whitened
from msign.inference.flows.base import FlowKind, Start
from msign.inference.flows.gaussian import find_gaussian, least_allowance
from msign.network import MsIGN


@dataclasses.dataclass(frozen=True)
class Cellwise(FlowKind):
    """The Gaussian nearest to the posterior, and monotone maps of single cells behind it.

    It starts where the posterior is, and does not need what coarser scales could learn: only the
    finest is trained. It needs a derivative, and keeps matrices of d x d numbers.

    Attributes:
        rate: Highest learning rate.
        largest: Most cells.
    """

    rate: float = 0.03
    largest: int = 8192

    def __post_init__(self) -> None:
        checks.positive("rate", self.rate)
        checks.integer("largest", self.largest, 1)

    def start(self, given: Start) -> AbstractBijection:
        prior = given.network.prior_at(given.scale)
        if prior.lattice.dim > self.largest:
            raise ValueError(
                f"flow must not be Cellwise for {prior.lattice.dim} cells: at most {self.largest}"
            )
        found = find_gaussian(given.simulator, given.scale, given.allowance, given.key)
        return Whitened(CellFlow(prior, GaussianMap(found.root(), found.mean)), prior)

    def learning_rate(self, network: MsIGN, scale: int, train: str) -> float:
        return self.rate

    def describe(self, flow: AbstractBijection) -> Any:
        return {}

    def like(self, network: MsIGN, scale: int, description: Any) -> AbstractBijection:
        prior = network.prior_at(scale)
        d = prior.lattice.dim
        return Whitened(CellFlow(prior, GaussianMap(np.eye(d), np.zeros(d))), prior)

    def least_allowance(self, dim: int) -> int:
        return least_allowance(dim)

    @property
    def needs_one_stage(self) -> bool:
        return True

    @property
    def default_method(self) -> str:
        return "cells"
