"""Where a posterior lives: its maxima, and the Gaussian that comes closest to it.

All in whitened coordinates u, where the prior is standard normal, and from gradients of the
log-likelihood alone, so that any problem with a derivative and any likelihood will do.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax.random as jr
import numpy as np
import scipy.linalg
from jaxtyping import PRNGKeyArray

from msign.inference.flows.directions import ROWS_PER_DIRECTION
from msign.inference.flows.probe import LINES, is_linear
from msign.noise import generator
from msign.problems.failures import SimulationError
from msign.problems.simulator import Simulator

MEMORY = 50  # steps that the quasi-Newton method remembers
SUFFICIENT = 1e-3  # fraction of the promised descent that a step must bring
NEARBY = 0.005  # prior standard deviations around a maximum in which its curvature is first seen
STARTS = 4  # ascents: from draws of the prior, and from their mirror images in its mean
UNSEEN = 0.5  # further maxima to be expected, below which no more ascents look for them
ASCENT = 1000  # evaluations of each, at most
FAR = 100.0  # prior standard deviations from the mean at which an ascent is lost
DISTINCT = 1.0  # prior standard deviations between two maxima that are not the same
DAMPED = 30  # Levenberg-Marquardt steps, where there is no derivative
APART = 0.01  # prior standard deviations between fields whose difference is a derivative
AT_ONCE = 2048  # rows of a regression that are summed at a time

Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Maxima(NamedTuple):
    """Where ascents ended, highest first.

    Attributes:
        u: Whitened coordinates `(k, d)`.
        log_density: Log-likelihood minus half the squared norm `(k,)`: the posterior, up to a
            constant.
        converged: Whether less than the tolerance was left to gain `(k,)`.
    """

    u: np.ndarray
    log_density: np.ndarray
    converged: np.ndarray

    def joined(self, other: "Maxima") -> "Maxima":
        """These and others, highest first."""
        both = Maxima(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))
        return both.rows(np.argsort(-both.log_density, kind="stable"))

    def distinct(self) -> "Maxima":
        """One of all that are the same maximum, the highest; but for it all have converged."""
        kept = [0]
        for i in np.flatnonzero(self.converged[1:]) + 1:
            if np.linalg.norm(self.u[kept] - self.u[i], axis=1).min() > DISTINCT:
                kept.append(int(i))
        return self.rows(np.array(kept))

    def rows(self, which: np.ndarray) -> "Maxima":
        """Some of them."""
        return Maxima(*(a[which] for a in self))


class Gaussian(NamedTuple):
    """A Gaussian in whitened coordinates.

    Attributes:
        mean: `(d,)`.
        precision: `(d, d)`.
        log_mass: Log of the posterior's mass below it, a lower bound up to a constant.
    """

    mean: np.ndarray
    precision: np.ndarray
    log_mass: float = 0.0

    def root(self) -> np.ndarray:
        """A with A A^T = covariance; no direction is wider than under the prior."""
        return inverse_root(self.precision, 1.0)[0]


def inverse_root(precision: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray]:
    """A with A A^T the inverse of a precision whose eigenvalues are raised to `floor`; and A^-1.

    Of an eigenvalue below -floor the size is taken: where the density bends the wrong way, it does
    so on that scale, and a wider Gaussian would reach far out of where its curvature was seen.
    """
    try:
        np.linalg.cholesky(precision - (1 - 1e-3) * floor * np.eye(len(precision)))
    except np.linalg.LinAlgError:
        values, vectors = scipy.linalg.eigh(precision)
        roots = np.sqrt(np.maximum(np.abs(values), floor))
        return (vectors / roots) @ vectors.T, (vectors * roots) @ vectors.T
    # Nothing has to be raised: a triangular factor costs a fraction of the eigenvectors.
    factor = np.linalg.cholesky(precision)
    return scipy.linalg.lapack.dtrtri(factor, lower=1)[0].T, factor.T


class Regression:
    """Least squares of gradients on the noise at which they were taken, from sums over batches.

    Noise comes in pairs +-z, of which the mean and half the difference of the gradients are all
    that matters: half as many rows, and no intercept. The sums are large matrices, slow to be
    read and written: many rows are added at a time.
    """

    def __init__(self, dim: int):
        self.pairs = 0
        self._mean, self._squares, self._products = (np.zeros((dim,) * k) for k in (1, 2, 2))
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, z: np.ndarray, there: np.ndarray, opposite: np.ndarray) -> None:
        """Gradients `(n, k)` at noise `(n, d)`, and at minus the noise."""
        self.pairs += len(z)
        self._mean += 0.5 * (there + opposite).sum(0, dtype=np.float64)
        self._waiting.append((z, 0.5 * (there - opposite)))
        if sum(len(z) for z, _ in self._waiting) >= AT_ONCE:
            self._add_waiting()

    def solved(self) -> tuple[np.ndarray, np.ndarray]:
        """The gradient at zero, and minus its derivative `(d, d)`: of a row of noise a row.

        Under standard normal noise: mean gradient and mean curvature, but for symmetry. Exact where
        gradients are linear.
        """
        self._add_waiting()
        slopes = scipy.linalg.solve(self._squares, self._products, assume_a="pos")
        return self._mean / self.pairs, -slopes

    def _add_waiting(self) -> None:
        if not self._waiting:
            return
        z, slopes = (np.concatenate(arrays) for arrays in zip(*self._waiting, strict=True))
        self._squares += z.T @ z
        self._products += z.T @ slopes
        self._waiting = []


def symmetric(a: np.ndarray) -> np.ndarray:
    """The symmetric part of a matrix."""
    return 0.5 * (a + a.T)


def log_density_and_gradient(simulator: Simulator, scale: int) -> Evaluate:
    """Log posterior density, up to a constant, and its gradient, of whitened fields `(n, d)`."""

    def evaluate(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = simulator.evaluate(u, scale, gradient=True)
        assert found.gradient is not None
        return found.log_likelihood - 0.5 * np.sum(u**2, 1), found.gradient - u

    return evaluate


def ascend(evaluate: Evaluate, u: np.ndarray, evaluations: int, tolerance: float) -> Maxima:
    """Climb to maxima from all rows of u at once, by a limited-memory quasi-Newton method.

    Args:
        evaluate: Values and gradients of rows.
        u: Where to start `(k, d)`.
        evaluations: How often all rows may be evaluated.
        tolerance: An ascent ends when its next step promises less than this, in nats.

    A step that fails to bring what it promised, or where a simulation fails, is halved.
    """
    u = np.array(u, np.float64)
    value, gradient = evaluate(u)
    value = np.where(np.isfinite(value), value, -np.inf)
    rows = [_Memory() for _ in u]
    step = np.stack([_limited(m.direction(g)) for m, g in zip(rows, gradient, strict=True)])
    promised = np.sum(step * gradient, 1)
    for _ in range(evaluations - 1):
        moving = promised > tolerance
        if not moving.any():
            break
        trial = np.where(moving[:, None], u + step, u)
        try:
            there, slope = evaluate(trial)
        except SimulationError:
            there, slope = np.full(len(u), -np.inf), gradient
        for i in np.flatnonzero(moving):
            if there[i] >= value[i] + SUFFICIENT * promised[i]:
                rows[i].add(trial[i] - u[i], gradient[i] - slope[i])
                u[i], value[i], gradient[i] = trial[i], there[i], slope[i]
                step[i] = _limited(rows[i].direction(gradient[i]))
                promised[i] = step[i] @ gradient[i]
            else:
                step[i], promised[i] = 0.5 * step[i], 0.5 * promised[i]
    order = np.argsort(-value, kind="stable")
    return Maxima(u[order], value[order], (promised <= tolerance)[order])


class _Memory:
    """The last steps of an ascent and what they did to the gradient."""

    def __init__(self) -> None:
        self.pairs: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, moved: np.ndarray, lost: np.ndarray) -> None:
        if moved @ lost > 1e-10 * (lost @ lost):
            self.pairs = [*self.pairs, (moved, lost)][-MEMORY:]

    def direction(self, gradient: np.ndarray) -> np.ndarray:
        """The inverse of the curvature seen so far times the gradient (two-loop recursion)."""
        q, kept = gradient.copy(), []
        for moved, lost in reversed(self.pairs):
            a = (moved @ q) / (moved @ lost)
            q -= a * lost
            kept.append(a)
        if self.pairs:
            moved, lost = self.pairs[-1]
            q *= (moved @ lost) / (lost @ lost)
        else:
            q /= max(1.0, float(np.linalg.norm(gradient)))
        for (moved, lost), a in zip(self.pairs, reversed(kept), strict=True):
            q += (a - (lost @ q) / (moved @ lost)) * moved
        return q


def _limited(step: np.ndarray) -> np.ndarray:
    """A step no longer than a draw of the prior is."""
    return step * min(1.0, np.sqrt(len(step)) / max(float(np.linalg.norm(step)), 1e-300))


def has_linear_gradients(evaluate: Evaluate, dim: int, key: PRNGKeyArray) -> bool:
    """Whether gradients are linear in the field, by second differences along random lines.

    Where a simulation is rejected they are not known, and zero for no other reason.
    """
    a, b = generator(key).normal(size=(2, LINES, dim))
    value, gradient = evaluate(np.concatenate([a - b, a, a + b]))
    return bool(np.isfinite(value).all()) and is_linear(gradient.astype(np.float64))


def exact_gaussian(evaluate: Evaluate, dim: int, key: PRNGKeyArray) -> Gaussian:
    """A posterior that is Gaussian, from gradients at draws of the prior."""
    half = _noise(dim, generator(key))
    slope, precision, _ = _regressed(evaluate, np.zeros(dim), half, half)
    root, _ = inverse_root(symmetric(precision), 1.0)
    return Gaussian(root @ (root.T @ slope), symmetric(precision))


def nearest_gaussian(
    evaluate: Evaluate, mean: np.ndarray, allowance: int, key: PRNGKeyArray, iterations: int = 8
) -> Gaussian:
    """The Gaussian of any rank with the least KL divergence to the posterior, by its gradients.

    At its optimum a Gaussian's precision is the mean curvature under itself, and the mean gradient
    vanishes. Both come from regressing gradients on fields drawn from the Gaussian so far, three
    for each dimension, and are averaged over iterations (a natural-gradient ascent of the evidence
    bound).

    Args:
        evaluate: Log-densities and gradients.
        mean: Where to start: a maximum.
        allowance: Fields that may be evaluated; at least one iteration is made.
        key: Random key.
        iterations: Most iterations.
    """
    dim, rng = len(mean), generator(key)
    half = _noise(dim, rng)
    _, curvature, value = _regressed(evaluate, mean, half, NEARBY * half)
    precision = symmetric(curvature / NEARBY)
    root, inverse = inverse_root(precision, 1.0)
    found = Gaussian(mean, precision, value + _log_det(root))
    for k in range(1, max(1, min(iterations, allowance // _rows(dim)))):
        half = _noise(dim, rng)
        slope, curvature, value = _regressed(evaluate, found.mean, half, half @ root.T)
        share = 1.0 / k  # what was seen at the maximum alone is forgotten
        precision = (1 - share) * found.precision + share * symmetric(inverse.T @ curvature)
        bound = value + 0.5 * np.mean(np.sum(half**2, 1)) + _log_det(root)
        found = found._replace(precision=precision, log_mass=float(bound))
        root, inverse = inverse_root(found.precision, 1.0)
        found = found._replace(mean=found.mean + share * (root @ (root.T @ slope)))
    return found


def _noise(dim: int, rng: np.random.Generator) -> np.ndarray:
    """Half of the noise of a regression; the other half is minus this."""
    return rng.normal(size=(_rows(dim) // 2, dim))


def _regressed(
    evaluate: Evaluate, mean: np.ndarray, half: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Of fields mean +- steps: mean gradient, minus the gradients' derivative by the noise, mean.

    The last is that of the log-densities, of fields that could be simulated.
    """
    seen = Regression(len(mean))
    values, gradients = evaluate(np.concatenate([mean + steps, mean - steps]))
    seen.add(half, *np.split(gradients, 2))
    finite = values[np.isfinite(values)]
    return *seen.solved(), float(finite.mean()) if len(finite) else -np.inf


