"""Levenberg-Marquardt on a pool: there the Jeffreys divergence is a sum of squares.

With v and w the weights of model and target at the fields of a pool, both of sum one,

    sum_i (v_i - w_i)(log v_i - log w_i) = sum_i L(v_i, w_i) (log v_i - log w_i)^2,

L the logarithmic mean. The residuals log v - log w vanish where the model is the target, so that
the Gauss-Newton matrix is the curvature there. Parameters that no field of the pool informs do not
move, which those of Adam do, and narrow modes make no gradient that outweighs all others.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from msign.devices import gathered, spread
from msign.inference.methods.objectives import MAX_LOG_RATIO
from msign.noise import on_device
from msign.training import combine, split_trainable
from msign.variables import Variables, log_ratio

DAMPING = 1e-2  # at first, relative to the curvature of each parameter
FLOOR = 0.1  # of the mean curvature, added to that of each: what few fields inform moves little
RAISED, LOWERED = 4.0, 3.0  # factors on the damping, after a step that failed or one that succeeded
TRIALS = 14  # steps that may fail one after the other
GAIN = 1e-3  # relative gain of a step below which the rest is not worth its time


class Weights(NamedTuple):
    """Of the model (v) and of the target (w) at the fields of a pool, and log v - log w, clipped.

    Beyond `MAX_LOG_RATIO` a field says "elsewhere" already; rejected ones would say it too loudly.
    """

    v: np.ndarray
    w: np.ndarray
    residual: np.ndarray

    @property
    def divergence(self) -> float:
        """Jeffreys divergence of the model from the target; infinite where it is not a number."""
        value = float(np.sum((self.v - self.w) * self.residual))
        return value if np.isfinite(value) else np.inf

    @property
    def logarithmic_mean(self) -> np.ndarray:
        """(v - w) / (log v - log w), v where both are equal."""
        apart = np.abs(self.residual) > 1e-6
        return np.where(apart, (self.v - self.w) / np.where(apart, self.residual, 1.0), self.v)


def least_squares(
    model: Variables,
    s: np.ndarray,
    target: np.ndarray,
    measure: np.ndarray,
    damping: float,
    iterations: int,
    enough: float,
) -> tuple[Variables, float]:
    """The model of least Jeffreys divergence from a target on a pool, and that divergence.

    Args:
        model: At the start.
        s: Variables of the fields `(n, m)`.
        target: Log target - log prior of each, up to a constant `(n,)`.
        measure: Log-density - log prior of what drew them, up to a constant `(n,)`.
        damping: Factor on that of the first step.
        iterations: Most steps.
        enough: Divergence that is small enough to end.
    """
    trainable, rest = split_trainable(model)
    leaves, structure = jax.tree.flatten(trainable)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]

    def with_values(values: np.ndarray) -> Variables:
        parts = [
            on_device(a.reshape(b.shape))
            for a, b in zip(np.split(values, ends), leaves, strict=True)
        ]
        return combine(jax.tree.unflatten(structure, parts), rest)

    def weighed(log_ratio: np.ndarray) -> Weights:
        log_v, log_w = (_normalised(a - measure) for a in (log_ratio, target))
        residual = np.clip(log_v - log_w, -MAX_LOG_RATIO, MAX_LOG_RATIO)
        return Weights(np.exp(log_v), np.exp(log_w), residual)

    values = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in leaves])
    fields, damping = spread(s), damping * DAMPING
    now = weighed(log_ratio(model, s))
    for _ in range(iterations):
        jacobian = gathered(_jacobian(split_trainable(model)[0], rest, fields)).astype(np.float64)
        jacobian = jacobian - now.v @ jacobian
        inside = np.abs(now.residual) < MAX_LOG_RATIO
        slope = (now.v * now.residual + (now.v - now.w) * inside) @ jacobian
        curvature = 2 * (jacobian.T * now.logarithmic_mean) @ jacobian
        diagonal = np.diag(curvature) + FLOOR * np.mean(np.diag(curvature))
        for _ in range(TRIALS):
            step = np.linalg.solve(curvature + damping * np.diag(diagonal), slope)
            moved = with_values(values - step)
            then = weighed(log_ratio(moved, s))
            if then.divergence < now.divergence:
                break
            damping *= RAISED
        else:
            break
        gain = now.divergence - then.divergence
        values, model, now, damping = values - step, moved, then, damping / LOWERED
        if gain < GAIN * now.divergence or now.divergence < enough:
            break
    return model, now.divergence


def _normalised(log_weights: np.ndarray) -> np.ndarray:
    return log_weights - np.logaddexp.reduce(log_weights)


@eqx.filter_jit
def _jacobian(trainable: PyTree, rest: PyTree, s: Array) -> Array:
    """Derivatives of log p - log prior of each field with respect to all parameters `(n, p)`."""

    def one(params: PyTree, s: Array) -> Array:
        return combine(params, rest).backward(s[None])[1][0]

    found = jax.vmap(jax.grad(one), (None, 0))(trainable, s)
    return jnp.concatenate([leaf.reshape(len(s), -1) for leaf in jax.tree.leaves(found)], 1)
