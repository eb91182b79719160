"""What each threshold of the engine buys: seven small problems with it and without.

    python bench/policy.py [THRESHOLD ...] [--seeds 0 1] [--problems ring near]

A ring and four uneven modes of two variables (made of a pool, 4 x 4 cells, two scales), six
variables of which two are bent and one has two modes, and ten that are nearly linear and precisely
observed (trained on an emulator, 8 x 8 cells, two scales), in six rounds a stage, and three of one
variable (16 x 16 cells). None of them is the paper's. One line for each threshold; for each problem
and seed: simulations, processor seconds, effective sample size, and the Jeffreys divergence by the
weights of 20,000 fresh samples (strays of one in a thousand count there). `bench/start.py` has the
thresholds of a start far from the prior, `bench/narrow.py` those of narrow modes.
"""

import argparse
import dataclasses
import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np

import msign
from msign import FitConfig, Informed, InformedConfig, Pool
from msign.inference import Emulator
from msign.inference.methods.objectives import PathwiseJeffreys
from small_problems import few_coordinates, four_modes, ring, six_modes, skewed, uneven_modes

SAMPLES = 20_000
ROUNDS = 6  # of a stage
NEVER = 1e9
UNBOUNDED = PathwiseJeffreys(max_weight=NEVER)


def bent(size: int = 8) -> msign.InverseProblem:
    """Six variables: the first has two modes, others bend with it or are nearly linear."""

    def forward(c):
        a, b, c, d, e, f = jnp.moveaxis(c, 1, 0)
        return jnp.stack(
            [a**2 + 0.2 * a, b + 0.5 * a**2, jnp.exp(0.5 * c) + 0.3 * b * d, d - e, jnp.sin(e) + f],
            1,
        )

    data = [1.0, 0.8, 1.2, -0.3, 0.5]
    return few_coordinates("bent", size, 6, forward, data, 0.2, scales=2)


def near(size: int = 8) -> msign.InverseProblem:
    """Ten variables, nearly linear, observed to a twentieth of their prior deviations."""

    def forward(c):
        return c + 0.1 * c * jnp.roll(c, 1, axis=1)

    truth = np.random.default_rng(0).normal(size=10)
    data = np.asarray(forward(jnp.asarray(truth)[None]))[0]
    return few_coordinates("near", size, 10, forward, list(data), 0.05, scales=2)


EMULATED = ("bent", "near")
PROBLEMS: dict[str, tuple[Callable[[], msign.InverseProblem], int]] = {
    "ring": (lambda: ring(4, scales=2), 30_000),
    "four modes": (lambda: four_modes(4, scales=2), 30_000),
    "bent": (bent, 30_000),
    "near": (near, 30_000),
    "uneven": (lambda: uneven_modes(16), 60_000),
    "six modes": (lambda: six_modes(16), 60_000),
    "skewed": (lambda: skewed(16), 60_000),
}


