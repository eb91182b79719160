"""A mixture of Laplace approximations, one at every maximum that many ascents find."""

import dataclasses
from typing import NamedTuple

import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from msign import checks
from msign.inference.flows.gaussian import ascend, log_density_and_gradient, nearest_gaussian
from msign.noise import default_dtype, generator
from msign.problems import InverseProblem, Simulator
from msign.problems.data_likelihood import DataLikelihood
from msign.samplers.base import Drawn, Sampler, mark, require, require_derivative
from msign.weights import ess_fraction, pareto_khat, weight_report

SAME = 1.0  # nats that a place lies below a maximum's Gaussian if it belongs to it
CLOSE = 1e-3  # nats that an ascent may leave to gain
FEWEST = 10  # evaluations of every ascent


class Component(NamedTuple):
    """A Gaussian in whitened coordinates: precision I + V diag(values) V^T around a maximum.

    Attributes:
        mean: `(d,)`.
        vectors: Orthonormal `(d, r)`.
        values: Positive `(r,)`.
        log_mass: Log of the mass of the posterior below it, up to the evidence.
        searches: Ascents that ended there.
    """

    mean: np.ndarray
    vectors: np.ndarray
    values: np.ndarray
    log_mass: float
    searches: int

    def moved(self, noise: np.ndarray) -> np.ndarray:
        """Fields of standard normal noise `(n, d)`."""
        shrink = 1 / np.sqrt(1 + self.values) - 1
        return self.mean + noise + (noise @ self.vectors * shrink) @ self.vectors.T

    def nats_below(self, u: np.ndarray) -> float:
        """How far the log-density of a place `(d,)` lies below that of the mean."""
        away = u - self.mean
        return float(0.5 * (away @ away + (away @ self.vectors) ** 2 @ self.values))

    def log_ratio(self, u: np.ndarray) -> np.ndarray:
        """Log of its density over the prior's `(n,)`."""
        away = u - self.mean
        inside = (away @ self.vectors) ** 2 @ self.values
        quadratic = np.sum(u**2, 1) - np.sum(away**2, 1) - inside
        return 0.5 * (quadratic + np.log1p(self.values).sum())


@dataclasses.dataclass(frozen=True)
class LaplaceMixture(Sampler):
    """Gaussians at the maxima found from many starts, weighted by their share of the evidence.

    The curvature at a maximum is that of Gauss and Newton, from all derivatives of the
    observations; of a log-likelihood alone it is regressed from gradients.

    Attributes:
        starts: Ascents, from draws of the prior.
        evaluations: Of every ascent, at most.
    """

    starts: int = 16
    evaluations: int = 300

    def __post_init__(self) -> None:
        checks.integer("starts", self.starts, 1)
        checks.integer("evaluations", self.evaluations, FEWEST)

    def check(self, problem: InverseProblem) -> None:
        require_derivative(problem, "Laplace's approximation")

    def draw(self, simulator: Simulator, scale: int, n: int, key: PRNGKeyArray) -> Drawn:
        dim = simulator.problem.priors[scale - 1].lattice.dim
        curvature = self._cost_of_curvature(simulator, dim)
        least = 2 * FEWEST + curvature + n
        require(simulator, least, f"Laplace's approximation and weights of {n} fields")
        spare = simulator.left - n
        starts = int(np.clip(spare // (2 * FEWEST + curvature), 1, self.starts))
        most = min(self.evaluations, (spare - starts * curvature) // (2 * starts))
        evaluate = log_density_and_gradient(simulator, scale)
        begin = generator(jr.fold_in(key, 0)).normal(size=(starts, dim))
        found = ascend(evaluate, begin, most, CLOSE)
        components: list[Component] = []
        for u, log_density in zip(found.u, found.log_density, strict=True):  # the highest first
            near = [k for k, c in enumerate(components) if c.nats_below(u) < SAME]
            if near:
                known = components[near[0]]
                components[near[0]] = known._replace(searches=known.searches + 1)
            else:
                components.append(self._component(simulator, scale, u, float(log_density), key))
        trained = mark(simulator)
        shares = np.exp(_normalised(np.array([c.log_mass for c in components])))
        u = _drawn(components, shares, n, generator(jr.fold_in(key, 1)))

        def log_ratio(u: np.ndarray) -> np.ndarray:
            places = np.asarray(u, np.float64)
            each = [
                np.log(s) + c.log_ratio(places) for s, c in zip(shares, components, strict=True)
            ]
            return np.logaddexp.reduce(each, axis=0)

        log_weights = simulator.evaluate(u, scale).log_likelihood - log_ratio(u)
        information = {
            "maxima": len(components),
            "searches": [c.searches for c in components],
            "converged": int(found.converged.sum()),
            "shares": shares.tolist(),
            "ess_fraction": ess_fraction(log_weights),
            "khat": pareto_khat(log_weights),
        }
        return Drawn(
            u,
            information,
            trained=trained,
            log_weights=log_weights,
            log_ratio=log_ratio,
            log_evidence=weight_report(log_weights).log_evidence,
        )

    def _cost_of_curvature(self, simulator: Simulator, dim: int) -> int:
        if simulator.problem.has_observations:
            return simulator.problem.layout.m + 1
        return 2 * 3 * (dim + 1)

    def _component(
        self,
        simulator: Simulator,
        scale: int,
        mean: np.ndarray,
        log_density: float,
        key: PRNGKeyArray,
    ) -> Component:
        if simulator.problem.has_observations:
            found = simulator.jacobian(mean[None].astype(default_dtype()), scale)
            values, vectors = gauss_newton(simulator.likelihood(scale), *found)
        else:
            evaluate = log_density_and_gradient(simulator, scale)
            near = nearest_gaussian(evaluate, mean, 0, jr.fold_in(key, 2), iterations=1)
            values, vectors = np.linalg.eigh(near.precision - np.eye(len(mean)))
        kept = values > 0  # no direction is wider than under the prior
        values, vectors = values[kept], vectors[:, kept]
        log_mass = float(log_density - 0.5 * np.log1p(values).sum())
        return Component(mean, vectors, values, log_mass, searches=1)


def gauss_newton(
    likelihood: DataLikelihood, features: np.ndarray, jacobian: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues `(r,)` and vectors `(d, r)` of the Fisher information about one field.

    Args:
        likelihood: Of the features.
        features: `(1, m)`.
        jacobian: Their derivatives `(1, m, d)`.
    """
    information = np.asarray(likelihood.information(features), np.float64)
    rows = np.sqrt(np.maximum(information[0], 0.0))[:, None] * jacobian[0]
    _, singular, right = np.linalg.svd(rows, full_matrices=False)
    return singular**2, right.T


def _normalised(log_mass: np.ndarray) -> np.ndarray:
    return log_mass - np.logaddexp.reduce(log_mass)


def _drawn(
    components: list[Component], shares: np.ndarray, n: int, rng: np.random.Generator
) -> np.ndarray:
    """N fields of the mixture."""
    chosen = rng.choice(len(components), size=n, p=shares / shares.sum())
    u = rng.normal(size=(n, len(components[0].mean)))
    for k, component in enumerate(components):
        u[chosen == k] = component.moved(u[chosen == k])
    return u.astype(default_dtype())