def _log_det(root: np.ndarray) -> float:
    return float(np.linalg.slogdet(root)[1])


def find_gaussians(
    simulator: Simulator, scale: int, allowance: int, tolerance: float, key: PRNGKeyArray
) -> list[Gaussian]:
    """The Gaussians nearest to the posterior of a scale around its maxima found, highest first.

    `allowance` counts forward simulations, of which a gradient costs two; at least
    `least_allowance`. An ascent ends when its next step promises less than `tolerance` nats. A
    maximum whose Gaussian would have a smaller part of the mass than that, even if it were as wide
    as the prior, is not looked at any further.
    """
    dim = simulator.problem.priors[scale - 1].lattice.dim
    evaluate = log_density_and_gradient(simulator, scale)
    begin = simulator.nfs
    if has_linear_gradients(evaluate, dim, jr.fold_in(key, 0)):
        return [exact_gaussian(evaluate, dim, jr.fold_in(key, 2))]
    until = begin + allowance - 2 * _rows(dim)
    maxima = _maxima(simulator, scale, until, tolerance, jr.fold_in(key, 1))
    found: list[Gaussian] = []
    for k, (u, log_density) in enumerate(zip(maxima.u, maxima.log_density, strict=True)):
        left = (allowance - (simulator.nfs - begin)) // 2
        if found:
            most = max(g.log_mass for g in found)
            if log_density - most < np.log(tolerance) or left < _rows(dim):
                continue
        share = left // (len(maxima.u) - k)
        near = nearest_gaussian(evaluate, u, share, jr.fold_in(key, 2 + k))
        found.append(near)
    masses = np.array([g.log_mass for g in found])
    return [g for g in found if g.log_mass - masses.max() > np.log(tolerance)]


