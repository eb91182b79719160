"""What a kind of flow is: the contract between `fit` and what may stand at a scale of the network.

A kind is a frozen dataclass of its own options. It says with which F_l a stage starts, and how F_l
is built again from a description when a run is read.
"""

import dataclasses
from abc import abstractmethod
from typing import Any, NamedTuple

from flowjax.bijections import AbstractBijection
from jaxtyping import PRNGKeyArray

from msign.inference.flows.directions import MOST_VARIABLES
from msign.network import MsIGN
from msign.problems.inverse import InverseProblem
from msign.problems.simulator import Simulator
from msign.variables import Variables

MAX_POOLED_CELLS = 16  # cells of a lattice on which a network is trained on a pool


class Start(NamedTuple):
    """What a kind of flow may use to start a stage.

    Attributes:
        network: As the stage before left it: F_l and all finer flows are the identity.
        scale: l.
        simulator: That evaluates fields.
        allowance: Simulations that may be spent on the start.
        train: `all` flows up to the scale are trained, or the `last` one.
        tolerance: Nats that do not matter: those by which the finest stage may miss.
        key: Random key.
    """

    network: MsIGN
    scale: int
    simulator: Simulator
    allowance: int
    train: str
    tolerance: float
    key: PRNGKeyArray


@dataclasses.dataclass(frozen=True)
class FlowKind:
    """A kind of flow F_l with its options."""

    @abstractmethod
    def start(self, given: Start) -> AbstractBijection:
        """F_l at the start of its stage: what comes from coarser scales becomes q~_l."""

    def finish(self, given: Start) -> AbstractBijection:
        """F_l of the finest scale when its training has ended: with what closed forms can add."""
        return given.network.flows[given.scale - 1]

    def kept_to_finish(self, variables: Variables, problem: InverseProblem, share: int) -> int:
        """Simulations of a share of the budget that training leaves for `finish`."""
        return 0

    @abstractmethod
    def learning_rate(self, network: MsIGN, scale: int, train: str) -> float:
        """The highest learning rate of Adam that the trained flows bear."""

    @abstractmethod
    def describe(self, flow: AbstractBijection) -> Any:
        """What `like` needs to build the flow again, as plain JSON values."""

    @abstractmethod
    def like(self, network: MsIGN, scale: int, description: Any) -> AbstractBijection:
        """A flow of the described structure; its weights do not matter."""

    def check(self, problem: InverseProblem) -> None:
        """Refuse a problem that it cannot be fitted to, before any work."""
        return

    def least_allowance(self, dim: int) -> int:
        """Simulations that the start of a stage on `dim` cells needs at least."""
        return 0

    @property
    def needs_one_stage(self) -> bool:
        """Whether it is trained at the finest scale alone, from a start of its own."""
        return False

    @property
    def few_variables(self) -> bool:
        """Whether what is trained are variables of its own, to which an emulator may be fitted."""
        return False

    @property
    def whole_fields(self) -> bool:
        """Whether it moves all cells, so that a step takes the longer the finer the lattice is.

        What a coarse stage leaves undone then is undone later at a higher price.
        """
        return False

    @property
    def has_cells(self) -> bool:
        """Whether it has maps of single cells."""
        return False

    @property
    def needs_exact_conditioning(self) -> bool:
        """Whether it works behind exact prior conditioning only."""
        return False

    def default_method(self, problem: InverseProblem, size: int) -> str:
        """Name of the method that trains `size` variables of it.

        Whole fields learn from an emulator where there are observations, and a derivative if
        there are many cells; else from a pool on a small lattice, or from fresh fields, pathwise
        where there is a derivative.
        """
        if problem.has_observations and (problem.differentiable or size <= MOST_VARIABLES):
            return "emulator"
        if size <= MAX_POOLED_CELLS:
            return "pool"
        return "pathwise" if problem.differentiable else "centred"
