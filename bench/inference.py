"""What `fit` reaches, with the figures of the engine before the rebuild beside the new ones.

    python bench/inference.py [CASE ...] [--out DIR]

Every case but `linear` is a call of `msign run` in a process of its own. The synthetic problem's
summary compares with exact samples and exact evidence; that of the elliptic one has only its own
importance weights. `linear` is a blurring operator with closed-form posterior. Prints one line a
case and, below it, what the engine before the rebuild had (commit 8e536d9, docs/results.md there);
`peak` is the largest memory of the process.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import time
from typing import NamedTuple


class Case(NamedTuple):
    """Arguments of `msign run`, and nFS, seconds, J, ESS and k-hat of the engine before."""

    arguments: list[str]
    before: tuple[int, int, float, float, float] | None = None


def synthetic(*arguments: str, before: tuple[int, int, float, float, float]) -> Case:
    return Case(["synthetic", *arguments], before)


CASES = {
    "headline 0": synthetic("--seed", "0", before=(99_612, 77, 0.0012, 0.999, 0.45)),
    "headline 1": synthetic("--seed", "1", before=(115_612, 87, 0.0006, 1.000, 0.21)),
    "headline 2": synthetic("--seed", "2", before=(131_612, 121, 0.0001, 1.000, 0.22)),
    "20,000 nFS 0": synthetic(
        "--seed", "0", "--budget", "20000", before=(19_950, 122, 0.0018, 0.999, 1.04)
    ),
    "20,000 nFS 1": synthetic(
        "--seed", "1", "--budget", "20000", before=(18_888, 78, 0.0012, 0.998, 0.61)
    ),
    "20,000 nFS 2": synthetic(
        "--seed", "2", "--budget", "20000", before=(17_516, 61, 0.0022, 0.998, 0.60)
    ),
    "gamma 0.05 0": synthetic(
        "--seed", "0", "--gamma", "0.05", before=(323_612, 348, 0.0007, 0.994, 0.56)
    ),
    "gamma 0.05 1": synthetic(
        "--seed", "1", "--gamma", "0.05", before=(355_612, 349, 0.055, 0.997, 0.33)
    ),
    "gamma 0.05 2": synthetic(
        "--seed", "2", "--gamma", "0.05", before=(359_612, 337, 0.0019, 0.997, 0.37)
    ),
    "tilt 0.3": synthetic("--tilt", "0.3", before=(231_612, 160, 0.0002, 1.000, 0.78)),
    "black box": synthetic("--black-box", before=(239_032, 434, -0.0001, 1.000, 0.59)),
    "256x256": synthetic("--size", "256", before=(112_816, 284, 0.0002, 1.000, 0.47)),
    "elliptic 0": Case(["elliptic", "--seed", "0"], (337_478, 1035, 0.332, 0.71, 0.36)),
    "elliptic 1": Case(["elliptic", "--seed", "1"], (357_538, 1495, 0.341, 0.72, 0.23)),
    "elliptic 2": Case(["elliptic", "--seed", "2"], (325_538, 1119, 0.353, 0.71, 0.22)),
    "linear": Case([], (16_430, 47, 0.0, 1.000, -float("inf"))),
}


def linear(observations: int) -> dict:
    """A Gaussian blur of a 32x32 field seen at random points, against the closed form."""
    import jax.numpy as jnp
    import numpy as np

    import msign
    from msign.weights import weight_report

    size, noise = 32, 0.1
    prior = msign.LaplacePrior((size, size), alpha=0.5, beta=3.0)
    rng = np.random.default_rng(0)
    s = (np.arange(size) + 0.5) / size
    points = rng.uniform(0.1, 0.9, (observations, 2))
    kernels = [np.exp(-((s - p) ** 2) / (2 * 0.05**2)) for p in points.reshape(-1)]
    blur = np.stack([np.outer(a, b) for a, b in zip(kernels[::2], kernels[1::2], strict=True)])
    blur /= blur.sum((1, 2), keepdims=True)
    root = np.asarray(prior.unwhiten(jnp.eye(size**2)), np.float64).reshape(size**2, -1)
    slope = blur.reshape(observations, -1) @ root.T / noise
    truth = rng.normal(size=size**2)
    data = noise * (slope @ truth + rng.normal(size=observations))
    problem = msign.InverseProblem(
        prior,
        lambda x: jnp.einsum("nij,mij->nm", x, jnp.asarray(blur, x.dtype)),
        data,
        noise,
        name=f"blur, {observations} observations",
    )
    posterior = msign.fit(problem, 50_000, seed=0)
    covariance = np.linalg.inv(np.eye(size**2) + slope.T @ slope)
    mean = covariance @ slope.T @ (data / noise)
    fields = posterior.sample(20_000, seed=1).reshape(20_000, -1)
    exact_mean, exact_std = mean @ root, np.sqrt(np.diag(root.T @ covariance @ root))
    # Exact samples on the other side of the divergence, and the exact evidence.
    exact = mean + rng.normal(size=(5000, size**2)) @ np.linalg.cholesky(covariance).T
    residual = data / noise
    gram = np.eye(observations) + slope @ slope.T
    log_z = -0.5 * residual @ np.linalg.solve(gram, residual) - 0.5 * np.linalg.slogdet(gram)[1]
    own, own_ratio = posterior.whitened_samples(5000, seed=2)
    simulator, exact = msign.Simulator(problem), exact.astype(np.float32)
    there = simulator.evaluate(exact, problem.scales).log_likelihood - log_z
    here = simulator.evaluate(own, problem.scales).log_likelihood - log_z
    reverse, forward = own_ratio - here, there - posterior.log_ratio(exact)
    summary = posterior.summary()
    summary |= {
        "jeffreys": float(reverse.mean() + forward.mean()),
        "jeffreys_stderr": float(np.sqrt((reverse.var() + forward.var()) / 5000)),
        "log_evidence_exact": float(log_z),
        "mean_error": float(np.abs(fields.mean(0) - exact_mean).max() / exact_std.min()),
        "std_error": float(np.abs(fields.std(0) / exact_std - 1).max()),
        "worst": weight_report(-reverse).worst,
    }
    return summary


def run(name: str, out: pathlib.Path) -> tuple[dict, int]:
    """Summary and peak memory in kilobytes of one `msign run`."""
    folder = out / name.replace(" ", "_").replace(",", "")
    command = [str(pathlib.Path(sys.executable).with_name("msign")), "run"]
    command += [*CASES[name].arguments, "--out", str(folder), "--overwrite"]
    with open(out / f"{folder.name}.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} failed, see {log.name}")
    return json.loads((folder / "summary.json").read_text()), usage.ru_maxrss


def line(name: str, s: dict, seconds: float, peak: float) -> str:
    modes = ":".join(f"{m:.3f}" for m in s["mode_fractions"])
    weighted = ":".join(f"{m:.3f}" for m in s["mode_fractions_weighted"])
    error = ""
    if "log_evidence_exact" in s:
        sigmas = (s["log_evidence"] - s["log_evidence_exact"]) / s["log_evidence_stderr"]
        error = f"{sigmas:.1f}"
    extra = ""
    if "mean_error" in s:
        extra = f"  mean within {s['mean_error']:.3f} std, std within {100 * s['std_error']:.1f}%"
    text = (
        f"{name:14s} {s['nfs']:7d} {s['seconds']:6.0f} {seconds:6.0f} {peak:5.1f} "
        f"{s['jeffreys']:8.4f} +- {s['jeffreys_stderr']:.4f} {s['jeffreys_estimated']:8.4f} "
        f"{s['ess_fraction']:6.3f} {s['khat']:6.2f} {error:>6s}  {modes} {weighted}{extra}"
    )
    if CASES[name].before is None:
        return text
    nfs, fit, jeffreys, ess, khat = CASES[name].before
    return text + (
        f"\n{'  before':14s} {nfs:7d} {fit:6d} {'':12s} {jeffreys:8.4f} {'':18s} {ess:6.3f} "
        f"{khat:6.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/bench"))
    parser.add_argument("--observations", type=int, default=30, help="of the case `linear`")
    options = parser.parse_args()
    for name in options.cases:
        if name not in CASES:
            parser.error(f"CASE must be one of {', '.join(CASES)}, got {name!r}")
    options.out.mkdir(parents=True, exist_ok=True)
    print(
        "case               nFS    fit  total  peak  Jeffreys           estimated    ESS  k-hat  "
        "log Z  modes, weighted\n"
        "                         sec    sec    GB                                            "
        "sigmas",
        flush=True,
    )
    for name in options.cases or CASES:
        began = time.monotonic()
        if not CASES[name].arguments:
            summary = linear(options.observations)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        else:
            summary, peak = run(name, options.out)
        print(line(name, summary, time.monotonic() - began, peak / 2**20), flush=True)


if __name__ == "__main__":
    main()