@dataclasses.dataclass(frozen=True)
class Without:
    """How a threshold is switched off: options of the fit and its parts, or constants."""

    fit: dict = dataclasses.field(default_factory=dict)
    pool: dict = dataclasses.field(default_factory=dict)
    emulator: dict = dataclasses.field(default_factory=dict)
    informed: dict = dataclasses.field(default_factory=dict)
    constants: dict = dataclasses.field(default_factory=dict)

    def concerns(self, emulated: bool) -> bool:
        """Whether a problem that is trained on an emulator, or on a pool, has the threshold."""
        only_pool = self.pool and not self.emulator
        only_emulator = self.emulator and not self.pool
        return not (only_pool if emulated else only_emulator)

    def config(self, emulated: bool) -> FitConfig:
        method = Emulator(**self.emulator) if emulated else Pool(**self.pool)
        return FitConfig(flow=Informed(**self.informed), method=method, rounds=ROUNDS, **self.fit)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Constants changed for a while; programs that were compiled with them are forgotten."""
        modules = {name: importlib.import_module(f"msign.{name[0]}") for name in self.constants}
        before = {name: getattr(modules[name], name[1]) for name in self.constants}
        for name, value in self.constants.items():
            setattr(modules[name], name[1], value)
        if self.constants:
            jax.clear_caches()
        yield
        for name, value in before.items():
            setattr(modules[name], name[1], value)
        if self.constants:
            jax.clear_caches()


METHODS, FLOWS = "inference.methods", "inference.flows"
CURVE = f"{METHODS}.rearrangement"
THRESHOLDS = {
    "default": Without(),
    "bridge_ess: no bridge": Without(fit={"bridge_ess": 1e-6}),
    "coarse_tolerance: as the finest": Without(fit={"coarse_tolerance": 1e-4}),
    "patience: 1": Without(fit={"patience": 1}),
    "patience: endless": Without(fit={"patience": 100}),
    "PROGRESS: any": Without(constants={("inference.stage", "PROGRESS"): 0.0}),
    "go_back: never": Without(fit={"go_back": False}),
    "clip_norm: never": Without(pool={"clip_norm": NEVER}, emulator={"clip_norm": NEVER}),
    "WARM_UP: none": Without(constants={("training", "WARM_UP"): 1e-6}),
    "MAX_LOG_RATIO: none": Without(
        constants={
            (f"{METHODS}.objectives", "MAX_LOG_RATIO"): 1e4,
            (f"{METHODS}.sample_pool", "MAX_LOG_RATIO"): 1e4,
        }
    ),
    "Pool.steps: 600": Without(pool={"steps": 600}),
    "cubic: none": Without(emulator={"cubic": 0}),
    "rows_per_term: 1": Without(emulator={"rows_per_term": 1}),
    "worth: no tempering": Without(emulator={"worth": 1e-6}),
    "LATEST: all": Without(constants={(f"{METHODS}.polynomial", "LATEST"): 10**9}),
    "max_weight: none": Without(
        constants={(f"{METHODS}.emulator", "PathwiseJeffreys"): lambda: UNBOUNDED}
    ),
    "Emulator.steps: 300": Without(emulator={"steps": 300}),
    "per_direction: 1": Without(informed={"per_direction": 1}),
    "tolerance: 0.01 nats": Without(informed={"tolerance": 0.01}),
    "CELLS: 64": Without(constants={(CURVE, "CELLS"): 64}),
    "CELLS: 1024": Without(constants={(CURVE, "CELLS"): 1024}),
    "SPREAD: 0.1 nats": Without(constants={(CURVE, "SPREAD"): 0.1}),
    "SPREAD: 3 nats": Without(constants={(CURVE, "SPREAD"): 3.0}),
    "FAR: 25 nats": Without(constants={(CURVE, "FAR"): 25.0}),
    "single: 48 bins": Without(informed={"config": InformedConfig(single=48)}),
    "single: 192 bins": Without(informed={"config": InformedConfig(single=192)}),
    "NARROW: 1e-4": Without(constants={("bijections.subspace", "NARROW"): 1e-4}),
    "guess: never": Without(constants={(f"{FLOWS}.informed", "_is_worse"): lambda *_: True}),
}


def divergence(posterior: msign.Posterior) -> float:
    """Jeffreys divergence by the weights of fresh samples."""
    u, log_ratio = posterior.whitened_samples(SAMPLES, seed=5)
    problem = posterior.problem
    log_weights = msign.Simulator(problem).evaluate(u, problem.scales).log_likelihood - log_ratio
    excess = np.logaddexp.reduce(log_weights) - np.log(SAMPLES) - log_weights
    return float(np.mean(excess * (1 - np.exp(-excess))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("thresholds", nargs="*", metavar="THRESHOLD", help=", ".join(THRESHOLDS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    options = parser.parse_args()
    for name in options.thresholds:
        if name not in THRESHOLDS:
            parser.error(f"THRESHOLD must be one of {', '.join(THRESHOLDS)}, got {name!r}")
    print(f"{'threshold':32s}" + "".join(f"{p:>52s}" for p in options.problems), flush=True)
    for name in options.thresholds or THRESHOLDS:
        setting, cells = THRESHOLDS[name], []
        with setting.applied():
            for which in options.problems:
                make, budget = PROBLEMS[which]
                if not setting.concerns(which in EMULATED):
                    cells.append("")
                    continue
                config, found = setting.config(which in EMULATED), []
                for seed in options.seeds:
                    began = time.process_time()
                    posterior = msign.fit(make(), budget, seed=seed, config=config, progress=False)
                    seconds = time.process_time() - began
                    ess = posterior.certificate().ess_fraction
                    found.append((posterior.nfs, seconds, ess, divergence(posterior)))
                cells.append(" | ".join(f"{n} {t:.0f}s {e:.3f} {j:.2g}" for n, t, e, j in found))
        print(f"{name:32s}" + "".join(f"{c:>52s}" for c in cells), flush=True)


if __name__ == "__main__":
    main()
