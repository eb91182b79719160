"""What to change after the first stage of a run, while there is time for it.

What to try after its certificate: `remedies.py`.
"""

import math
from typing import Any

import numpy as np

from msign.inference.config import FitConfig
from msign.inference.flows import Cellwise
from msign.inference.methods import Stage
from msign.inference.remedies import USABLE, factor_needed, rounded_up
from msign.inference.simulate import Simulated
from msign.problems.inverse import INFLATION_DRAWS, InverseProblem

MISFIT = 2.0  # residuals of this many standard deviations of the noise are no noise
FAR = 100.0  # nats from the prior that informed flows have not reached (bench/reach.py)
OUTLYING = 4.0  # standard deviations of the prior that no variable of a fitting prior is at
ORDINARY = 2.0  # ... and that many may be
DF = 4  # degrees of freedom of noise with outliers


def seen_from_prior(drawn: Simulated, problem: InverseProblem) -> dict[str, float | None]:
    """How a round's fields lie to data and prior: three numbers of its record.

    misfit: Typical residual in standard deviations of Gaussian noise; None for other likelihoods.
    nats: KL(model || prior).
    deviations: Root mean square of the variable that is furthest out, in those of the prior.
    """
    good = np.isfinite(drawn.log_likelihood)
    if not good.any():
        return {"misfit": None, "nats": None, "deviations": None}
    misfit = None
    if problem.noise_cov is not None:
        squares = np.mean(drawn.features[good].astype(np.float64) ** 2, 1)
        misfit = float(np.sqrt(np.median(squares)))
    return {
        "misfit": misfit,
        "nats": float(np.mean(drawn.log_ratio[good])),
        "deviations": float(np.sqrt(np.mean(drawn.s[good].astype(np.float64) ** 2, 0).max())),
    }


def stage_advice(
    problem: InverseProblem, config: FitConfig, rounds: list[dict[str, Any]], inflation: float
) -> list[str]:
    """After the first stage of several: what is wrong with the problem, and what to change.

    Args:
        problem: What is inferred.
        config: How.
        rounds: Records of the stage.
        inflation: Discretisation error that was added to the noise, in units of the noise.
    """
    best = min(rounds, key=lambda r: r["jeffreys"])
    found = [_about_misfit(problem, best, inflation), _about_prior(problem, config, best)]
    return [text for text in found if text is not None]


def _about_misfit(problem: InverseProblem, best: dict[str, Any], inflation: float) -> str | None:
    """The misfit is in units of the noise that the scale has, inflated or not.

    Nothing is known of it before the model is close to the scale's own posterior.
    """
    misfit, close = best["misfit"], best["temperature"] == 1 and best["jeffreys"] < USABLE
    if misfit is None or misfit < MISFIT or not close:
        return None
    what = f"scale {best['scale']} cannot fit the data: residuals are {misfit:.2g} standard"
    if not problem.inflate:
        return (
            f"{what} deviations of the noise; without inflate=0 the error of coarse scales is "
            f"added to their noise, for {INFLATION_DRAWS * problem.scales} simulations"
        )
    # Noise of k deviations, with the error beside it, is to be `misfit` times as large as now.
    larger = math.sqrt(misfit**2 * (1 + inflation**2) - inflation**2)
    return (
        f"{what} deviations of the noise and the scale's own error together; if finer scales do no "
        f"better, try noise_std {larger:.2g} times as large, or "
        f"likelihood=StudentT(noise_std, df={DF})"
    )


def _about_prior(problem: InverseProblem, config: FitConfig, best: dict[str, Any]) -> str | None:
    if best["deviations"] is None:
        return None
    if best["deviations"] > OUTLYING:
        return (
            f"the posterior lies {best['deviations']:.2g} standard deviations from the prior's "
            "mean; try a prior whose standard deviation (beta) is "
            f"{best['deviations'] / ORDINARY:.2g} times as large"
        )
    if best["nats"] < FAR:
        return None
    what = f"the posterior is {best['nats']:.3g} nats from the prior"
    cellwise = Cellwise()
    if problem.dim <= cellwise.most_cells(problem) and not config.kind.has_cells:
        return f"{what}; try flow=Cellwise() (--flow cellwise), which starts where it is"
    return f"{what}, further than informed flows have reached: expect to need `refine`"


def about_means(stage: Stage, rounds: list[dict[str, Any]]) -> str | None:
    """Whether the stage ended far from its posterior for lack of means, and how much would do.

    A coarse stage is a stepping stone, and finer ones make up for a part of a nat. For as long as
    the run goes on: afterwards its certificate knows better (`remedies`).
    """
    last, count = rounds[-1], len(rounds)
    lacks_budget = not stage.affords(stage.round_size)
    factor = factor_needed(rounds, USABLE)
    if factor is None or not stage.is_over(count):
        return None
    what = f"J is {last['jeffreys']:.2g} after stage {stage.scale}"
    if last["temperature"] < 1:
        what = f"stage {stage.scale} ended on its way, at temperature {last['temperature']:.2g}"
    if not lacks_budget:
        return f"{what}, after all of its rounds; try FitConfig(rounds={math.ceil(factor * count)})"
    budget = stage.simulator.budget or stage.simulator.nfs
    return (
        f"{what}, for lack of simulations, and finer scales are unlikely to be learned better; try "
        f"budget={rounded_up(factor * budget)}"
    )
