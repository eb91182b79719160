"""Training objectives: small callables, apart from the loop that runs them.

Each takes a model (`Variables`) and a batch of evaluated fields and returns a scalar whose gradient
with respect to the model is the estimator. All work with log p - log prior and log-likelihoods, so
that no normalising constant is needed: for a field drawn from p, log p/q = (log p - log prior) -
log-likelihood + log Z.

Notation: l_i = log p/q of the model's own samples, centred where the constant matters; w_i
self-normalised importance weights of the target, summing to one.
"""

import dataclasses
from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from msign.variables import Variables

MAX_LOG_RATIO = 50.0  # log-ratios are clipped here: beyond it a sample says "elsewhere" already


class Batch(NamedTuple):
    """Evaluated fields for one gradient step; what an objective does not ask for is None.

    Attributes:
        z: Noise of the model's own samples `(n, m)`.
        s: Their trained variables `(n, m)`.
        target: Their log-target minus log prior (bridged log-likelihood) `(n,)`.
        score: Gradient of `target` with respect to s `(n, m)`.
        moved: The variables s as a function of the parameters, where that is at hand already.
        proposal_s: Trained variables of samples of the proposal q~ `(k, m)`.
        proposal_target: Their log-target minus log prior `(k,)`.
        proposal_log_ratio: Their log-proposal minus log prior `(k,)`.
    """

    z: Array
    s: Array
    target: Array
    score: Array | None = None
    moved: Array | None = None
    proposal_s: Array | None = None
    proposal_target: Array | None = None
    proposal_log_ratio: Array | None = None


class Objective(Protocol):
    """What the loop needs to know of an objective: the samples it uses, and how to call it."""

    @property
    def uses_score(self) -> bool:
        """Whether it needs the score of the target."""
        ...

    @property
    def uses_proposal(self) -> bool:
        """Whether it needs samples of the proposal."""
        ...

    def __call__(self, model: Variables, batch: Batch) -> Array:
        """A scalar whose gradient is the estimator."""
        ...


@dataclasses.dataclass(frozen=True)
class ScoreJeffreys:
    """The paper's estimator: equations (10) and (11) with self-normalised weights against q~.

    Attributes:
        reverse: Weight of KL(p||q); with both at 1 it is the Jeffreys divergence.
        forward: Weight of KL(q||p).
        uses_score: A fact, not an option: it needs no derivative.
    """

    reverse: float = 1.0
    forward: float = 1.0
    uses_score: bool = False

    @property
    def uses_proposal(self) -> bool:
        return self.forward > 0

    def __call__(self, model: Variables, batch: Batch) -> Array:
        loss = jnp.zeros(())
        if self.reverse:
            log_p = _log_ratio(model, batch.s)
            ratio = jax.lax.stop_gradient(_clip(log_p - batch.target))
            loss += self.reverse * jnp.mean((1 + ratio) * log_p)
        if self.forward:
            assert batch.proposal_s is not None
            assert batch.proposal_target is not None and batch.proposal_log_ratio is not None
            weights = jax.nn.softmax(batch.proposal_target - batch.proposal_log_ratio)
            loss -= self.forward * jnp.sum(weights * _log_ratio(model, batch.proposal_s))
        return loss


@dataclasses.dataclass(frozen=True)
class CentredJeffreys:
    """Both divergences from the model's own samples, without derivatives, centred.

    (l_i - mean l) grad log p for KL(p||q) and (n w_i - 1) grad log p for KL(q||p), w against the
    model itself: the variance vanishes where p = q.

    Attributes:
        reverse: Weight of KL(p||q).
        forward: Weight of KL(q||p).
        uses_score: A fact, not an option: it needs no derivative.
        uses_proposal: A fact, not an option: nor samples of the proposal.
    """

    reverse: float = 1.0
    forward: float = 1.0
    uses_score: bool = False
    uses_proposal: bool = False

    def __call__(self, model: Variables, batch: Batch) -> Array:
        log_p = _log_ratio(model, batch.s)
        ratio = jax.lax.stop_gradient(_clip(log_p - batch.target))
        n = len(ratio)
        centred = (ratio - ratio.mean()) * (n / max(n - 1, 1))
        weights = n * jax.nn.softmax(-ratio)
        return jnp.mean((self.reverse * centred - self.forward * (weights - 1)) * log_p)


