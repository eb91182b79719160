"""A posterior for other tools: ArviZ's groups of labelled arrays, and statistics with coordinates.

Cells are labelled by their centres `s1`, `s2`, `s3` in the unit cube, channels by their number.
"""

import warnings
from typing import TYPE_CHECKING, Any

import jax.random as jr
import numpy as np
from scipy.special import logsumexp

from msign import checks
from msign.lattice import Lattice
from msign.problems.simulator import Simulator
from msign.problems.workers import opened
from msign.weights import WeightReport

if TYPE_CHECKING:
    import xarray as xr

    from msign.inference.posterior import Posterior

AXES = ("s1", "s2", "s3")
CHAINS = (4, 3, 2)  # draws are independent: any division is as good, diagnostics want several
LEAST_DRAWS = 4  # of a chain, below which diagnostics refuse
PRIOR_KEY, NOISE_SEEDS = 19, (1, 2)  # apart from those of samples


def to_arviz(
    posterior: "Posterior", n: int, seed: int, simulate: bool, executor: Any = None
) -> Any:
    """Samples and all that belongs to them; see `Posterior.to_arviz`."""
    checks.integer("n", n, 1)
    lattice, problem = posterior.prior.lattice, posterior.problem
    drawn = posterior.draws(n, seed)
    key = jr.fold_in(jr.key(seed), PRIOR_KEY)
    from_prior = np.asarray(posterior.prior.sample(key, n))
    groups = {
        "posterior": {"x": _field(drawn.fields, lattice)},
        "sample_stats": {"lp": _by_draw(drawn.log_prob)},
        "prior": {"x": _field(from_prior, lattice)},
    }
    if problem.has_observations and len(problem.data):
        groups["observed_data"] = {"y": _labelled(problem.data, ("observation",))}
    if simulate:
        with opened(executor) as workers:
            simulator = Simulator(problem, executor=workers)
            found = simulator.observe(drawn.fields, posterior.scale)
            _add_weights(groups, posterior, simulator, found, drawn.log_ratio)
            if problem.has_observations:
                prior_found = simulator.observe(from_prior, posterior.scale)
                _add_predictive(groups, posterior, found, prior_found, seed)
    report = posterior.certificate()
    return _as_inference_data(groups, _attributes(posterior, report))


def statistic(posterior: "Posterior", values: np.ndarray, *leading: tuple[str, Any]) -> Any:
    """A statistic of fields as an `xarray.DataArray` with the coordinates of the lattice."""
    lattice = posterior.prior.lattice
    names = tuple(name for name, _ in leading) + _axes(lattice)
    return _labelled(values, names, {**dict(leading), **_coordinates(lattice)}, "x")


# --- groups ---------------------------------------------------------------------------------------


def _add_weights(
    groups: dict[str, dict[str, Any]],
    posterior: "Posterior",
    simulator: Simulator,
    predicted: np.ndarray,
    log_ratio: np.ndarray,
) -> None:
    """Log-likelihoods, and importance weights of sum one."""
    problem, likelihood = posterior.problem, simulator.likelihood(posterior.scale)
    with np.errstate(all="ignore"):
        total = np.asarray(likelihood.log_likelihood(likelihood.features(predicted)))
    total = np.where(np.isfinite(total), total, -np.inf)
    log_weights = total - log_ratio
    stats = groups["sample_stats"]
    stats["log_likelihood"] = _by_draw(total)
    stats["log_weight"] = _by_draw(log_weights - logsumexp(log_weights))
    each = None
    if problem.has_observations:
        each = problem.family.log_prob_of_each(predicted, problem.data)
    if each is not None:
        groups["log_likelihood"] = {"y": _by_draw(each, ("observation",))}


def _add_predictive(
    groups: dict[str, dict[str, Any]],
    posterior: "Posterior",
    predicted: np.ndarray,
    from_prior: np.ndarray,
    seed: int,
) -> None:
    """Predictions, and data drawn given them where it is known how."""
    named = {"posterior_predictive": predicted, "prior_predictive": from_prior}
    for (name, values), own in zip(named.items(), NOISE_SEEDS, strict=True):
        groups[name] = {"predicted": _by_draw(values, ("observation",))}
        drawn = posterior.problem.family.draw(values, np.random.default_rng((seed, own)))
        if drawn is not None:
            groups[name]["y"] = _by_draw(drawn, ("observation",))


def _attributes(posterior: "Posterior", report: WeightReport) -> dict[str, Any]:
    """What a reader of the file wants to know of the run."""
    return {
        "problem": posterior.problem.name,
        "inference_library": "msign",
        "scale": posterior.scale,
        "nfs": posterior.nfs,
        "verdict": report.verdict,
        "ess_fraction": float(report.ess_fraction),
    }


def _as_inference_data(groups: dict[str, dict[str, Any]], attributes: dict[str, Any]) -> Any:
    """`InferenceData` of ArviZ 0.x, `xarray.DataTree` where ArviZ is 1.x."""
    import xarray as xr

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)  # of ArviZ 0.x about 1.x
        import arviz as az

    sets: dict[str, Any] = {
        name: xr.Dataset(group, attrs=attributes) for name, group in groups.items()
    }
    if az.__version__.startswith("0."):
        return az.InferenceData(**sets)
    return xr.DataTree.from_dict({f"/{name}": group for name, group in sets.items()})


# --- labels ---------------------------------------------------------------------------------------


def _axes(lattice: Lattice) -> tuple[str, ...]:
    return AXES[: len(lattice.shape)] + (() if lattice.channels is None else ("channel",))


def _coordinates(lattice: Lattice) -> dict[str, np.ndarray]:
    """Centres of the cells in the unit cube."""
    return {
        name: (np.arange(side) + 0.5) / side
        for name, side in zip(AXES, lattice.shape, strict=False)
    }


def _field(values: np.ndarray, lattice: Lattice) -> "xr.DataArray":
    return _by_draw(values, _axes(lattice), _coordinates(lattice))


def _by_draw(
    values: np.ndarray, axes: tuple[str, ...] = (), coordinates: dict[str, Any] | None = None
) -> "xr.DataArray":
    """Values `(n, ...)` of draws, in chains."""
    n = len(values)
    chains = next((c for c in CHAINS if n % c == 0 and n // c >= LEAST_DRAWS), 1)
    divided = values.reshape(chains, n // chains, *values.shape[1:])
    return _labelled(divided, ("chain", "draw", *axes), coordinates)


def _labelled(
    values: np.ndarray,
    names: tuple[str, ...],
    coordinates: dict[str, Any] | None = None,
    name: str | None = None,
) -> "xr.DataArray":
    """An array whose axes have names and labels: numbers, where none are given."""
    import xarray as xr

    labels = {axis: np.arange(k) for axis, k in zip(names, values.shape, strict=True)}
    return xr.DataArray(values, {**labels, **(coordinates or {})}, names, name)
