"""What `fit` reaches on problems whose posterior is known, one process after another.

    python bench/inference.py [CASE ...] [--out DIR]

Every case but `linear` is a call of `msign run synthetic`, whose summary compares with exact
samples and exact evidence. `linear` is a blurring operator with closed-form posterior. Prints one
line a case; `peak` is the largest memory of the process.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

HEADLINE = {f"headline {s}": ["--seed", str(s)] for s in range(3)}
SMALL = {f"20,000 nFS {s}": ["--seed", str(s), "--budget", "20000"] for s in range(3)}
SHARP = {f"gamma 0.05 {s}": ["--seed", str(s), "--gamma", "0.05"] for s in range(3)}
CASES = {
    **HEADLINE,
    **SMALL,
    **SHARP,
    "tilt 0.3": ["--tilt", "0.3"],
    "black box": ["--black-box"],
    "linear": None,
    "256x256": ["--size", "256"],
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
    own, own_excess = posterior.whitened_samples(5000, seed=2)
    there = problem.evaluate(exact.astype(np.float32), problem.scales).log_likelihood - log_z
    here = problem.evaluate(own, problem.scales).log_likelihood - log_z
    reverse, forward = own_excess - here, there - posterior.excess(exact.astype(np.float32))
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
    command = [str(pathlib.Path(sys.executable).with_name("msign")), "run", "synthetic"]
    command += [*CASES[name], "--out", str(folder), "--overwrite"]
    with open(out / f"{folder.name}.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} failed, see {log.name}")
    return json.loads((folder / "summary.json").read_text()), usage.ru_maxrss


def line(name: str, s: dict, seconds: float, peak: float) -> str:
    modes = ":".join(f"{m:.3f}" for m in s["mode_fractions"])
    weighted = ":".join(f"{m:.3f}" for m in s["mode_fractions_weighted"])
    error = (s["log_evidence"] - s["log_evidence_exact"]) / s["log_evidence_stderr"]
    extra = (
        ""
        if "mean_error" not in s
        else (f"  mean within {s['mean_error']:.3f} std, std within {100 * s['std_error']:.1f}%")
    )
    return (
        f"{name:14s} {s['nfs']:7d} {s['seconds']:6.0f} {seconds:6.0f} {peak:5.1f} "
        f"{s['jeffreys']:8.4f} +- {s['jeffreys_stderr']:.4f} {s['jeffreys_estimated']:8.4f} "
        f"{s['ess_fraction']:6.3f} {s['khat']:6.2f} {error:6.1f}  {modes} {weighted}{extra}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], default=list(CASES))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/bench"))
    parser.add_argument("--observations", type=int, default=30, help="of the case `linear`")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print(
        "case               nFS    fit  total  peak  Jeffreys (exact)  estimated    ESS  k-hat  "
        "log Z  modes, weighted\n"
        "                         sec    sec    GB                                            "
        "sigmas"
    )
    for name in options.cases:
        began = time.monotonic()
        if CASES[name] is None:
            summary = linear(options.observations)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        else:
            summary, peak = run(name, options.out)
        print(line(name, summary, time.monotonic() - began, peak / 2**20), flush=True)


if __name__ == "__main__":
    main()
