"""`msign reference`: a trained posterior against long exact chains, where no exact samples exist.

Two references that do not share their errors: independence Metropolis with the trained model as
proposal, and gradient-informed chains started at one maximum, to which the problem's symmetry adds
their mirror images. Moments are compared along the prior's leading eigenvectors.
"""

from typing import Any, NamedTuple

import numpy as np

from msign import checks
from msign.diagnostics.chains import run_chains
from msign.diagnostics.maximum import find_maxima
from msign.experiments.capture import leading_eigenvectors
from msign.inference import Posterior
from msign.noise import as_array
from msign.problems import InverseProblem, Simulator
from msign.weights import normalised

BATCHES = 20  # of consecutive Metropolis states, whose spread gives the errors
BURN_IN = 100  # Metropolis states that are left out


class Moments(NamedTuple):
    """Means and standard deviations `(k,)` of some coordinates, with their standard errors."""

    mean: np.ndarray
    mean_error: np.ndarray
    std: np.ndarray
    std_error: np.ndarray


class Comparison(NamedTuple):
    """Moments by all methods, and what the references cost.

    Attributes:
        moments: By name: `chains`, `metropolis`, `flow`, `flow weighted`.
        acceptance: Of the chains and of independence Metropolis.
        simulations: Of both references together.
    """

    moments: dict[str, Moments]
    acceptance: tuple[float, float]
    simulations: int


def compare(
    posterior: Posterior, chains: int = 96, steps: int = 2000, n: int = 20_000, seed: int = 11
) -> Comparison:
    """Moments of a posterior along the prior's leading eigenvectors, against both references."""
    checks.integer("n", n, 2 * BATCHES)
    problem, scale = posterior.problem, posterior.scale
    if problem.symmetry is None:
        raise ValueError("problem must have a symmetry for mirrored chains, it has none")
    leading = leading_eigenvectors(problem.priors[scale - 1])
    simulator = Simulator(problem)
    long, acceptance = _chains(posterior, simulator, chains, steps, seed)
    mirrored = np.concatenate([long, _mirrored(problem, scale, long)], 1)
    u, log_weights = posterior.importance(n, seed)
    exact = posterior.metropolis(n, seed + 1, BURN_IN)
    simulations = simulator.nfs + n + (n + BURN_IN)
    prior = problem.priors[scale - 1]
    states = np.asarray(prior.whiten(as_array(exact.fields)))
    weights = normalised(log_weights)
    # Chains and batches of consecutive states are the units over which errors are estimated.
    groups = {
        "chains": _by_chain(mirrored[..., leading], chains),
        "metropolis": states[: n - n % BATCHES, leading].reshape(BATCHES, -1, len(leading)),
    }
    moments = {name: _grouped(g) for name, g in groups.items()}
    moments["flow"] = _weighted(u[:, leading], np.full(n, 1 / n))
    moments["flow weighted"] = _weighted(u[:, leading], weights)
    return Comparison(moments, (acceptance, exact.acceptance), simulations)


def _chains(
    posterior: Posterior, simulator: Simulator, chains: int, steps: int, seed: int
) -> tuple[np.ndarray, float]:
    if posterior.basis is None:
        raise ValueError("posterior must have an informed flow for this reference")
    problem, scale = posterior.problem, posterior.scale
    top = find_maxima(problem, scale, starts=4, seed=seed, simulator=simulator)[0]
    u, _ = posterior.whitened_samples(2000, seed)
    basis = np.asarray(posterior.basis, np.float64)
    near = u[np.sum((u - top.u) ** 2, 1) < np.median(np.sum((u - top.u) ** 2, 1))]
    covariance = np.cov((near @ basis).T) + 1e-8 * np.eye(basis.shape[1])
    start = np.broadcast_to(top.u, (chains, len(top.u)))
    found = run_chains(
        problem, start, basis, covariance, steps, seed=seed, scale=scale, simulator=simulator
    )
    return found.u, found.acceptance


