"""Errors against a reference, quality of importance weights, modes."""

from msign.diagnostics.modes import Modes, find_modes
from msign.diagnostics.reference import evaluate_against_reference, jeffreys_against, moment_errors
from msign.weights import (
    WeightReport,
    ess_fraction,
    lost_evidence,
    pareto_khat,
    weight_report,
)

__all__ = [
    "Modes",
    "WeightReport",
    "ess_fraction",
    "evaluate_against_reference",
    "find_modes",
    "jeffreys_against",
    "lost_evidence",
    "moment_errors",
    "pareto_khat",
    "weight_report",
]
