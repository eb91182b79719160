"""Numbers to try where a certificate is not good: the same wherever they are told.

They are estimates from what a run has seen. Each constant says what it rests on.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from msign.inference.smc import temperatures_left
from msign.weights import WeightReport

WANTED = 1000  # fields that a reader is taken to want
USABLE = 1.0  # nats of divergence at which about a third of the samples count
LEAST_FACTOR, MOST_FACTOR = 2.0, 10.0  # by which a budget is worth changing before looking again
SWEEPS = 10  # moves of a particle at each temperature, as `refine` expects them
ROUNDING = 1e-9  # of a quotient that is a whole number
STEP = math.sqrt(math.log(2))  # deviation of log-weights, were they normal, that halves the ESS


class Remedies(NamedTuple):
    """Numbers to try.

    Attributes:
        fields: Fields that are wanted.
        draws: From which as many are resampled.
        refine_budget: Simulations to refine as many.
        fit_budget: Simulations of another fit.
        fit_seed: Its seed.
    """

    fields: int
    draws: int
    refine_budget: int
    fit_budget: int
    fit_seed: int


def remedies(
    report: WeightReport, rounds: list[dict[str, Any]], budget: int, seed: int
) -> Remedies:
    """Numbers to try after a run.

    Args:
        report: Of its certificate.
        rounds: Records of its last stage.
        budget: That it was allowed.
        seed: That it had.
    """
    ess = report.ess_fraction if report.ess_fraction * report.n > 1 else 1 / report.n
    factor = factor_needed(rounds, USABLE) if rounds else None
    return Remedies(
        fields=WANTED,
        draws=rounded_up(WANTED / ess),
        refine_budget=rounded_up(WANTED * (1 + SWEEPS * _temperatures(report, ess))),
        fit_budget=rounded_up((factor or LEAST_FACTOR) * budget),
        fit_seed=seed + 1,
    )


def _temperatures(report: WeightReport, ess: float) -> float:
    """That lie between a model and the posterior, the last included.

    Log-weights of variance v, were they normal, have divergences of v / 2 and an effective sample
    size exp(-v). Few draws see too little of either.
    """
    kl = report.reverse_kl if math.isfinite(report.reverse_kl) else 0.0
    return 1 + math.sqrt(max(2 * kl, -math.log(ess), 0.0)) / STEP


def factor_needed(rounds: list[dict[str, Any]], tolerance: float) -> float | None:
    """How many times as long a stage would have to go on, as it did; None where it has enough.

    While the target is tempered: for the temperatures that are left. Then: until the divergence
    has fallen to the tolerance at the rate at which it fell.
    """
    last, done = rounds[-1]["temperature"], len(rounds)
    if last < 1:
        reached = [0.0, *(r["temperature"] for r in rounds if r["temperature"] < last)]
        more: float = temperatures_left(max(reached), last) if last > 0 else math.inf
    else:
        free = [r["jeffreys"] for r in rounds if r["temperature"] == 1]
        free = [j for j in free if 0 < j < math.inf]
        if not free or min(free) <= tolerance:
            return None
        fall = math.log(free[0] / min(free)) / max(1, len(free) - 1)
        more = math.log(min(free) / tolerance) / fall if fall > 0 else math.inf
    return float(np.clip(1 + more / done, LEAST_FACTOR, MOST_FACTOR))


def next_step(report: WeightReport, numbers: Remedies) -> str:
    """What to try next where a certificate is not good: one sentence with its numbers."""
    fit = f"budget={numbers.fit_budget}"
    if report.lost > 0 and not report.poor:
        return f"Fit again with {fit} and seed={numbers.fit_seed}."
    if report.grade == "GOOD":
        return ""
    if not math.isfinite(report.log_evidence):
        return "No simulation of its samples succeeded: look at one with on_failure='raise'."
    refine = f"Try `refine({numbers.fields}, budget={numbers.refine_budget})`"
    if report.grade == "ROUGH":
        return f"{refine}, or `resample({numbers.fields}, draws={numbers.draws})`."
    return f"{refine}, or fit again with {fit}."


def rounded_up(number: float) -> int:
    """The next larger number of two significant digits."""
    unit = 10 ** max(0, math.floor(math.log10(max(number, 1))) - 1)
    return math.ceil(number / unit - ROUNDING) * unit
