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

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from msign.bijections.polynomials import Polynomials, Terms, solve_normal
from msign.inference.flows.directions import ROWS_PER_DIRECTION
from msign.noise import on_device
from msign.problems.data_likelihood import DataLikelihood, StandardNormal

LATEST = 40_000  # fields are fitted at most: early ones are far, and all would take long


class Polynomial(eqx.Module):
    """Features as polynomials of the variables, and their likelihood.

    Attributes:
        functions: The features.
        likelihood: Of the features, with the errors that they have.
    """

    functions: Polynomials
    likelihood: DataLikelihood

    def features(self, s: Array) -> Array:
        """Of one field `(m,)`; residuals are whitened by noise and emulator's error together."""
        return self.functions.values(s)

    def log_likelihood(self, s: Array) -> tuple[Array, Array]:
        """Of the variables of one field, up to a constant, and its gradient `(r,)`."""
        features, derivative = self.functions.values_and_slopes(s)
        score = self.likelihood.score(features)
        return jnp.sum(self.likelihood.terms(features)), jnp.sum(score[:, None] * derivative, 0)

    def value(self, s: Array) -> Array:
        """Log-likelihood alone."""
        return jnp.sum(self.likelihood.terms(self.features(s)))


def fit_polynomial(
    s: np.ndarray,
    features: np.ndarray,
    cubic: int = 12,
    likelihood: DataLikelihood | None = None,
) -> Polynomial:
    """Least squares; with fewer terms where there are too few fields for all of them.

    Args:
        s: Variables `(n, r)` of simulated fields, the latest last.
        features: Of their observations `(n, m)`.
        cubic: Most leading variables that have cubic terms.
        likelihood: Of the features; None: they are residuals, standard normal.
    """
    terms = Terms.of(s.shape[1], cubic, len(s) // ROWS_PER_DIRECTION)
    last = slice(max(0, len(s) - max(LATEST, ROWS_PER_DIRECTION * len(terms))), None)
    s, features = s[last].astype(float), features[last].astype(float)
    likelihood = StandardNormal() if likelihood is None else likelihood
    n, k = len(s), min(s.shape[1], cubic)
    centre, spread = s.mean(0), s.std(0) + 1e-12
    design = terms.design((s - centre) / spread)
    gram = (design.T @ design).astype(np.float64)
    coefficients = solve_normal(gram, design.T @ features.astype(np.float32))
    missed = features - design @ coefficients.astype(np.float32)
    # What the fit misses on its own fields, corrected for the terms that it has spent on them.
    covariance = missed.T @ missed / (n * (1 - min(0.9, len(terms) / n)))
    matrix, flatter = likelihood.with_error(features, covariance)
    functions = Polynomials.of(terms, k, coefficients @ matrix.T, centre, spread)
    return Polynomial(functions, jax.tree.map(on_device, flatter))
