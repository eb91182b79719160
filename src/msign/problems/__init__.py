"""What is inferred: inverse problems, the paper's among them."""

from msign.problems import likelihoods
from msign.problems.elliptic import elliptic
from msign.problems.inverse import InverseProblem, problem_without_forward
from msign.problems.simulator import BudgetExceeded, Evaluated, SimulationError, Simulator
from msign.problems.synthetic import synthetic

__all__ = [
    "BudgetExceeded",
    "Evaluated",
    "InverseProblem",
    "SimulationError",
    "Simulator",
    "elliptic",
    "likelihoods",
    "problem_without_forward",
    "synthetic",
]
