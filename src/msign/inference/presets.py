"""The paper's algorithm as it stands, as options of `fit` (section 4, appendix F)."""

import dataclasses
from typing import Any

from msign import checks
from msign.bijections import GlowConfig
from msign.inference.config import FitConfig
from msign.inference.flows import Glow, SplitGlow
from msign.inference.methods import Fresh
from msign.inference.methods.objectives import Objective, ScoreJeffreys, SteinObjective

NETWORKS = {"synthetic": (16, 32), "elliptic": (32, 64)}  # Glow blocks K, hidden channels
RATE = 2e-3  # of Adam, with gradients as noisy as those of (10) and (11)
NEVER = 10**6
STEPS = 80  # of 200 simulations between two looks at the model,
LOOK = 1000  # and simulations of a look


def as_in_paper(problem: str) -> FitConfig:
    """Glow flows, stage 1 from HMC, (10) and (11) with weights against q~_l, nothing tempered.

    Where the paper is silent: Adam with the learning rates of `Glow`; every stage has an equal
    share of the budget and uses all of it; half of the first goes to HMC. The model of a stage is
    the best by fresh fields at its start and after every 80 steps, and rounds without progress
    halve the learning rate, as in any `fit`.
    """
    blocks, hidden = NETWORKS[checks.one_of("problem", problem, NETWORKS)]
    # Cells as they are, and conditioners that do not know where they are: Kingma and Dhariwal 2018.
    glow = GlowConfig(blocks, hidden, coordinates="raw", activation="relu", position=False)
    method = Fresh(STEPS, objective=ScoreJeffreys(), tempered=False, chain=0.5)
    return FitConfig(
        flow=Glow(glow, rate=RATE),
        method=method,
        round_size=LOOK,
        patience=NEVER,
        go_back=False,
        tolerance=1 / NEVER,
        bridge_ess=1 - 1 / NEVER,
        share=0.0,
    )


def ablations(base: FitConfig) -> dict[str, FitConfig]:
    """The variants of appendix F's table, each the base with what its name says.

    Single-stage training cannot estimate KL(q||p) and minimises KL(p||q), for Glow as well.
    """
    flow, method = base.flow, base.method
    if not isinstance(flow, Glow) or not isinstance(method, Fresh):
        raise ValueError(f"base must have Glow flows and learn from fresh fields, got {base!r}")
    objective: Any = method.objective
    reverse = _with_objective(base, method, dataclasses.replace(objective, forward=0.0))
    stein = _with_objective(base, method, SteinObjective())
    return {
        "glow": dataclasses.replace(reverse, flow=SplitGlow(flow.config, flow.rate, flow.units)),
        "msign-snn": dataclasses.replace(base, conditioning="nearest"),
        "msign-kl-s": dataclasses.replace(reverse, single_stage=True),
        "msign-kl": reverse,
        "msign-as-s": dataclasses.replace(stein, single_stage=True),
        "msign-as": stein,
        "msign": base,
    }


def _with_objective(base: FitConfig, method: Fresh, objective: Objective) -> FitConfig:
    return dataclasses.replace(base, method=dataclasses.replace(method, objective=objective))
