"""How far repeated refinements spread, over the standard errors that they state.

    python bench/refine.py [--runs 40] [--particles 200] [--only NAME]

Problems whose posterior is known, each refined many times from a poor flow and from a good one: the
prior, and a short fit; or the prior made too narrow. One line for each: effective size of the
flow's weights, k-hat of those of the particles in the end, the log evidence's mean error and its
stated standard error, the root mean square of error over stated error (1 is honest) and the worst
run, the same of the mean along the first informed direction, the root mean square error of the mass
on its positive side (of one mode where there are two mirrored ones) and the worst run,
simulations, verdicts GOOD.
"""

import argparse

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from flowjax.bijections import Scale

import msign
from msign import SMC, FitConfig, Posterior
from msign.inference import Glow
from msign.inference.certificate import Certificate
from msign.inference.files import prior_network
from msign.weights import ess_fraction
from small_problems import exact_posterior, few_coordinates, ring, two_modes

UNDER_TRAINED = 30  # gradient steps


def far() -> msign.InverseProblem:
    """Two coordinates observed at three and two standard deviations of the prior, 4 x 4 cells."""
    return few_coordinates("linear", 4, 2, lambda c: c, [3.0, -2.0], 0.2, scales=1)


def untrained(problem: msign.InverseProblem, width: float = 1.0) -> Posterior:
    """The prior as a flow, or the prior made so much narrower."""
    network, top = prior_network(problem, FitConfig()), problem.scales
    if width != 1:
        network = network.with_flow(top, Scale(jnp.full(problem.prior.lattice.field_shape, width)))
    nothing = Certificate(np.zeros(2), np.zeros((2, 1)))
    return Posterior(
        problem, {top: network}, {top: nothing}, FitConfig(),
        seed=0, records=[], stages=[], nfs=0, failures=0, seconds=0.0,
    )  # fmt: skip


def under_trained() -> Posterior:
    """A Glow flow of the paper's problem on 16 x 16 cells, stopped long before it is good."""
    config = FitConfig(flow=Glow(blocks=4, hidden=8), rounds=1, steps=UNDER_TRAINED)
    problem = msign.problems.synthetic(16, scales=1)
    return msign.fit(problem, budget=8000, seed=0, progress=False, config=config)


def fitted(problem: msign.InverseProblem) -> Posterior:
    """A flow of 6000 simulations."""
    return msign.fit(problem, budget=6000, seed=0, progress=False)


CASES = {
    "far, prior": lambda: untrained(far()),
    "ring, prior": lambda: untrained(ring(4, scales=1)),
    "ring, fit": lambda: fitted(ring(4, scales=1)),
    "two modes, prior": lambda: untrained(two_modes()),
    "two modes, fit": lambda: fitted(two_modes()),
    "synthetic 64, prior": lambda: untrained(msign.problems.synthetic()),
    "synthetic 64, 0.02": lambda: untrained(msign.problems.synthetic(gamma=0.02)),
    "synthetic 16, Glow": under_trained,
    "far, prior x 0.5": lambda: untrained(far(), 0.5),
    "ring, prior x 0.5": lambda: untrained(ring(4, scales=1), 0.5),
}


def line(name: str, posterior: Posterior, runs: int, particles: int) -> str:
    """One row of the table."""
    exact = exact_posterior(posterior.problem)
    assert exact is not None
    axis = exact.axes()[0]
    parts = [np.asarray(exact.sample(jr.key(i), 2000)) @ axis for i in range(25)]
    known = np.concatenate(parts)
    mean, positive = float(known.mean()), float((known > 0).mean())
    found = [
        posterior.refine(particles, 400_000, seed, SMC(particles=particles), progress=False)
        for seed in range(runs)
    ]
    errors = np.array([f.log_evidence for f in found]) - exact.log_evidence()
    stated = np.array([f.log_evidence_stderr for f in found])
    away, sides = [], []
    for f in found:
        along = np.asarray(posterior.problem.prior.whiten(jnp.asarray(f.fields))) @ axis
        away.append((along.mean() - mean) / f.stderr(along))
        sides.append((along > 0).mean() - positive)
    z, away, sides = errors / stated, np.array(away), np.array(sides)
    good = sum(f.verdict.startswith("GOOD") for f in found)
    weights = posterior.importance(4000, 0)[1]
    return (
        f"{name:20s} {ess_fraction(weights):8.4f} {np.median([f.tail for f in found]):7.2f} "
        f"{errors.mean():+8.3f} {np.sqrt((stated**2).mean()):7.3f} "
        f"{np.sqrt((z**2).mean()):6.2f} {np.abs(z).max():6.1f} "
        f"{np.sqrt((away**2).mean()):6.2f} {np.abs(away).max():6.1f} "
        f"{np.sqrt((sides**2).mean()):6.3f} {np.abs(sides).max():6.3f} "
        f"{np.mean([f.nfs for f in found]):8.0f} {good:3d}/{runs}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--particles", type=int, default=200)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    names = (
        "ESS",
        "tail",
        "error",
        "stated",
        "ratio",
        "worst",
        "mean",
        "worst",
        "side",
        "worst",
        "nFS",
    )
    widths = (8, 7, 8, 7, 6, 6, 6, 6, 6, 6, 8)
    columns = " ".join(f"{n:>{w}s}" for n, w in zip(names, widths, strict=True))
    print(f"{'problem, flow':20s} {columns} GOOD")
    for name, make in CASES.items():
        if options.only in name:
            print(line(name, make(), options.runs, options.particles), flush=True)


if __name__ == "__main__":
    main()
