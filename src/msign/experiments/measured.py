"""What is said of a method's samples in the tables and figures of a comparison."""

import time
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from msign.diagnostics import jeffreys_against, moment_errors
from msign.diagnostics.judge import judge
from msign.experiments.critical import Critical
from msign.inference import Posterior
from msign.noise import as_array
from msign.problems import InverseProblem, Simulator
from msign.samplers import Samples
from msign.samplers.base import Cost
from msign.samplers.effective import effective_samples

DIGITS = 5  # of values along the critical direction that are kept


def own_samples(posterior: Posterior, scale: int, n: int) -> Samples:
    """Samples of what stage l left, and what all stages up to it cost; n weights are counted."""
    stage, began = posterior.stage(scale), time.perf_counter()
    u, log_ratio = stage.whitened_samples(n, posterior.seed)
    simulator = Simulator(posterior.problem)
    log_weights = simulator.evaluate(u, scale).log_likelihood - log_ratio
    drawing = time.perf_counter() - began
    spent = [s for s in posterior.stages if s["scale"] <= scale]
    nfs, seconds = sum(s["nfs"] for s in spent), sum(s["seconds"] for s in spent)
    if scale == posterior.problem.scales:
        nfs, seconds = posterior.nfs, posterior.seconds
    return Samples(
        fields=np.asarray(stage.prior.unwhiten(as_array(u))),
        u=u,
        nfs=nfs + n,
        seconds=seconds + drawing,
        trained=Cost(nfs, seconds),
        log_weights=log_weights,
        log_ratio=stage.log_ratio,
        log_evidence=stage.certificate().log_evidence,
        information={"verdict": stage.certificate().verdict},
    )


def measured(
    problem: InverseProblem, scale: int, samples: Samples, critical: Critical
) -> dict[str, Any]:
    """All that is said of samples in tables and figures."""
    values = critical.values(samples.u)
    judgement, marginal = judge(values, critical.marginal), critical.marginal
    groups = samples.chain if samples.chain is not None else samples.family
    worth = effective_samples(values, marginal.trough, groups, samples.log_weights)
    if worth is not None and judgement.modes < len(marginal.shares):
        worth = min(worth, 1.0)
    row = {
        **judgement._asdict(),
        "nfs": samples.nfs,
        "seconds": samples.seconds,
        "effective": worth,
        **efficiency(samples, worth),
        "log_evidence": samples.log_evidence,
        "information": samples.information,
        "values": np.round(values, DIGITS).tolist(),
    }
    if problem.reference is not None:
        prior: Any = problem.priors[scale - 1]  # a spectral one, where moments are known
        std = np.asarray(prior.std, np.float64).reshape(-1)
        moments = problem.reference.moments(scale)
        row["rmse"] = moment_errors(jnp.asarray(samples.u), std, *moments)
        row["log_evidence_exact"] = problem.reference.log_evidence(scale)
        if samples.log_ratio is not None:
            row["jeffreys"] = jeffreys(problem, scale, samples)
    return row


def efficiency(samples: Samples, worth: float | None) -> dict[str, float | None]:
    """Effective samples per 1000 simulations and per second, training included and after it."""
    names = ("per_1000", "per_second", "per_1000_trained", "per_second_trained")
    if worth is None or not samples.nfs:
        return dict.fromkeys(names)
    whole = [1000 * worth / samples.nfs, worth / max(samples.seconds, 1e-9)]
    after: list[float | None] = [None, None]
    if samples.trained is not None and samples.nfs > samples.trained.nfs:
        seconds = samples.seconds - samples.trained.seconds
        after[0] = 1000 * worth / (samples.nfs - samples.trained.nfs)
        after[1] = worth / seconds if seconds > 0 else None
    return dict(zip(names, [*whole, *after], strict=True))


def jeffreys(problem: InverseProblem, scale: int, samples: Samples) -> dict[str, float]:
    """Divergence between a method's density and the exact posterior, where both are known."""
    assert samples.log_ratio is not None
    log_z, simulator = problem.reference.log_evidence(scale), Simulator(problem)
    exact = problem.reference.sample(jr.key(7), len(samples.u), scale)
    own = samples.log_ratio(samples.u) - simulator.evaluate(samples.u, scale).log_likelihood + log_z
    there = simulator.evaluate(exact, scale).log_likelihood - log_z - samples.log_ratio(exact)
    return jeffreys_against(own, there)
