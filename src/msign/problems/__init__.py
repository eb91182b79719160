"""What is inferred: inverse problems, the paper's among them."""

from msign.problems.elliptic import elliptic
from msign.problems.inverse import InverseProblem, SimulationError
from msign.problems.synthetic import synthetic

__all__ = ["InverseProblem", "SimulationError", "elliptic", "synthetic"]