def _maxima(
    simulator: Simulator, scale: int, until: int, tolerance: float, key: PRNGKeyArray
) -> Maxima:
    """Distinct maxima that ascents find before so many simulations are used.

    Where no field on the way can be simulated, they start anew, as long as there are simulations.
    Where they end at several maxima there may be more: half of the simulations may be used to look
    for them, until fewer than `UNSEEN` are expected. The highest end of an
    ascent counts as a maximum in any case, others where they have converged.
    """
    prior = simulator.problem.priors[scale - 1]
    dim, evaluate = prior.lattice.dim, log_density_and_gradient(simulator, scale)
    enough, seen = (simulator.nfs + until) // 2, None
    for k in itertools.count():
        most = (until - simulator.nfs) // (2 * STARTS)
        if k and (most < 1 or (seen is not None and simulator.nfs > enough)):
            break
        starts = _starts(dim, jr.fold_in(key, k) if k else key)
        ends = ascend(evaluate, starts, max(1, min(ASCENT, most)), tolerance)
        away = float(np.sqrt(np.mean(ends.u[0] ** 2)))
        if away > FAR and not ends.converged[0]:
            raise ValueError(
                "likelihood must be bounded, and data possible under the prior: the posterior "
                f"density still rises at {away:.3g} standard deviations of the prior from its mean"
            )
        if np.isfinite(ends.log_density[0]):
            seen = ends if seen is None else seen.joined(ends)
            maxima, ascents = len(seen.distinct().u), int(seen.converged.sum())
            if maxima == 1 or unseen(maxima, ascents) <= UNSEEN:
                break
    if seen is not None:
        return seen.distinct()
    raise SimulationError(
        f"no field on {k * STARTS} ascents to a maximum could be simulated",
        np.asarray(prior.unwhiten(ends.u[0])),
    )


