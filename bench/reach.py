"""Posteriors far from the prior: how good the flow is, and what refining it gives.

    python bench/reach.py [ROW ...] [--seeds 0 1 2]     the table
    python bench/reach.py [ROW ...] --refine            and sequential Monte Carlo from the flow
    python bench/reach.py exp Cox --nuts                all cells against long NUTS chains
    python bench/reach.py exp Cox --evidence            log evidence against long tempered SMC
    python bench/reach.py exp Cox --smc                 what tempered SMC costs at equal accuracy

Prints one line for each row and seed: simulations, seconds, effective sample size, k-hat, log
evidence, its standard error, mode fractions, and the fraction of cells whose true value lies in the
95 percent band of 2000 fields. What is wanted stands behind. With --keep DIR posteriors and chains
are saved in a directory, and taken from there when they are there already.
"""

import argparse
import pathlib
import statistics
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import msign
import references
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
    "two signs": Row(rich.products_in_every_cell, 400_000, "ESS 0.1, 0.73 : 0.27"),
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


def fitted(name: str, seed: int, keep: pathlib.Path | None) -> msign.Posterior:
    """The posterior of a row, from the directory of kept ones if it is there."""
    row = ROWS[name]
    path = None if keep is None else keep / f"{name} {seed}"
    if path is not None and (path / "posterior.json").exists():
        return msign.Posterior.load(path, row.make())
    posterior = msign.fit(row.make(), row.budget, seed, progress=False)
    if path is not None:
        posterior.save(path)
    return posterior


# --- against long chains --------------------------------------------------------------------------

CHAINS, WARM_UP = 8, 600
WEIGHTED = 40_000  # draws of the flow, whose weighted moments are compared
PARTICLES = 4000  # of the refinement that is compared


def chains_of(name: str, draws: int, seed: int, keep: pathlib.Path | None) -> references.Chains:
    """Long chains of a row, from the directory of kept ones if they are there."""
    path = None if keep is None else keep / f"{name} nuts {draws} {seed}.npz"
    if path is not None and path.exists():
        return references.Chains.load(path)
    found = references.nuts(ROWS[name].make(), CHAINS, WARM_UP, draws, seed)
    if path is not None:
        found.save(path)
    return found


def show_chains(posterior: msign.Posterior, chains: references.Chains, seed: int) -> None:
    """Means and standard deviations of all cells, differences in combined standard errors."""
    print(
        f"    NUTS, {CHAINS} chains of {chains.draws // CHAINS} draws after {WARM_UP}: R-hat at "
        f"most {chains.rhat[0]:.4f} (means) {chains.rhat[1]:.4f} (squares), effective draws at "
        f"least {chains.least[0]:.0f} {chains.least[1]:.0f}; {chains.leapfrogs:,} leapfrogs, "
        f"{chains.seconds:.0f} s",
        flush=True,
    )
    u, log_weights = posterior.importance(WEIGHTED, 1000 + seed)
    fields = np.asarray(posterior.prior.unwhiten(u)).reshape(len(u), -1)
    show_moments("weighted", references.weighted_moments(fields, log_weights), chains.moments)
    show_moments("unweighted", references.weighted_moments(fields, 0 * log_weights), chains.moments)
    refined = posterior.refine(PARTICLES, 400_000, 1000 + seed, progress=False)
    found = references.moments(
        refined.fields.reshape(PARTICLES, -1), lambda x: x.mean(0), refined.stderr
    )
    show_moments(f"refined ({refined.nfs} nFS)", found, chains.moments)


def show_moments(label: str, found: references.Moments, exact: references.Moments) -> None:
    parts = []
    for what, z, error in zip(
        ("means", "stds"), found.differences(exact), (found.mean_error, found.std_error),
        strict=True,
    ):  # fmt: skip
        shares = [float(np.mean(np.abs(z) > k)) for k in (1, 2, 3)]
        parts.append(
            f"{what} rms {np.sqrt(np.mean(z**2)):.2f}, largest {np.abs(z).max():.1f}, beyond 1, 2, "
            f"3: {shares[0]:.3f} {shares[1]:.3f} {shares[2]:.4f} (standard error "
            f"{np.median(error / found.std):.3f} std)"
        )
    print(f"    {label} against NUTS: " + "; ".join(parts), flush=True)


# --- against tempered SMC from the prior ----------------------------------------------------------

LONG = references.Setting(particles=4096, sweeps=8, leapfrogs=5)
FIRST = references.Setting(particles=2048, sweeps=1, leapfrogs=5)
SAMPLES = 4096  # fields of the model that its moments are estimated from


def show_evidence(posterior: msign.Posterior, runs: int) -> None:
    """The log evidence of long runs of tempered SMC, and msign's."""
    values = []
    for seed in range(runs):
        cloud = references.tempered(posterior.problem, LONG, seed)
        values.append(cloud.log_evidence)
        print(f"    SMC, {LONG}: {cloud_line(cloud)}", flush=True)
    report = posterior.certificate()
    spread = statistics.stdev(values) if runs > 1 else np.nan
    print(
        f"    log Z of {runs} runs {statistics.mean(values):.3f}, spread of single runs "
        f"{spread:.3f}; msign {report.log_evidence:.3f} +- {report.log_evidence_stderr:.3f}",
        flush=True,
    )


