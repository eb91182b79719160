"""Errors of a posterior against an exact reference (paper, section 6.1.1)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from msign.problems import Simulator

VALUES_AT_ONCE = 2**26  # of fields compared at a time


def moment_errors(
    u: Array, std: np.ndarray, exact_mean: np.ndarray, exact_std: np.ndarray
) -> dict[str, float]:
    """Root mean square errors over all one-dimensional sub-distributions <w_k, x>.

    Args:
        u: Samples in whitened coordinates `(n, d)`, each along one w_k.
        std: Prior standard deviations of the coordinates <w_k, x>.
        exact_mean: Exact means in whitened coordinates; the sub-distributions are independent.
        exact_std: Exact standard deviations in whitened coordinates.

    Returns:
        `mean`, `std` and `correlation`.
    """
    samples = np.asarray(u)
    mean, spread = samples.mean(0, dtype=np.float64), samples.std(0, ddof=1, dtype=np.float64)
    standardised = (samples - mean.astype(samples.dtype)) / spread.astype(samples.dtype)
    correlation = _correlation_error(jnp.asarray(standardised))
    return {
        "mean": _rms((mean - exact_mean) * std),
        "std": _rms((spread - exact_std) * std),
        "correlation": float(correlation),
    }


def jeffreys_against(log_ratio_model: np.ndarray, log_ratio_exact: np.ndarray) -> dict[str, float]:
    """Both divergences from log p/q at samples of the model and log q/p at exact samples."""
    reverse, forward = (np.asarray(a, np.float64) for a in (log_ratio_model, log_ratio_exact))
    variance = reverse.var(ddof=1) / len(reverse) + forward.var(ddof=1) / len(forward)
    return {
        "reverse_kl": float(reverse.mean()),
        "forward_kl": float(forward.mean()),
        "jeffreys": float(reverse.mean() + forward.mean()),
        "jeffreys_stderr": float(np.sqrt(variance)),
        "worst_log_ratio": float(max(reverse.max(), forward.max())),
    }


def evaluate_against_reference(
    posterior: Any, n: int = 5000, moment_samples: int = 2500, seed: int = 1
) -> dict[str, Any]:
    """Compare a posterior with `problem.reference`; for evaluation only."""
    problem, reference = posterior.problem, posterior.problem.reference
    simulator = Simulator(problem)  # the posterior's own count does not change
    key = jax.random.key(seed)
    scale = problem.scales
    log_z = reference.log_evidence()
    at_own, at_exact = [], []
    size = min(n, max(1, VALUES_AT_ONCE // problem.dim))
    for part in range(0, n, size):
        own, log_ratio = posterior.whitened_samples(min(size, n - part), seed + 1000 * part)
        at_own.append(log_ratio - simulator.evaluate(own, scale).log_likelihood + log_z)
        exact = reference.sample(jax.random.fold_in(key, part), min(size, n - part))
        there = simulator.evaluate(exact, scale).log_likelihood - log_z
        at_exact.append(there - posterior.log_ratio(exact))
    result: dict[str, Any] = jeffreys_against(np.concatenate(at_own), np.concatenate(at_exact))
    result["samples_each_way"] = n
    result["jeffreys_prior"] = reference.prior_jeffreys()
    result["jeffreys_proposal"] = reference.proposal_jeffreys()
    result["log_evidence_exact"] = log_z
    result["mode_fractions_exact"] = list(reference.mode_fractions())
    result["rmse"] = {}
    # With inflated noise the target of a coarse stage is another than the reference knows.
    for l in (l for l in posterior.scales if l == scale or not problem.inflate):
        mean, spread = reference.moments(l)
        std = np.asarray(problem.priors[l - 1].std, np.float64).reshape(-1)
        floor = reference.sample(jax.random.fold_in(key, 10**6 + l), moment_samples, l)
        trained = posterior.stage(l).whitened_samples(moment_samples, seed)[0]
        result["rmse"][str(l)] = {
            "msign": moment_errors(trained, std, mean, spread),
            "exact samples": moment_errors(floor, std, mean, spread),
        }
    return result


@jax.jit
def _correlation_error(standardised: Array) -> Array:
    """Root mean square of the off-diagonal entries of C = Z^T Z / n, Z `(n, d)`.

    The squared Frobenius norm of C is that of Z Z^T / n, the smaller matrix where d > n.
    """
    n, d = standardised.shape
    z = standardised if d <= n else standardised.T
    product = z.T @ z / n
    diagonal = jnp.mean(standardised**2, 0)
    total = jnp.sum(product**2) - jnp.sum(diagonal**2)
    return jnp.sqrt(total / float(max(d * (d - 1), 1)))


def _rms(a: np.ndarray) -> float:
    return float(np.sqrt(np.mean(a**2)))
