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

__all__ = [
    "NAMED",
    "Cells",
    "Emulator",
    "Fresh",
    "Method",
    "MethodState",
    "Pool",
    "Stage",
]