def _mirrored(problem: InverseProblem, scale: int, u: np.ndarray) -> np.ndarray:
    assert problem.symmetry is not None
    prior = problem.priors[scale - 1]
    parts = []
    for states in u:
        fields = problem.symmetry(np.asarray(prior.unwhiten(as_array(states))))
        parts.append(np.asarray(prior.whiten(as_array(np.ascontiguousarray(fields)))))
    return np.stack(parts)


def _by_chain(states: np.ndarray, chains: int) -> np.ndarray:
    """States `(kept, 2 chains, k)` as `(chains, states, k)`: a chain goes with its mirror image."""
    both = np.stack([states[:, :chains], states[:, chains:]], 2)
    return both.transpose(1, 0, 2, 3).reshape(chains, -1, states.shape[-1])


def _grouped(groups: np.ndarray) -> Moments:
    """Moments of `(g, n, k)` states, errors from the spread between the g groups."""
    mean = groups.mean((0, 1))
    second = ((groups - mean) ** 2).mean(1)
    variance, count = second.mean(0), len(groups)
    std = np.sqrt(variance)
    mean_error = groups.mean(1).std(0, ddof=1) / np.sqrt(count)
    return Moments(mean, mean_error, std, second.std(0, ddof=1) / np.sqrt(count) / (2 * std))


def _weighted(values: np.ndarray, weights: np.ndarray) -> Moments:
    """Moments of independent values with self-normalised weights, and their errors."""
    mean = weights @ values
    squares = (values - mean) ** 2
    variance = weights @ squares
    std = np.sqrt(variance)
    mean_error = np.sqrt(weights**2 @ squares)
    std_error = np.sqrt(weights**2 @ (squares - variance) ** 2) / (2 * std)
    return Moments(mean, mean_error, std, std_error)


def deviations(a: Moments, b: Moments) -> tuple[np.ndarray, np.ndarray]:
    """Differences of means and of standard deviations in units of their Monte Carlo error."""
    means = (a.mean - b.mean) / np.hypot(a.mean_error, b.mean_error)
    return means, (a.std - b.std) / np.hypot(a.std_error, b.std_error)


def comparison_lines(found: Comparison) -> list[str]:
    """The comparison for people, line by line; all in units of the prior's standard deviations."""
    names = list(found.moments)
    lines = [
        f"acceptance of the chains {found.acceptance[0]:.2f}, of independence Metropolis "
        f"{found.acceptance[1]:.2f}; {found.simulations} simulations",
        "eigenvector  " + "  ".join(f"{name + ' mean, std':>22s}" for name in names),
    ]
    for k in range(len(found.moments["chains"].mean)):
        cells = [
            f"{m.mean[k]:+.3f}({1e3 * m.mean_error[k]:2.0f}) "
            f"{m.std[k]:.3f}({1e3 * m.std_error[k]:2.0f})"
            for m in found.moments.values()
        ]
        lines.append(f"{k + 1:11d}  " + "  ".join(f"{c:>22s}" for c in cells))
    lines.append("(in brackets: one standard error of the last digits)")
    for name in names[1:]:
        mean, std = deviations(found.moments[name], found.moments["chains"])
        lines.append(
            f"{name:14s} against chains: at most {np.abs(mean).max():.1f} standard errors of "
            f"a mean, {np.abs(std).max():.1f} of a std; root mean square "
            f"{np.sqrt((mean**2).mean()):.2f}, {np.sqrt((std**2).mean()):.2f}"
        )
    return lines


def as_json(found: Comparison) -> dict[str, Any]:
    """The comparison as plain JSON values."""
    moments = {
        name: {field: getattr(m, field).tolist() for field in Moments._fields}
        for name, m in found.moments.items()
    }
    return {
        "moments": moments,
        "acceptance": list(found.acceptance),
        "simulations": found.simulations,
    }
