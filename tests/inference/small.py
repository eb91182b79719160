"""Small problems and networks that the tests of inference share."""

import copy
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from helpers import moved, ring, seeded
from msign import FitConfig, InverseProblem, LaplacePrior, MsIGN, Posterior, Simulator
from msign.inference.files import prior_network
from msign.inference.flows import FlowKind, Start
from msign.inference.methods import Stage
from msign.variables import Variables

ROW = LaplacePrior((4,), alpha=0.2, beta=2.0)


def ring_problem(**options: Any) -> InverseProblem:
    """Four cells, two observations, two informed variables, two modes."""
    given = {"noise_std": 0.3, "scales": 1, "name": "ring", **options}
    return InverseProblem(ROW, given.pop("forward", ring), [1.0, 0.1], **given)


def stage_of(start: Variables, simulator: Any, **options: Any) -> Stage:
    """A stage at the first scale."""
    given = {
        "scale": 1,
        "begin": 0,
        "limit": 10**6,
        "round_size": 50,
        "rounds": 4,
        "learning_rate": 1e-3,
        "bridge_ess": 0.25,
        "tolerance": 1e-3,
        "key": jr.key(seeded(0)),
    }
    given |= options
    given.setdefault("first_round", given["round_size"])
    return Stage(start=start, simulator=simulator, **given)


def growing(x: Any) -> Any:
    """The ring of pairs of cells, and a difference that no field of pairs has."""
    coarse = 0.5 * (x[:, ::2] + x[:, 1::2])
    return jnp.concatenate([ring(coarse), 4 * (x[:, 2:3] - x[:, 3:4])], -1)


def growing_problem() -> InverseProblem:
    """Two informed variables on four cells, three on eight."""
    prior = LaplacePrior((8,), alpha=0.2, beta=2.0)
    return InverseProblem(
        prior, growing, [1.0, 0.1, 0.5], noise_std=0.3, scales=2, inflate=0, name="growing"
    )


def linear_problem(prior: Any, m: int, noise: float = 0.3, **options: Any) -> InverseProblem:
    """Some random linear functionals of a field, with the data of a field of the prior."""
    rng = np.random.default_rng(seeded(5))
    weights = jnp.asarray(rng.normal(size=(m, *prior.lattice.field_shape)) / prior.lattice.dim)
    weights = weights / jnp.sqrt(jnp.mean(weights**2)) / prior.lattice.dim

    def forward(x: Any) -> Any:
        return jnp.tensordot(x, weights, axes=([*range(1, x.ndim)],) * 2)

    data = forward(prior.sample(jr.key(seeded(6)), 1))[0] + noise * rng.normal(size=m)
    return InverseProblem(prior, forward, np.asarray(data), noise_std=noise, **options)


def gaussian_posterior(problem: InverseProblem, scale: int) -> tuple[np.ndarray, np.ndarray]:
    """Exact mean and covariance in whitened coordinates, of a linear problem."""
    d = problem.priors[scale - 1].lattice.dim
    simulator = Simulator(problem)
    at_zero = simulator.evaluate(np.zeros((1, d)), scale).features
    slope = (at_zero - simulator.evaluate(np.eye(d), scale).features).T  # (m, d), noise is one
    covariance = np.linalg.inv(np.eye(d) + slope.T @ slope)
    return covariance @ slope.T @ at_zero[0], covariance


def gaussian_log_ratio(problem: InverseProblem, scale: int, u: np.ndarray) -> np.ndarray:
    """Exact log posterior - log prior of a linear problem."""
    mean, covariance = gaussian_posterior(problem, scale)
    away = np.asarray(u) - mean
    quadratic = np.einsum("ni,ij,nj->n", away, np.linalg.inv(covariance), away)
    return 0.5 * (np.sum(np.asarray(u) ** 2, 1) - quadratic - np.linalg.slogdet(covariance)[1])


def exact_ess(
    posterior: Posterior, u: np.ndarray, log_q: np.ndarray, weights: np.ndarray | None = None
) -> float:
    """Effective sample size of one draw of a model p, 1 / E_q[q/p], by draws of its posterior q.

    It sees what no draw of the model visits. By it, not by the model's own weights, errors of
    weighted averages are known, however far training got.

    Args:
        posterior: The model.
        u: Draws of q, or of any density if they have weights, in whitened coordinates.
        log_q: Exact log q - log prior of them.
        weights: Proportional to q over the density of the draws; None: they are of q.
    """
    return float(1 / np.average(np.exp(log_q - posterior.log_ratio(u)), weights=weights))


def with_data(problem: InverseProblem, data: np.ndarray) -> InverseProblem:
    """The same problem with other data, sharing all compiled code (data enter it as arguments)."""
    other = copy.copy(problem)
    vars(other).pop("likelihood", None)
    vars(other)["data"] = np.asarray(data)
    return other


def inflated(problem: InverseProblem, draws: int) -> InverseProblem:
    """The same problem with inflated noise at its coarse scales, sharing all compiled code."""
    other = copy.copy(problem)
    vars(other)["inflate"] = draws
    return other


def start_at(
    network: MsIGN,
    scale: int,
    kind: FlowKind,
    problem: InverseProblem,
    train: str = "all",
    seed: int = 0,
    allowance: int = 600,
) -> MsIGN:
    """The network with F_l as a stage starts it."""
    key = jr.key(seeded(seed))
    given = Start(network, scale, Simulator(problem), allowance, train, 1e-3, key)
    return network.with_flow(scale, kind.start(given))


def started(problem: InverseProblem, kind: FlowKind, train: str = "all", by: float = 0.1) -> MsIGN:
    """A network with flows at every scale, each moved at random off its start."""
    network = prior_network(problem, FitConfig(flow=kind))
    for scale in range(1, problem.scales + 1):
        network = start_at(network, scale, kind, problem, train, scale)
        flow = moved(network.flows[scale - 1], by, seed=scale)
        network = eqx.tree_at(lambda n, l=scale: n.flows[l - 1], network, flow)
    return network
