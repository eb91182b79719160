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
from msign.weights import highest_power, normalised

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
    log_weights: np.ndarray,
    cubic: int = 12,
    likelihood: DataLikelihood | None = None,
) -> Polynomial:
    """Weighted least squares; with fewer terms where there are too few fields for all of them.

    Args:
        s: Variables `(n, r)` of simulated fields, the latest last.
        features: Of their observations `(n, m)`.
        log_weights: Of the fields `(n,)`: how the target's density relates to what drew them. They
            are tempered, by a power below one, where they are worth fewer fields than terms need.
        cubic: Most leading variables that have cubic terms.
        likelihood: Of the features; None: they are residuals, standard normal.
    """
    terms = Terms.of(s.shape[1], cubic, len(s) // ROWS_PER_DIRECTION)
    needed = ROWS_PER_DIRECTION * len(terms)
    last = slice(max(0, len(s) - max(LATEST, needed)), None)
    weights = tempered(log_weights[last], needed)
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
    centre = weights @ s
    spread = np.sqrt(weights @ (s - centre) ** 2) + 1e-12
    design = terms.design((s - centre) / spread)
    root = np.sqrt(weights)[:, None].astype(np.float32)
    scaled = root * design
    gram = (scaled.T @ scaled).astype(np.float64)
    coefficients = solve_normal(gram, scaled.T @ (root * features.astype(np.float32)))
    missed = features - design @ coefficients.astype(np.float32)
    # What the fit misses on its own fields, corrected for the terms that it has spent on them.
    spent = min(0.9, len(terms) * np.sum(weights**2))
    covariance = (missed * weights[:, None]).T @ missed / (1 - spent)
    matrix, flatter = likelihood.with_error(features, weights, covariance)
    functions = Polynomials.of(terms, k, coefficients @ matrix.T, centre, spread)
    return Polynomial(functions, jax.tree.map(on_device, flatter))
