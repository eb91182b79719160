"""A polynomial emulator of the forward map on the trained variables.

A flow of many variables learns little from each simulation: one number, its likelihood. The
simulations of a stage say much more, m observations each. A polynomial through these, fitted in
closed form, is a target that costs nothing to evaluate and differentiate, so that the flow can be
trained on as many samples as it likes; true simulations assess what it has learned.

What the polynomial misses, its own error and the part of the observations that the other
directions of the field move, has a covariance, which is added to that of Gaussian noise; other
likelihoods are raised to a power that does the same (`Flattened`): a poor emulator makes a flat
target, not a wrong one.
"""

import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array

from msign.noise import on_device
from msign.problems.data_likelihood import DataLikelihood, StandardNormal
from msign.weights import highest_power, normalised

LATEST = 40_000  # fields are fitted at most: early ones are far, and all would take long
RIDGE = 1e-6  # relative to the mean square of the terms, as small as single precision allows


class Polynomial(eqx.Module):
    """Features as polynomials: quadratic in all r variables, cubic in the leading ones.

    Of standardised variables x = (s - centre) / spread. Tensors are symmetric in the variables, so
    that a value and its gradient share their products.

    Attributes:
        centre: `(r,)`.
        spread: `(r,)`.
        constant: `(m,)`.
        linear: `(m, r)`.
        quadratic: `(r, m r)`.
        cubic: `(k k, m k)`, k leading variables.
        likelihood: Of the features, with the errors that they have.
    """

    centre: Array
    spread: Array
    constant: Array
    linear: Array
    quadratic: Array
    cubic: Array
    likelihood: DataLikelihood

    def features(self, s: Array) -> Array:
        """Of one field `(m,)`; residuals are whitened by noise and emulator's error together."""
        return self._parts(s)[0]

    def log_likelihood(self, s: Array) -> tuple[Array, Array]:
        """Of the variables of one field, up to a constant, and its gradient `(r,)`."""
        features, derivative = self._parts(s)
        score = self.likelihood.score(features)
        return jnp.sum(self.likelihood.terms(features)), jnp.sum(score[:, None] * derivative, 0)

    def value(self, s: Array) -> Array:
        """Log-likelihood alone."""
        return jnp.sum(self.likelihood.terms(self.features(s)))

    def _parts(self, s: Array) -> tuple[Array, Array]:
        """Features `(m,)` and their derivatives `(m, r)`."""
        x = (s - self.centre) / self.spread
        m, r = self.linear.shape
        k = self.cubic.shape[1] // m
        head = x[:k]
        second = (x @ self.quadratic).reshape(m, r)
        third = ((head[:, None] * head).reshape(-1) @ self.cubic).reshape(m, k)
        features = self.constant + jnp.sum((self.linear + second) * x, -1)
        features += jnp.sum(third * head, -1)
        derivative = (self.linear + 2 * second).at[:, :k].add(3 * third)
        return features, derivative / self.spread


class Terms(NamedTuple):
    """Of a polynomial in r variables: indices of its quadratic and cubic terms."""

    rank: int
    pairs: np.ndarray
    triples: np.ndarray

    @classmethod
    def of(cls, rank: int, cubic: int, most: int) -> "Terms":
        """At most `most` terms: cubic ones, in the leading variables, go first, then quadratic."""
        terms = cls(rank, _ordered(rank, 2), _ordered(min(rank, cubic), 3))
        if len(terms) > most:
            few = max(0, min(rank, int(np.sqrt(2 * max(0, most - rank - 1)) - 0.5)))
            terms = cls(rank, _ordered(few, 2), np.zeros((0, 3), int))
        return terms

    def __len__(self) -> int:
        return 1 + self.rank + self.pairs.shape[0] + self.triples.shape[0]

    def design(self, x: np.ndarray) -> np.ndarray:
        """All terms of standardised variables `(n, r)`, in single precision."""
        x = x.astype(np.float32)
        quadratic = x[:, self.pairs[:, 0]] * x[:, self.pairs[:, 1]]
        a, b, c = self.triples.T
        return np.concatenate(
            [np.ones_like(x[:, :1]), x, quadratic, x[:, a] * x[:, b] * x[:, c]], 1
        )