@dataclasses.dataclass(frozen=True)
class PathwiseJeffreys:
    """Both divergences through the path x = T(z), for targets with a derivative.

    The gradient of E_p[f(w)], w = q/p, that only follows the path is -E[f''(w) w^2 (d log w / dx)
    dx/dtheta]: a factor 1 for KL(p||q) and w for KL(q||p), on one batch, and zero variance where
    p = q.

    Attributes:
        reverse: Weight of KL(p||q).
        forward: Weight of KL(q||p).
        max_weight: Weights w are at most this many times their mean.
        uses_score: A fact, not an option: it needs a derivative.
        uses_proposal: A fact, not an option: but no samples of the proposal.
    """

    reverse: float = 1.0
    forward: float = 1.0
    max_weight: float = 10.0
    uses_score: bool = True
    uses_proposal: bool = False

    def __call__(self, model: Variables, batch: Batch) -> Array:
        assert batch.score is not None
        dynamic, static = eqx.partition(model, eqx.is_inexact_array)
        fixed = eqx.combine(jax.lax.stop_gradient(dynamic), static)
        log_p, score = fixed.log_ratio_and_score(batch.s)
        weights = len(log_p) * jax.nn.softmax(-_clip(log_p - batch.target))
        factor = self.reverse + self.forward * jnp.minimum(weights, self.max_weight)
        direction = jax.lax.stop_gradient(factor[:, None] * (score - batch.score))
        moved = model.forward(batch.z)[0] if batch.moved is None else batch.moved
        return jnp.mean(jnp.sum(direction * moved, -1))


@dataclasses.dataclass(frozen=True)
class SteinObjective:
    """Amortized SVGD: the samples follow the kernelised Stein direction (ablation "-AS").

    Radial basis kernel with the median heuristic, on the trained variables.

    Attributes:
        uses_score: A fact, not an option: it needs a derivative.
        uses_proposal: A fact, not an option: but no samples of the proposal.
    """

    uses_score: bool = True
    uses_proposal: bool = False

    def __call__(self, model: Variables, batch: Batch) -> Array:
        assert batch.score is not None
        score = batch.score - batch.s  # of the target itself: the prior is standard normal here
        direction = jax.lax.stop_gradient(stein_direction(batch.s, score))
        return -jnp.mean(jnp.sum(direction * model.forward(batch.z)[0], -1))


def stein_direction(s: Array, score: Array) -> Array:
    """phi(s_i) = mean_j [k(s_j, s_i) score_j + grad_j k(s_j, s_i)], k Gaussian."""
    n = len(s)
    squared = jnp.sum((s[:, None] - s[None]) ** 2, -1)
    bandwidth = jnp.median(squared) / jnp.log(n + 1.0) + 1e-12
    kernel = jnp.exp(-squared / bandwidth)
    repulsion = 2 / bandwidth * (s * kernel.sum(1, keepdims=True) - kernel @ s)
    return (kernel @ score + repulsion) / n


def kernelised_stein_discrepancy(s: Array, score: Array) -> Array:
    """Squared kernelised Stein discrepancy (V-statistic) of samples to a target with that score."""
    n, m = s.shape
    difference = s[:, None] - s[None]
    squared = jnp.sum(difference**2, -1)
    h = jnp.median(squared) / jnp.log(n + 1.0) + 1e-12
    kernel = jnp.exp(-squared / h)
    inner = score @ score.T
    cross = 2 / h * jnp.einsum("ijk,ik->ij", difference, score)
    cross -= 2 / h * jnp.einsum("ijk,jk->ij", difference, score)
    trace = 2 * m / h - 4 * squared / h**2
    return jnp.mean(kernel * (inner + cross + trace))


def pool_jeffreys(
    log_p: Array,
    target: Array,
    mixture: Array,
    reverse: float = 1.0,
    forward: float = 1.0,
    clip: float = MAX_LOG_RATIO,
) -> Array:
    """Jeffreys divergence between model and target on a pool of fields drawn from a mixture.

    Both are re-weighted to the pool with the balance heuristic (all draws together are a sample
    of the mixture of the proposals that drew them) and self-normalised. The derivative is the
    control-variate form: model weights minus target weights, zero for any pool where p = q. Rows
    with `mixture = inf` do not count. Log-ratios are clipped at +-`clip`.
    """
    used = jnp.isfinite(mixture)
    log_v = jax.nn.log_softmax(jnp.where(used, log_p - mixture, -jnp.inf))
    log_w = jax.nn.log_softmax(jnp.where(used, target - mixture, -jnp.inf))
    ratio = jnp.where(used, _clip(log_v - log_w, clip), 0.0)
    return jnp.sum((reverse * jnp.exp(log_v) - forward * jnp.exp(log_w)) * ratio)


def stray_penalty(density: Array, bound: Array) -> Array:
    """What samples of the model pay where their log-density exceeds a bound, on average.

    As a function of the density at samples that do not move, its gradient is that of the mean
    excess E_p[max(0, log p - bound)], on which the samples depend as well.
    """
    excess = jnp.maximum(0.0, density - bound)
    return jnp.mean(excess + 0.5 * excess**2)


def _log_ratio(model: Variables, s: Array) -> Array:
    return model.backward(s)[1]


def _clip(log_ratio: Array, limit: float = MAX_LOG_RATIO) -> Array:
    return jnp.clip(jnp.nan_to_num(log_ratio, nan=limit), -limit, limit)
