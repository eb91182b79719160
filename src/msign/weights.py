"""Quality of importance weights: what a certificate rests on.

`log_weights` are log q - log p of samples of p, up to one common constant.
"""

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np
from jaxtyping import ArrayLike

HEAVY = 0.7  # k-hat from which the tail of weights is heavy


@dataclasses.dataclass(frozen=True)
class WeightReport:
    """Estimates from n log-weights.

    Attributes:
        n: Number of samples.
        ess_fraction: Effective sample size over n.
        khat: Pareto shape of the largest weights (below 0.5: reliable; above 0.7: not).
        log_evidence: Log of the mean weight.
        log_evidence_stderr: Its standard error.
        reverse_kl: Estimate of KL(p||q).
        forward_kl: Estimate of KL(q||p), self-normalised.
        jeffreys: Their sum.
        jeffreys_stderr: Its standard error.
        worst: Largest log-weight above the log-evidence: how much the worst sample of p misses.
        lowest: Smallest log-weight below the log-evidence.
        lost: Log evidence known from elsewhere above that of these samples (`lost_evidence`).
    """

    n: int
    ess_fraction: float
    khat: float
    log_evidence: float
    log_evidence_stderr: float
    reverse_kl: float
    forward_kl: float
    jeffreys: float
    jeffreys_stderr: float
    worst: float
    lowest: float
    lost: float = 0.0

    @property
    def divergence(self) -> float:
        """The Jeffreys estimate, and the log evidence that the samples lack."""
        return self.jeffreys + self.lost

    @property
    def poor(self) -> bool:
        """Whether the weights say nothing, not even what part of the posterior is missing."""
        return is_poor(self.ess_fraction, self.khat, self.worst)

    @property
    def grade(self) -> str:
        """GOOD, ROUGH or NOT RELIABLE: whether samples and weights can be trusted.

        A heavy tail (k-hat) counts where the largest weights are large in themselves; single
        samples far off the posterior (`lowest`) count although they leave no trace in the ESS.
        """
        heavy = self.khat > HEAVY
        if self.lost > 0 or self.poor or not np.isfinite(self.log_evidence):
            return "NOT RELIABLE"
        if self.ess_fraction < 0.1 or (heavy and self.worst > np.log(5)) or self.lowest < -30:
            return "ROUGH"
        return "GOOD"

    @property
    def verdict(self) -> str:
        """The grade, and why, in words."""
        figures = (
            f"{self.grade}: effective sample size {100 * self.ess_fraction:.3g} percent, k-hat "
            f"{self.khat:.2f}, log-weights from {self.lowest:.3g} to {self.worst:.3g}"
        )
        if self.lost > 0 and not self.poor:
            return (
                f"{figures}, but fields simulated in training carry {np.exp(self.lost):.3g} times "
                "the mass of these samples: the model has lost a mode."
            )
        if self.grade == "NOT RELIABLE":
            return f"{figures}. Neither samples nor weights describe the posterior."
        if self.grade == "ROUGH" and self.lowest == -np.inf:
            return (
                f"{figures}. Some samples cannot be simulated: they have no weight, so use "
                "importance-corrected ones."
            )
        if self.grade == "ROUGH":
            return (
                f"{figures}. Use importance-corrected samples, and expect slow convergence of "
                "tail quantities."
            )
        return (
            f"{figures}; importance weights correct the rest. (A mode that the model never visits "
            "leaves no trace in its own weights.)"
        )


def is_poor(ess_fraction: float, khat: float, worst: float) -> bool:
    """Whether weights of that effective size, tail and largest log-weight say nothing."""
    return bool(ess_fraction < 0.01 or (khat > HEAVY and worst > np.log(20)))


def normalised(log_weights: ArrayLike) -> np.ndarray:
    """Weights that sum to one."""
    a = np.asarray(log_weights, np.float64)
    w = np.exp(a - np.max(a))
    return w / w.sum()


def resampled(log_weights: ArrayLike, n: int, start: float) -> np.ndarray:
    """Indices of n draws in proportion to their weights (systematic resampling).

    One uniform number `start` in [0, 1) decides all of them, which has the least variance.
    """
    sums = np.cumsum(normalised(log_weights))
    return np.searchsorted(sums, (np.arange(n) + start) / n).clip(max=len(sums) - 1)


