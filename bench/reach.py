"""Posteriors far from the prior: how good the flow is, and what refining it gives.

    python bench/reach.py [ROW ...] [--seeds 0 1 2] [--refine]

Prints one line for each row and seed: simulations, seconds, effective sample size, k-hat, log
evidence, its standard error, mode fractions, and the fraction of cells whose true value lies in the
95 percent band of 2000 fields; with --refine also sequential Monte Carlo from the flow. What is
wanted stands behind.
"""

import argparse
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import msign
import rich_problems as rich


class Row(NamedTuple):
    """A problem, its budget, and what is wanted."""

    make: Callable[[], msign.InverseProblem]
    budget: int
    wanted: str
    refined: int = 400_000


ROWS = {
    "exp": Row(rich.exp_in_every_cell, 400_000, "ESS 0.05"),
    "exp 8x8, no derivative": Row(
        lambda: rich.exp_in_every_cell(8, black_box=True), 100_000, "ESS 0.3"
    ),
    "Cox": Row(rich.cox_process, 400_000, "ESS 0.1"),
    "elliptic at points": Row(rich.elliptic_at_points, 500_000, "ESS 0.05"),
    "linear 64x64": Row(rich.linear_in_every_cell, 30_000, "J 0.01, 60 s"),
    "elliptic hard": Row(lambda: msign.problems.elliptic(hard=True), 500_000, "ESS 0.2, 0.5:0.5"),
}


def covered(posterior: msign.Posterior) -> float:
    """Fraction of cells whose true value lies in the central 95 percent of the posterior."""
    truth = posterior.problem.truth
    if truth is None:
        return np.nan
    low, high = np.quantile(posterior.sample(2000, seed=1), [0.025, 0.975], axis=0)
    return float(np.mean((truth >= low) & (truth <= high)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--refine", action="store_true")
    options = parser.parse_args()
    for name in options.rows:
        if name not in ROWS:
            parser.error(f"ROW must be one of {', '.join(ROWS)}, got {name!r}")
    print("row, seed: nFS, seconds, J, ESS, k-hat, log Z, modes, truth in 95 percent", flush=True)
    for name in options.rows or ROWS:
        row = ROWS[name]
        for seed in options.seeds:
            began = time.monotonic()
            posterior = msign.fit(row.make(), row.budget, seed, progress=False)
            seconds, report = time.monotonic() - began, posterior.certificate()
            summary = posterior.summary()
            modes = ":".join(f"{f:.3f}" for f in summary["mode_fractions"])
            print(
                f"{name}, {seed}: {posterior.nfs} {seconds:.0f} {report.divergence:.3f} "
                f"{report.ess_fraction:.3f} {report.khat:.2f} {report.log_evidence:.3f} +- "
                f"{report.log_evidence_stderr:.3f} {modes} {covered(posterior):.3f} "
                f"(wanted {row.wanted})",
                flush=True,
            )
            if options.refine:
                found = posterior.refine(1000, row.refined, seed=seed, progress=False)
                modes = ":".join(f"{f:.3f}" for f in found.mode_fractions)
                print(
                    f"    refined: {found.nfs} {found.seconds:.0f} log Z {found.log_evidence:.3f} "
                    f"+- {found.log_evidence_stderr:.3f} acceptance {found.acceptance:.2f} "
                    f"temperatures {len(found.temperatures)} {modes} {found.verdict}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
