"""Posteriors of one and two variables with narrow modes, ridges and valleys.

    python bench/narrow.py [SETTING ...] [--seeds 0 1]

The paper's synthetic problem on 16 x 16 cells with noise 0.05, three more problems of one variable
(two uneven modes, six modes, one skewed), and seven of two: rings, four uneven modes, a banana, a
snake, many modes and a far one; with and without inflated noise at coarse scales. Prints nFS,
rounds, seconds, and from 50,000 samples of the model the Jeffreys divergence, the part of samples
that are strays (more than five nats too dense) and the worst of them.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

import msign
from small_problems import (
    banana,
    far_mode,
    four_modes,
    many_modes,
    ring,
    six_modes,
    skewed,
    snake,
    thin_ring,
    uneven_modes,
)

SAMPLES = 50_000
STRAY = 5.0  # nats


PROBLEMS: dict[str, tuple[Callable[[], msign.InverseProblem], int]] = {
    "gamma 0.05": (lambda: msign.problems.synthetic(16, gamma=0.05), 800_000),
    "uneven": (uneven_modes, 200_000),
    "six modes": (six_modes, 200_000),
    "skewed": (skewed, 200_000),
    "ring": (ring, 100_000),
    "four modes": (four_modes, 200_000),
    "thin ring": (thin_ring, 200_000),
    "banana": (banana, 200_000),
    "snake": (snake, 200_000),
    "many modes": (many_modes, 200_000),
    "far mode": (far_mode, 200_000),
}
SETTINGS = ("default", "not inflated")


def strays(posterior: msign.Posterior) -> tuple[float, float, float]:
    """Jeffreys divergence by own weights, fraction of strays, the worst log-ratio."""
    u, log_ratio = posterior.whitened_samples(SAMPLES, seed=5)
    problem = posterior.problem
    log_weights = msign.Simulator(problem).evaluate(u, problem.scales).log_likelihood - log_ratio
    excess = np.logaddexp.reduce(log_weights) - np.log(SAMPLES) - log_weights
    jeffreys = np.mean(excess * (1 - np.exp(-excess)))
    return float(jeffreys), float(np.mean(excess > STRAY)), float(excess.max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", default=SETTINGS, help=", ".join(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    options = parser.parse_args()
    for name in options.settings:
        for which in options.problems:
            make, budget = PROBLEMS[which]
            problem = make() if name == "default" else make().without_inflation()
            for seed in options.seeds:
                began = time.monotonic()
                posterior = msign.fit(problem, budget, seed=seed)
                seconds = time.monotonic() - began
                jeffreys, part, worst = strays(posterior)
                print(
                    f"{name:24s} {which:10s} seed {seed}  {posterior.nfs:7d} nFS  "
                    f"{len(posterior.records):3d} rounds  {seconds:5.1f} s  J {jeffreys:.4f}  "
                    f"strays {part:.1e}  worst {worst:.0f} nats",
                    flush=True,
                )


if __name__ == "__main__":
    main()