def highest_power(log_weights: Callable[[float], np.ndarray], worth: float, low: float) -> float:
    """The largest T in [low, 1] whose weights are worth `worth` samples; `low` if none is.

    `log_weights(T)` are those on the way, T = 1 being its end.
    """

    def enough(t: float) -> bool:
        return 1 / np.sum(normalised(log_weights(t)) ** 2) >= worth

    if enough(1.0):
        return 1.0
    high = 1.0
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def ess_fraction(log_weights: ArrayLike) -> float:
    """Effective sample size over the number of samples."""
    w = normalised(log_weights)
    return float(1 / (len(w) * np.sum(w**2)))


def pareto_khat(log_weights: ArrayLike) -> float:
    """Shape of a generalised Pareto distribution fitted to the largest weights.

    Those of the diagnostic of Vehtari et al. (Pareto smoothed importance sampling): a fifth of n,
    at most 3 sqrt(n), by what they exceed the next one. Infinite where fewer than five do.
    """
    a = np.sort(np.asarray(log_weights, np.float64))
    if a[0] == a[-1] or a[-1] - a[0] < 1e-9:
        return -np.inf
    tail = int(np.ceil(min(len(a) / 5, 3 * np.sqrt(len(a)))))
    a = np.maximum(a[-tail - 1 :] - a[-1], np.log(np.finfo(np.float64).tiny))
    excess = np.exp(a[a > a[0]]) - np.exp(a[0])
    return _pareto_shape(excess) if len(excess) > 4 else np.inf


def _pareto_shape(x: np.ndarray) -> float:
    """Shape of a generalised Pareto sample in rising order, by the estimator of Zhang and Stephens.

    A posterior mean over the other parameter b = -shape / scale on a grid, of a profile likelihood
    with a weak prior on b, and ten observations' worth of prior weight on a shape of one half.
    """
    n, points = len(x), 30 + int(np.sqrt(len(x)))
    quarter = x[int(n / 4 + 0.5) - 1]
    grid = 1 - np.sqrt(points / (np.arange(points) + 0.5))
    b = 1 / x[-1] + grid / (3 * quarter)
    shape = np.log1p(-b[:, None] * x).mean(1)
    profile = normalised(n * (np.log(-b / shape) - shape - 1))
    found = np.log1p(-(profile @ b) * x).mean()
    return float((n * found + 10 * 0.5) / (n + 10))


class Estimated(Protocol):
    """What has an estimate of the evidence."""

    @property
    def log_evidence(self) -> float: ...

    @property
    def log_evidence_stderr(self) -> float: ...


def lost_evidence(report: Estimated, log_evidence: float, stderr: float) -> float:
    """How far another estimate of the log evidence lies above a report's; 0 if not for certain.

    A model that has lost a mode has perfect weights on the rest, and an evidence that is too low.
    """
    gap = log_evidence - report.log_evidence
    sure = max(0.1, 4 * float(np.hypot(stderr, report.log_evidence_stderr)))
    return gap if gap > sure else 0.0


def weight_report(log_weights: ArrayLike) -> WeightReport:
    """All estimates from log-weights."""
    a = np.asarray(log_weights, np.float64)
    n = len(a)
    top = a.max()
    w = np.exp(a - top)
    mean = w.mean()
    log_evidence = float(top + np.log(mean))
    relative = w / mean  # q/p, mean one
    log_relative = a - log_evidence
    finite = np.isfinite(a)
    reverse = -log_relative if finite.all() else np.full(n, np.inf)
    forward = relative * np.where(finite, log_relative, 0.0)
    # Delta method for the self-normalised forward part; the evidence drops out of the sum.
    spread = reverse + forward - forward.mean() * relative
    stderr = float(np.std(spread) / np.sqrt(n)) if finite.all() else np.inf
    return WeightReport(
        n=n,
        ess_fraction=ess_fraction(a),
        khat=pareto_khat(a),
        log_evidence=log_evidence,
        log_evidence_stderr=float(relative.std() / np.sqrt(n)),
        reverse_kl=float(reverse.mean()),
        forward_kl=float(forward.mean()),
        jeffreys=float(reverse.mean() + forward.mean()),
        jeffreys_stderr=stderr,
        worst=float(log_relative.max()),
        lowest=float(log_relative.min()),
    )
