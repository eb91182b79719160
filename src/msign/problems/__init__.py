"""What is inferred: inverse problems, the paper's among them."""

from msign.problems import likelihoods
from msign.problems.counting import BudgetExceeded
from msign.problems.elliptic import elliptic
from msign.problems.failures import SimulationError, SimulatorUnavailable
from msign.problems.inverse import InverseProblem, problem_without_forward
from msign.problems.serving import serve
from msign.problems.simulator import Evaluated, Simulator
from msign.problems.synthetic import synthetic
from msign.problems.umbridge import umbridge

__all__ = [
    "BudgetExceeded",
    "Evaluated",
    "InverseProblem",
    "SimulationError",
    "Simulator",
    "SimulatorUnavailable",
    "elliptic",
    "likelihoods",
    "problem_without_forward",
    "serve",
    "synthetic",
    "umbridge",
]
