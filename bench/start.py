"""What each constant of a start far from the prior buys, and of what trains on from it.

    python bench/start.py [SETTING ...] [--seeds 0 1] [--fit]

Three problems with data in every cell or at many points, 16 x 16 cells. Prints, for each setting,
simulations and the evidence bound of the Gaussian that is found (higher is better; differences of
0.1 nats are noise of 20,000 fields); with --fit instead simulations, J and ESS of whole fits with
a budget of 100,000.
"""

import argparse
from collections.abc import Callable

import jax.random as jr
import numpy as np

import msign
import rich_problems as rich
from msign.inference.flows import gaussian
from msign.inference.methods import cells
from msign.noise import generator

PROBLEMS: tuple[Callable, ...] = (
    lambda: rich.exp_in_every_cell(16),
    lambda: rich.cox_process(16, 60.0),
    lambda: rich.elliptic_at_points(16, 9),
)
DRAWS, ALLOWANCE, TOLERANCE = 20_000, 60_000, 1e-3
START: dict[str, dict[str, float]] = {
    "default": {},
    "remember 12 steps": {"MEMORY": 12},
    "one start": {"STARTS": 1},
    "ascents of 100": {"ASCENT": 100},
    "near 0.05": {"NEARBY": 0.05},
    "near 0.0005": {"NEARBY": 0.0005},
    "sufficient 0.1": {"SUFFICIENT": 0.1},
}
FITS: dict[str, dict[str, float]] = {
    "default": {},
    "widened by 10": {"WIDENED": 10.0},
}


def bound(problem: msign.InverseProblem, seed: int) -> tuple[int, float]:
    """Simulations of a start, and the evidence bound of its Gaussian."""
    simulator, scale = msign.Simulator(problem), problem.scales
    found, *_ = gaussian.find_gaussians(simulator, scale, ALLOWANCE, TOLERANCE, jr.key(seed))
    root, used = found.root(), simulator.nfs
    z = generator(jr.key(seed + 100)).normal(size=(DRAWS, problem.dim))
    u = found.mean + z @ root.T
    values = simulator.evaluate(u, scale).log_likelihood - 0.5 * np.sum(u**2 - z**2, 1)
    return used, float(values.mean() + np.linalg.slogdet(root)[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    module, known = (cells, FITS) if options.fit else (gaussian, START)
    for name in options.settings:
        if name not in known:
            parser.error(f"SETTING must be one of {', '.join(known)}, got {name!r}")
    for name in options.settings or known:
        before = {constant: getattr(module, constant) for constant in known[name]}
        for constant, value in known[name].items():
            setattr(module, constant, value)
        for make in PROBLEMS:
            problem, parts = make(), []
            for seed in options.seeds:
                if options.fit:
                    found = msign.fit(problem, 100_000, seed, progress=False)
                    report = found.certificate()
                    parts.append(f"{found.nfs} J {report.divergence:.3f} {report.ess_fraction:.3f}")
                else:
                    parts.append("{} {:.2f}".format(*bound(problem, seed)))
            print(f"{name:22s} {problem.name:20s} {', '.join(parts)}", flush=True)
        for constant, value in before.items():
            setattr(module, constant, value)


if __name__ == "__main__":
    main()