def cloud_line(cloud: references.Cloud) -> str:
    return (
        f"log Z {cloud.log_evidence:.3f}, {cloud.temperatures} temperatures, acceptance "
        f"{cloud.acceptance:.2f}, {cloud.nfs:,} nFS, {cloud.seconds:.0f} s, {cloud.cpu:.0f} s cpu"
    )


def show_ratio(
    posterior: msign.Posterior, exact: references.Moments, times: float, seed: int
) -> None:
    """SMC of rising cost until its moments are as good as msign's, or it costs `times` as much.

    As in `time.py`: each level tries twice the particles and twice the trajectories, and goes on
    with the better one. Moments are those of the cells, against NUTS; the error of the log evidence
    is its distance from msign's certificate, or from SMC (`--evidence`), which is no closer.
    """

    def error_of(x: np.ndarray) -> float:
        mean, ratio = (x.mean(0) - exact.mean) / exact.std, x.var(0) / exact.std**2 - 1
        return float(np.sqrt(np.mean([mean**2, ratio**2])))

    report = posterior.certificate()
    batches = [posterior.sample(SAMPLES, 100 + i).reshape(SAMPLES, -1) for i in range(4)]
    own = statistics.mean(error_of(x) for x in batches)
    print(
        f"    msign: moments {own:.4f}, log Z +- {report.log_evidence_stderr:.3f}, "
        f"{posterior.nfs:,} nFS, {posterior.seconds:.0f} s",
        flush=True,
    )
    candidates = [FIRST]
    while candidates:
        runs = []
        for setting in candidates:
            cloud = references.tempered(posterior.problem, setting, seed)
            error = error_of(cloud.fields)
            runs.append((error, cloud.nfs, setting))
            print(
                f"    SMC, {setting}: moments {error:.4f}, log Z off by "
                f"{cloud.log_evidence - report.log_evidence:+.2f}; {cloud_line(cloud)}; over "
                f"msign's: error {error / own:.2f}, nFS {cloud.nfs / posterior.nfs:.1f}, seconds "
                f"{cloud.seconds / posterior.seconds:.2f}",
                flush=True,
            )
        error, nfs, best = min(runs)
        if error <= own or 2 * nfs > times * posterior.nfs:
            break
        candidates = [
            best._replace(particles=2 * best.particles),
            best._replace(sweeps=2 * best.sweeps),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--keep", type=pathlib.Path, help="directory of posteriors and chains")
    parser.add_argument("--refine", action="store_true")
    parser.add_argument("--nuts", action="store_true")
    parser.add_argument("--draws", type=int, default=1500, help="of each NUTS chain")
    parser.add_argument("--evidence", type=int, nargs="?", const=3, default=0, help="runs of SMC")
    parser.add_argument("--smc", action="store_true")
    parser.add_argument("--times", type=float, default=50, help="most simulations of SMC, over nFS")
    options = parser.parse_args()
    for name in options.rows:
        if name not in ROWS:
            parser.error(f"ROW must be one of {', '.join(ROWS)}, got {name!r}")
    print("row, seed: nFS, seconds, J, ESS, k-hat, log Z, modes, truth in 95 percent", flush=True)
    for name in options.rows or ROWS:
        for seed in options.seeds:
            posterior = fitted(name, seed, options.keep)
            show_row(name, seed, posterior)
            if options.refine:
                show_refined(posterior, ROWS[name].refined, seed)
            if options.evidence:
                show_evidence(posterior, options.evidence)
            if options.nuts or options.smc:
                chains = chains_of(name, options.draws, 0, options.keep)
            if options.nuts:
                show_chains(posterior, chains, seed)
            if options.smc:
                show_ratio(posterior, chains.moments, options.times, seed)


def show_row(name: str, seed: int, posterior: msign.Posterior) -> None:
    report, modes = posterior.certificate(), posterior.summary()["mode_fractions"]
    print(
        f"{name}, {seed}: {posterior.nfs} {posterior.seconds:.0f} {report.divergence:.3f} "
        f"{report.ess_fraction:.3f} {report.khat:.2f} {report.log_evidence:.3f} +- "
        f"{report.log_evidence_stderr:.3f} {':'.join(f'{f:.3f}' for f in modes)} "
        f"{covered(posterior):.3f} (wanted {ROWS[name].wanted})",
        flush=True,
    )


def show_refined(posterior: msign.Posterior, budget: int, seed: int) -> None:
    found = posterior.refine(1000, budget, seed=seed, progress=False)
    modes = ":".join(f"{f:.3f}" for f in found.mode_fractions)
    print(
        f"    refined: {found.nfs} {found.seconds:.0f} log Z {found.log_evidence:.3f} "
        f"+- {found.log_evidence_stderr:.3f} acceptance {found.acceptance:.2f} "
        f"temperatures {len(found.temperatures)} {modes} {found.verdict}",
        flush=True,
    )


if __name__ == "__main__":
    main()
