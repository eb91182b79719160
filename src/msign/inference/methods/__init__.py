"""Methods of learning a stage; each is one file."""

from collections.abc import Callable

from msign.inference.methods.base import Method, MethodState, Stage
from msign.inference.methods.cells import Cells
from msign.inference.methods.emulator import Emulator
from msign.inference.methods.fresh import Fresh
from msign.inference.methods.objectives import (
    CentredJeffreys,
    PathwiseJeffreys,
    ScoreJeffreys,
    SteinObjective,
)
from msign.inference.methods.pool import Pool
from msign.problems.inverse import InverseProblem

# By the names that the command line uses; each takes whether there is a derivative.
NAMED: dict[str, Callable[[bool], Method]] = {
    "pool": lambda _: Pool(),
    "emulator": lambda _: Emulator(),
    "pathwise": lambda _: Fresh(objective=PathwiseJeffreys()),
    "centred": lambda _: Fresh(objective=CentredJeffreys()),
    "score": lambda _: Fresh(objective=ScoreJeffreys()),
    "reverse_kl": lambda derivative: Fresh(
        objective=PathwiseJeffreys(forward=0.0) if derivative else CentredJeffreys(forward=0.0)
    ),
    "forward_kl": lambda _: Fresh(objective=ScoreJeffreys(reverse=0.0)),
    "cells": lambda _: Cells(),
    "stein": lambda _: Fresh(objective=SteinObjective()),
}

MAX_POOLED = 2  # informed variables that a pool determines; of more, an emulator is trained on
MAX_POOLED_CELLS = 16  # cells of a lattice on which a network is trained on a pool


def choose_method(name: str, problem: InverseProblem, few: bool, size: int) -> Method:
    """The method of a name; `auto` chooses by what is trained.

    Informed variables (`few`) learn from a pool, beyond two of them from an emulator, where there
    are observations to emulate; whole fields from a pool on a small lattice, else from fresh
    fields, pathwise where there is a derivative.
    """
    derivative = problem.differentiable
    if name == "auto" and few:
        name = "emulator" if size > MAX_POOLED and problem.has_observations else "pool"
    elif name == "auto":
        fresh = "pathwise" if derivative else "centred"
        name = "pool" if size <= MAX_POOLED_CELLS else fresh
    return NAMED[name](derivative)


__all__ = [
    "NAMED",
    "Cells",
    "Emulator",
    "Fresh",
    "Method",
    "MethodState",
    "Pool",
    "Stage",
    "choose_method",
]
