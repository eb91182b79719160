"""What an option of the engine buys: the same two problems with and without it.

    python bench/options.py [--seeds 0 1]

A ring and four uneven modes of two coordinates on 2 x 2 cells, one scale, 3000 fields a round and
at most eight rounds. Prints, for each setting: seconds, divergence of the certificate, held-out
divergence of each round (a number in the thousands: the model has left its pool).
"""

import argparse
import time

import msign
from msign import FitConfig, Informed, InformedConfig, Pool
from small_problems import four_modes, ring

SETTINGS: dict[str, tuple[dict, dict]] = {
    "default": ({}, {}),
    "600 steps": ({"steps": 600}, {}),
    "400 steps": ({"steps": 400}, {}),
    "batch 1024": ({"batch": 1024}, {}),
    "none picked": ({"picked": 0.0}, {}),
    "none picked, 600 steps": ({"picked": 0.0, "steps": 600}, {}),
    "hidden 24": ({}, {"hidden": 24}),
    "knots 8": ({}, {"knots": 8}),
    "4 splines": ({}, {"splines": 4}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", metavar="SETTING", help=", ".join(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    for name in options.settings or SETTINGS:
        pool, flow = SETTINGS[name]
        config = FitConfig(
            flow=Informed(InformedConfig(**flow)),
            method=Pool(**pool),
            rounds=8,
            round_size=3000,
            certificate=4000,
        )
        for make in (ring, four_modes):
            problem = make(size=2, scales=1)
            for seed in options.seeds:
                began = time.monotonic()
                posterior = msign.fit(problem, 60_000, seed=seed, config=config)
                rounds = " ".join(f"{r['jeffreys']:.2g}" for r in posterior.records)
                print(
                    f"{name:24s} {problem.name:10s} seed {seed} {time.monotonic() - began:5.1f} s  "
                    f"J {posterior.certificate().jeffreys:.4f}  rounds {rounds}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
