"""What each threshold of the engine buys: small problems with it and without.

    python bench/policy.py [THRESHOLD ...] [--seeds 0 1] [--problems ring near]

`policy_problems.py` has the problems, three or more for each part of the engine; none of them is
the paper's. A threshold is tried on problems of the parts that it decides in, switched off, or
where "off" has no meaning, at a value far from its own. One line for each threshold and problem:
simulations, processor seconds, effective sample size, and the Jeffreys divergence by the weights
of 20,000 fresh samples (strays of one in a thousand count there), for each seed. Thresholds with
one name before the colon are settings of one.
"""

import argparse
import dataclasses
import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import jax
import numpy as np

import msign
from msign import Cellwise, FitConfig, Informed
from msign.inference.methods import NAMED
from msign.inference.methods.objectives import PathwiseJeffreys
from policy_problems import (
    BOX,
    CASES,
    EMULATED,
    GLOW,
    LINE,
    PLANE,
    RICH,
    RICH_BOX,
    STEPS,
    Case,
)

SAMPLES = 20_000
NEVER = 1e9
METHODS, FLOWS = "msign.inference.methods", "msign.inference.flows"
CURVE = f"{METHODS}.rearrangement"
INFORMED = (LINE, PLANE, EMULATED, STEPS, BOX)
CELLS = (RICH, RICH_BOX)
ALL = (*INFORMED, *CELLS)
UNBOUNDED = PathwiseJeffreys(max_weight=NEVER)