def fit_polynomial(
    s: np.ndarray,
    features: np.ndarray,
    log_weights: np.ndarray,
    cubic: int = 12,
    rows_per_term: int = 3,
    worth: float = 0.2,
    likelihood: DataLikelihood | None = None,
) -> Polynomial:
    """Weighted least squares.

    Args:
        s: Variables `(n, r)` of simulated fields, the latest last.
        features: Of their observations `(n, m)`.
        log_weights: Of the fields `(n,)`: how the target's density relates to what drew them. They
            are tempered, by a power below one, where they are worth too few fields.
        cubic: Most leading variables that have cubic terms.
        rows_per_term: Fields for each term of the polynomial, or it is given fewer terms.
        worth: Fraction of the fields that tempered weights are worth.
        likelihood: Of the features; None: they are residuals, standard normal.
    """
    terms = Terms.of(s.shape[1], cubic, len(s) // rows_per_term)
    needed = rows_per_term * len(terms)
    last = slice(max(0, len(s) - max(LATEST, needed)), None)
    weights = tempered(log_weights[last], max(needed, worth * len(s[last])))
    arrays = s[last].astype(float), features[last].astype(float), weights
    given = StandardNormal() if likelihood is None else likelihood
    return _least_squares(terms, min(s.shape[1], cubic), *arrays, given)


def tempered(log_weights: np.ndarray, worth: float) -> np.ndarray:
    """Weights, of sum one, to the largest power up to one at which they are worth `worth`."""
    power = highest_power(lambda t: t * log_weights, worth, 0.0)
    return normalised(power * log_weights)


def _least_squares(
    terms: Terms,
    k: int,
    s: np.ndarray,
    features: np.ndarray,
    weights: np.ndarray,
    likelihood: DataLikelihood,
) -> Polynomial:
    r, m = s.shape[1], features.shape[1]
    centre = weights @ s
    spread = np.sqrt(weights @ (s - centre) ** 2) + 1e-12
    design = terms.design((s - centre) / spread)
    root = np.sqrt(weights)[:, None].astype(np.float32)
    scaled = root * design
    gram = (scaled.T @ scaled).astype(np.float64)
    coefficients = _solve(gram, scaled.T @ (root * features.astype(np.float32)))
    missed = features - design @ coefficients.astype(np.float32)
    # What the fit misses on its own fields, corrected for the terms that it has spent on them.
    spent = min(0.9, len(terms) * np.sum(weights**2))
    covariance = (missed * weights[:, None]).T @ missed / (1 - spent)
    matrix, flatter = likelihood.with_error(features, weights, covariance)
    coefficients = coefficients @ matrix.T
    ends = np.cumsum([1, r, len(terms.pairs)])
    constant, linear, pairs, triples = np.split(coefficients, ends)
    arrays: tuple[Any, ...] = (
        centre,
        spread,
        constant[0],
        linear.T,
        _symmetric(r, terms.pairs, pairs).transpose(0, 2, 1).reshape(r, m * r),
        _symmetric(k, terms.triples, triples).transpose(0, 1, 3, 2).reshape(k * k, m * k),
    )
    return jax.tree.map(on_device, Polynomial(*arrays, likelihood=flatter))


def _solve(gram: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Coefficients of normal equations, with the least ridge at which rounding leaves these sound.

    Far fields whose cubes dwarf everything else make single precision too poor for `RIDGE`.
    """
    ridge = RIDGE
    while True:
        try:
            return scipy.linalg.solve(gram + ridge * np.diag(np.diag(gram)), right, assume_a="pos")
        except np.linalg.LinAlgError:
            ridge *= 10


def _symmetric(variables: int, index: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Symmetric tensors `(variables, ..., m)` of monomials `(terms, degree)`, one for each m."""
    degree = index.shape[1]
    tensor = np.zeros((variables,) * degree + coefficients.shape[1:])
    orders = list(itertools.permutations(range(degree)))
    for order in orders:
        tensor[tuple(index[:, order].T)] += coefficients / len(orders)
    return tensor


def _ordered(variables: int, degree: int) -> np.ndarray:
    """Indices `(terms, degree)` of all monomials of a degree, each once."""
    grid = np.stack(np.meshgrid(*[np.arange(variables)] * degree, indexing="ij"), -1)
    grid = grid.reshape(-1, degree)
    return grid[np.all(np.diff(grid, axis=1) >= 0, axis=1)]
