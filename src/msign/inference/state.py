"""What a stage is made of: its means, and all that changes while it runs."""

from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from msign.inference.models import Core, StageModel
from msign.inference.pool import Pool


class StageState(eqx.Module):
    """All that changes while a stage runs; what a checkpoint holds.

    Attributes:
        core: Of the model as it is now.
        best: The core with the lowest held-out Jeffreys estimate so far.
        proposals: Cores that drew the pool, the first being the start of the stage.
        pool: Evaluated fields (a pool of no capacity where none is used).
        optimiser: State of Adam between rounds (fresh-sample objectives).
        shown: A few trained variables of the fields that `best` was judged by.
        log_weights: Of these fields.
        temperature: Of the bridge.
        round: Rounds done.
        best_jeffreys: Held-out estimate of `best`.
        stale: Rounds since the last improvement.
        settled: Rounds since the target is the posterior itself (the bridge's end).
        khat: Pareto shape of the weights of `best`.
        lost: The most log evidence that a model of this stage had lost (`lost_evidence`).
    """

    core: Core
    best: Core
    proposals: list[Core]
    pool: Pool
    optimiser: PyTree
    shown: np.ndarray
    log_weights: np.ndarray
    temperature: float
    round: int
    best_jeffreys: float
    stale: int
    settled: int
    khat: float
    lost: float


class Plan(NamedTuple):
    """A stage's means.

    Attributes:
        model: With which the stage starts; its directions are those of the whole stage.
        scale: l.
        begin: The count of forward simulations at its start.
        limit: The count of forward simulations that must not be exceeded.
        round_size: Fields drawn per round.
        key: Random key of the stage.
    """

    model: StageModel
    scale: int
    begin: int
    limit: int
    round_size: int
    key: PRNGKeyArray
