"""What a method of learning is: the contract between the stage loop and the ways to train.

A method is a frozen dataclass of its own options. The loop shows it every round's simulated fields
(`observe`) and lets it train (`update`); what it wants to remember is its own state.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import equinox as eqx
from jaxtyping import PRNGKeyArray

from msign import checks
from msign.inference.simulate import Simulated
from msign.inference.target import Tempered
from msign.problems.simulator import Simulator
from msign.variables import Variables


class Stage(NamedTuple):
    """What does not change while a stage runs.

    Attributes:
        scale: l.
        start: The model with which it starts, the foot of its bridge.
        simulator: That evaluates fields, and counts.
        begin: Count of forward simulations at its start.
        limit: Count of forward simulations that must not be exceeded.
        round_size: Fields drawn per round.
        first_round: Of the first round; each later one has twice as many, up to `round_size`.
        rounds: Most rounds; None: as many as the share allows.
        learning_rate: The highest that its flow bears.
        bridge_ess: Fraction of a round that the weights of a tempered target must be worth.
        tolerance: Divergence below which the stage has learned enough.
        key: Random key.
    """

    scale: int
    start: Variables
    simulator: Simulator
    begin: int
    limit: int
    round_size: int
    first_round: int
    rounds: int | None
    learning_rate: float
    bridge_ess: float
    tolerance: float
    key: PRNGKeyArray

    def affords(self, simulations: int) -> bool:
        """Whether that many more simulations stay within the stage's share of the budget."""
        return self.simulator.nfs + simulations <= self.limit

    def is_over(self, rounds: int) -> bool:
        """Whether after so many rounds there may not be another."""
        limited = self.rounds is not None and rounds >= self.rounds
        return limited or not self.affords(self.round_size)

    def affordable(self, simulations: int) -> int:
        """How often that many simulations may be spent before the round that comes after."""
        room = self.limit - self.simulator.nfs - self.round_size
        return max(0, room // simulations)

    def fields_of_round(self, number: int) -> int:
        """Fields drawn in a round before it is known whether the model is good enough."""
        return min(self.round_size, self.first_round << number)


class MethodState(eqx.Module):
    """What a method remembers from round to round; each has a class of its own.

    Attributes:
        target: What the model is trained towards.
    """

    target: eqx.AbstractVar[Tempered]

    @abstractmethod
    def log_evidence(self) -> tuple[float, float] | None:
        """Log evidence by all fields seen so far and its standard error, where it is known."""

    @property
    def counts(self) -> list[int]:
        """Fields of each round that it holds, on which the sizes of its arrays depend."""
        return []

    def shaped(self, counts: Sequence[int], model: Variables) -> Self:
        """A state with arrays for so many fields, drawn by such models, to be read from a file."""
        return self


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to train a stage's model.

    Attributes:
        steps: Gradient steps per round.
        batch: Fields per gradient step.
        clip_norm: Largest norm of a gradient.
    """

    steps: int = 400
    batch: int = 256
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        checks.integer("steps", self.steps, 1)
        checks.integer("batch", self.batch, 2)
        checks.positive("clip_norm", self.clip_norm)

    @property
    def needs_derivative(self) -> bool:
        """Whether the forward map has to have a derivative."""
        return False

    @property
    def needs_cells(self) -> bool:
        """Whether it trains maps of single cells."""
        return False

    @property
    def needs_observations(self) -> bool:
        """Whether a problem must have a forward map and data, and not a log-likelihood alone."""
        return False

    def fewest_fields(self, variables: int) -> int:
        """Fields that the first round of a stage should have, where it may have as many."""
        return 1

    @abstractmethod
    def init(self, stage: Stage) -> Any:
        """The state before the first round."""

    @abstractmethod
    def observe(self, stage: Stage, state: Any, model: Variables, drawn: Simulated) -> Any:
        """The state with the fields that were drawn from the model and simulated in a round."""

    @abstractmethod
    def update(
        self, stage: Stage, state: Any, model: Variables, rate: float, key: PRNGKeyArray
    ) -> tuple[Any, Variables, float]:
        """State, model and loss (up to a constant) after some training.

        `rate` is a factor on the learning rate.
        """
