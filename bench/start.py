"""What each constant of a start far from the prior buys, and of what trains on from it.

    python bench/start.py [SETTING ...] [--seeds 0 1] [--fit]
    python bench/start.py --wells
    python bench/start.py --outliers

Three problems with data in every cell or at many points, 16 x 16 cells. Prints, for each setting,
simulations and the evidence bound of the Gaussian that is found (higher is better; differences of
0.1 nats are noise of 20,000 fields); with --fit instead simulations, J and ESS of whole fits with
a budget of 100,000. With --wells instead how many of five wells on a ring are found with each of 16
keys, and by four ascents; with --outliers the evidence bounds of Gaussians found in 20 data sets
with outliers under Student's noise, and if directions in which the density bends the wrong way at
its maximum are as wide as under the prior.
"""

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import scipy.linalg

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


def wells(x: jax.Array) -> jax.Array:
    """Log-likelihood of five wells of equal depth on a ring."""
    angles = 2 * np.pi * np.arange(5) / 5
    away = jnp.sum((x[:, None] - 2 * np.stack([np.cos(angles), np.sin(angles)], 1)) ** 2, -1)
    return jax.nn.logsumexp(-0.5 * away / 0.1**2, axis=1)


def found_wells() -> None:
    """Maxima found, with each key."""
    problem = msign.InverseProblem(
        msign.DensePrior(np.eye(2), (2,)), log_likelihood=wells, scales=1
    )
    for name, most in (("until no more are expected", gaussian.UNSEEN), ("four", np.inf)):
        gaussian.UNSEEN, counts = most, []
        for key in range(40, 56):
            simulator = msign.Simulator(problem)
            found = gaussian.find_gaussians(simulator, 1, 20_000, TOLERANCE, jr.key(key))
            counts.append(len(found))
        print(f"{name:28s}", *counts, flush=True)


def as_wide_as_the_prior(precision: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray]:
    """`inverse_root` that raises negative eigenvalues to the prior's."""
    values, vectors = scipy.linalg.eigh(precision)
    roots = np.sqrt(np.maximum(values, floor))
    return (vectors / roots) @ vectors.T, (vectors * roots) @ vectors.T


def with_outliers(seed: int) -> msign.InverseProblem:
    """Cubes in all of 64 cells, one in ten far off."""
    prior, rng = msign.LaplacePrior((64,), alpha=0.5, beta=6.0), np.random.default_rng(seed)
    truth = np.asarray(prior.unwhiten(rng.normal(size=64)))
    data = truth + 0.2 * truth**3 + 0.1 * rng.standard_t(3, size=64)
    data[::10] += rng.normal(size=7)
    noise = msign.likelihoods.StudentT(scale=0.1, df=3)
    return msign.InverseProblem(prior, lambda x: x + 0.2 * x**3, data, likelihood=noise)


def bounds_with_outliers() -> None:
    """Evidence bounds of the Gaussians of 20 data sets."""
    now = gaussian.inverse_root
    print("data set: as narrow as it bends, as wide as the prior")
    for seed in range(20):
        bounds = []
        for rule in (now, as_wide_as_the_prior):
            gaussian.inverse_root = rule
            bounds.append(bound(with_outliers(seed), 0)[1])
        print(f"{seed}: {bounds[0]:.1f}, {bounds[1]:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--wells", action="store_true")
    parser.add_argument("--outliers", action="store_true")
    options = parser.parse_args()
    if options.wells or options.outliers:
        return found_wells() if options.wells else bounds_with_outliers()
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