@dataclasses.dataclass(frozen=True)
class Without:
    """A threshold switched off: options of the fit and of its parts, or constants of modules.

    Attributes:
        kinds: Of the problems on which it decides.
        fit: Options of `FitConfig`.
        methods: Options of methods, by their names.
        informed: Options of `Informed` flows.
        network: Options of their networks.
        cellwise: Options of `Cellwise` flows.
        glow: Options of `Glow` flows.
        constants: Values by (module, name).
        inflated: Whether coarse scales are, as a problem asks for.
    """

    kinds: tuple[str, ...] = ALL
    fit: dict[str, Any] = dataclasses.field(default_factory=dict)
    methods: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    informed: dict[str, Any] = dataclasses.field(default_factory=dict)
    network: dict[str, Any] = dataclasses.field(default_factory=dict)
    cellwise: dict[str, Any] = dataclasses.field(default_factory=dict)
    glow: dict[str, Any] = dataclasses.field(default_factory=dict)
    constants: dict[tuple[str, str], Any] = dataclasses.field(default_factory=dict)
    inflated: bool = True

    def config(self, case: Case) -> FitConfig:
        flow = case.flow
        if self.informed and case.kind in INFORMED:
            flow = dataclasses.replace(flow or Informed(), **self.informed)
        if self.network and case.kind in INFORMED:
            made = flow or Informed()
            assert isinstance(made, Informed)
            flow = dataclasses.replace(
                made, config=dataclasses.replace(made.config, **self.network)
            )
        if self.cellwise and case.kind in CELLS:
            flow = Cellwise(**self.cellwise)
        if self.glow and case.kind == GLOW:
            assert flow is not None
            flow = dataclasses.replace(flow, **self.glow)
        return FitConfig(flow=flow, **self.fit)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Methods and constants changed for a while; programs made with these are forgotten."""
        with ExitStack() as changed:
            for name, options in self.methods.items():
                made = _with(NAMED[name], options)
                changed.enter_context(mock.patch.dict(NAMED, {name: made}))
            for (module, name), value in self.constants.items():
                owner = importlib.import_module(module)
                changed.enter_context(mock.patch.object(owner, name, value))
            if self.constants:
                jax.clear_caches()
            yield
        if self.constants:
            jax.clear_caches()


def _with(make: Callable[[bool], Any], options: dict[str, Any]) -> Callable[[bool], Any]:
    return lambda derivative: dataclasses.replace(make(derivative), **options)


def constants(kinds: tuple[str, ...], *named: tuple[str, str, Any]) -> Without:
    """Constants by module, name and value."""
    return Without(kinds, constants={(module, name): value for module, name, value in named})


def rows_per_direction(rows: int) -> list[tuple[str, str, Any]]:
    """A number for all modules that use least squares."""
    modules = (
        f"{FLOWS}.informed",
        f"{FLOWS}.gaussian",
        f"{METHODS}.cells",
        f"{METHODS}.polynomial",
    )
    return [(module, "ROWS_PER_DIRECTION", rows) for module in modules]


THRESHOLDS = {
    "default": Without((*ALL, GLOW)),
    "round_size: a quarter": Without(INFORMED, fit={"round_size": 250}),
    "bridge_ess: 0.1": Without(INFORMED, fit={"bridge_ess": 0.1}),
    "bridge_ess: 0.9": Without(INFORMED, fit={"bridge_ess": 0.9}),
    "patience: 1": Without(fit={"patience": 1}),
    "patience: endless": Without(fit={"patience": 100}),
    "PROGRESS: any": constants(ALL, ("msign.inference.stage", "PROGRESS", 0.0)),
    "MAX_POOLED_CELLS: none": constants((GLOW,), (f"{FLOWS}.base", "MAX_POOLED_CELLS", 0)),
    "emulators of networks: none": Without((GLOW,), fit={"method": "pool"}),
    "Glow.rate: 2e-3": Without((GLOW,), glow={"rate": 2e-3}),
    "Pool.margin: no bound": Without((STEPS, GLOW), methods={"pool": {"margin": NEVER}}),
    "Pool.picked: none": Without((STEPS, GLOW), methods={"pool": {"picked": 0.0}}),
    "inflate: never": Without((LINE, PLANE, EMULATED, BOX), inflated=False),
    "cubic: none": Without((EMULATED, RICH_BOX), methods={"emulator": {"cubic": 0}}),
    "ROWS_PER_DIRECTION: 1": constants((EMULATED, *CELLS), *rows_per_direction(1)),
    "ROWS_PER_DIRECTION: 12": constants((EMULATED, *CELLS), *rows_per_direction(12)),
    "LATEST: 2000": constants(
        (EMULATED, RICH_BOX),
        (f"{METHODS}.polynomial", "LATEST", 2000),
        (f"{METHODS}.emulator", "LATEST", 2000),
    ),
    "clip_norm: never": Without(
        (EMULATED, STEPS, RICH, RICH_BOX),
        methods={name: {"clip_norm": NEVER} for name in ("pool", "emulator", "cells")},
    ),
    "max_weight: none": constants(
        (EMULATED, RICH_BOX), (f"{METHODS}.emulator", "PathwiseJeffreys", lambda: UNBOUNDED)
    ),
    "WARM_UP: none": constants(
        (EMULATED, STEPS, RICH, RICH_BOX), ("msign.training", "WARM_UP", 1e-6)
    ),
    "per_direction: 1": Without(INFORMED, informed={"per_direction": 1}),
    "per_direction: 20": Without(INFORMED, informed={"per_direction": 20}),
    "tolerance: 0.01": Without(fit={"tolerance": 0.01}),
    "max_rank: 4": Without((EMULATED, STEPS, BOX), network={"max_rank": 4}),
    "GAUSSIAN: never": constants(INFORMED, (f"{FLOWS}.informed", "GAUSSIAN", -1.0)),
    "REGRESSED: 5": constants((BOX,), (f"{FLOWS}.informed", "REGRESSED", 5)),
    "REGRESSED: 80": constants((BOX,), (f"{FLOWS}.informed", "REGRESSED", 80)),
    "LINEAR: never": constants((BOX, RICH), (f"{FLOWS}.probe", "LINEAR", 0.0)),
    "WIDENED: 10": constants((RICH,), (f"{METHODS}.cells", "WIDENED", 10.0)),
    "WIDENED: never": constants((RICH,), (f"{METHODS}.cells", "WIDENED", 1.0)),
    "FAR: never": constants(CELLS, (f"{FLOWS}.gaussian", "FAR", NEVER)),
    "CELLS: 64": constants((LINE,), (CURVE, "CELLS", 64)),
    "SPREAD: 3 nats": constants((LINE,), (CURVE, "SPREAD", 3.0)),
}


def divergence(posterior: msign.Posterior) -> float:
    """Jeffreys divergence by the weights of fresh samples."""
    u, log_ratio = posterior.whitened_samples(SAMPLES, seed=5)
    problem = posterior.problem
    log_weights = msign.Simulator(problem).evaluate(u, problem.scales).log_likelihood - log_ratio
    excess = np.logaddexp.reduce(log_weights) - np.log(SAMPLES) - log_weights
    return float(np.mean(excess * (1 - np.exp(-excess))))


def measured(case: Case, setting: Without, seed: int) -> str:
    """One fit in words."""
    problem = case.make()
    if not setting.inflated:
        problem = problem.without_inflation()
    began = time.process_time()
    try:
        posterior = msign.fit(
            problem, case.budget, seed=seed, config=setting.config(case), progress=False
        )
    except Exception as error:
        return f"{type(error).__name__}"
    seconds = time.process_time() - began
    ess, j = posterior.certificate().ess_fraction, divergence(posterior)
    return f"{posterior.nfs:6d} {seconds:3.0f}s {ess:.3f} {j:<7.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("thresholds", nargs="*", metavar="THRESHOLD", help=", ".join(THRESHOLDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--problems", nargs="+", choices=list(CASES), default=list(CASES))
    options = parser.parse_args()
    for name in options.thresholds:
        if name not in THRESHOLDS:
            parser.error(f"THRESHOLD must be one of {', '.join(THRESHOLDS)}, got {name!r}")
    for name in options.thresholds or THRESHOLDS:
        setting = THRESHOLDS[name]
        with setting.applied():
            for which in options.problems:
                case = CASES[which]
                if case.kind in setting.kinds:
                    found = [measured(case, setting, seed) for seed in options.seeds]
                    print(f"{name:32s} {which:11s} " + " | ".join(found), flush=True)


if __name__ == "__main__":
    main()