def unseen(maxima: int, ascents: int) -> float:
    """How many more maxima to expect where so many ascents have found so few.

    By Boender and Rinnooy Kan (1987), for whom all shares of the starts are equally likely.
    """
    left = ascents - maxima - 2
    return maxima * (maxima + 1) / left if left > 0 else np.inf


def _starts(dim: int, key: PRNGKeyArray) -> np.ndarray:
    """Draws of the prior in opposite pairs, so that no half of it is left out."""
    draws = generator(key).normal(size=(STARTS // 2, dim))
    return np.concatenate([draws, -draws])


def gaussian_by_differences(
    simulator: Simulator, scale: int, allowance: int, tolerance: float, key: PRNGKeyArray
) -> list[Gaussian]:
    """Laplace's approximation around the highest maximum found, without a derivative.

    Levenberg-Marquardt steps from a few starts, with the likelihood's Fisher information; the
    derivative of what it is a function of is that of differences, d simulations for each. They end
    when from no start more than `tolerance` nats are left to gain.
    """
    u = _starts(simulator.problem.priors[scale - 1].lattice.dim, key)
    one, each = np.eye(u.shape[1]), STARTS * (u.shape[1] + 1)
    likelihood, begin = simulator.likelihood(scale), simulator.nfs
    features, value = _features(simulator, u, scale)
    damping = np.ones(STARTS)
    for k in range(DAMPED):
        slopes = _differences(simulator, u, features, scale)
        weighted = likelihood.information(features)[..., None] * slopes
        curvature = np.einsum("nki,nkj->nij", weighted, slopes) + one
        gradient = np.einsum("nki,nk->ni", slopes, likelihood.score(features)) - u
        left = 0.5 * np.sum(gradient * _solved(curvature, gradient), 1)
        affords = simulator.nfs - begin + STARTS + each <= allowance
        if left.max() < tolerance or not affords or k == DAMPED - 1:
            break
        step = _solved(curvature + damping[:, None, None] * one, gradient)
        try:
            there, reached = _features(simulator, u + step, scale)
        except SimulationError:
            there, reached = features, np.full(STARTS, -np.inf)
        better = reached > value
        u = np.where(better[:, None], u + step, u)
        features = np.where(better[:, None], there, features)
        value = np.where(better, reached, value)
        damping = np.where(better, damping / 4, damping * 4)
    best = int(np.argmax(value))
    return [Gaussian(u[best], curvature[best])]


def _solved(matrices: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solutions `(n, d)` of systems of equations with matrices `(n, d, d)`."""
    return np.linalg.solve(matrices, right[..., None])[..., 0]


def _features(simulator: Simulator, u: np.ndarray, scale: int) -> tuple[np.ndarray, np.ndarray]:
    """What the likelihood sees of fields, zero where rejected, and log posterior densities."""
    found = simulator.evaluate(u, scale)
    return np.nan_to_num(found.features), found.log_likelihood - 0.5 * np.sum(u**2, 1)


def _differences(
    simulator: Simulator, u: np.ndarray, features: np.ndarray, scale: int
) -> np.ndarray:
    """Derivatives `(n, m, d)` of what the likelihood sees, by differences."""
    n, dim = u.shape
    moved = (u[:, None] + APART * np.eye(dim)).reshape(-1, dim)
    there = simulator.evaluate(moved, scale).features.reshape(n, dim, -1)
    return np.nan_to_num((there - features[:, None]) / APART).transpose(0, 2, 1)


def least_allowance(dim: int) -> int:
    """Simulations that `find_gaussians` needs at least."""
    return 2 * (_rows(dim) + 3 * LINES + STARTS)


def _rows(dim: int) -> int:
    """Fields of a regression in all dimensions, an even number."""
    return 2 * -(-ROWS_PER_DIRECTION * (dim + 1) // 2)
