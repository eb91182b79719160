"""Gaussians of any rank and a map of each cell: for data that inform all of a field."""

import dataclasses
from typing import Any

import numpy as np
from flowjax.bijections import AbstractBijection

from msign import checks
from msign.bijections import CellFlow, Whitened
from msign.inference.flows.base import FlowKind, Start
from msign.inference.flows.gaussian import (
    find_gaussians,
    gaussian_by_differences,
    least_allowance,
)
from msign.inference.flows.modes import gaussian_modes, standard_modes
from msign.network import MsIGN
from msign.problems.inverse import InverseProblem


@dataclasses.dataclass(frozen=True)
class Cellwise(FlowKind):
    """The Gaussians nearest to the posterior's modes, and monotone maps of single cells behind.

    It starts where the posterior is, and does not need what coarser scales could learn: only the
    finest is trained. It keeps matrices of d x d numbers. Without a derivative it is for small
    lattices: each of its first steps costs d simulations, and it learns from a polynomial
    emulator of all cells, fitted by matrices of as many rows as a quadratic in d variables has
    terms.

    Attributes:
        rate: Highest learning rate.
        largest: Most rows of a matrix: 8192 cells, or without a derivative 126.
    """

    rate: float = 0.03
    largest: int = 8192

    def __post_init__(self) -> None:
        checks.positive("rate", self.rate)
        checks.integer("largest", self.largest, 1)

    def start(self, given: Start) -> AbstractBijection:
        prior = given.network.prior_at(given.scale)
        problem = given.simulator.problem
        find = find_gaussians if problem.differentiable else gaussian_by_differences
        allowed = given.allowance, given.tolerance
        found = find(given.simulator, given.scale, *allowed, given.key)
        masses = np.array([g.log_mass for g in found])
        parts = [(g.mean, g.root()) for g in found]
        modes = gaussian_modes(parts, np.exp(masses - masses.max()))
        return Whitened(CellFlow(prior, modes), prior)

    def most_cells(self, problem: InverseProblem) -> int:
        """Cells that it can be fitted to."""
        if problem.differentiable:
            return self.largest
        return int(np.sqrt(2 * self.largest + 0.25) - 1.5)  # (d + 1) (d + 2) / 2 terms

    def check(self, problem: InverseProblem) -> None:
        if problem.dim > self.most_cells(problem):
            without = "" if problem.differentiable else " without a derivative"
            raise ValueError(
                f"flow must not be Cellwise for {problem.dim} cells{without}: at most "
                f"{self.most_cells(problem)}"
            )

    def learning_rate(self, network: MsIGN, scale: int, train: str) -> float:
        return self.rate

    def describe(self, flow: AbstractBijection) -> Any:
        own: Any = flow
        return {"modes": own.inner.gaussian.modes}

    def like(self, network: MsIGN, scale: int, description: Any) -> AbstractBijection:
        prior = network.prior_at(scale)
        modes = standard_modes(prior.lattice.dim, description.get("modes", 1))
        return Whitened(CellFlow(prior, modes), prior)

    @property
    def few_variables(self) -> bool:
        return True

    @property
    def has_cells(self) -> bool:
        return True

    def least_allowance(self, dim: int) -> int:
        return least_allowance(dim)

    @property
    def needs_one_stage(self) -> bool:
        return True

    def default_method(self, problem: InverseProblem, size: int) -> str:
        return "cells" if problem.differentiable else "emulator"
