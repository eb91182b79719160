"""A pool of evaluated fields that is used again and again: simulations are the cost, not the flow.

Fields come from a sequence of proposals (the model as it was). All of them together are treated as
one sample of the mixture of these proposals (the balance heuristic), whose density at each field
is kept up to date as proposals are added.
"""

from collections.abc import Sequence

import equinox as eqx
import numpy as np

from msign.inference.methods.objectives import MAX_LOG_RATIO
from msign.inference.target import Tempered
from msign.variables import Variables, log_ratio
from msign.weights import normalised, weight_report


class SamplePool(eqx.Module):
    """Evaluated fields in arrays of fixed capacity, so that files see one shape.

    Attributes:
        s: Variables `(capacity, m)`.
        log_likelihood: `(capacity,)`.
        log_ratio: Log-density of each proposal minus log prior at each field
            `(proposals, capacity)`; the first proposal is the start of the stage.
        features: Of the observations `(capacity, m)`, for an emulator (else `(capacity, 0)`).
        counts: Fields drawn from each proposal `(proposals,)`.
        size: Fields in the pool.
    """

    s: np.ndarray
    log_likelihood: np.ndarray
    log_ratio: np.ndarray
    features: np.ndarray
    counts: np.ndarray
    size: int

    @classmethod
    def empty(cls, capacity: int, m: int, proposals: int, observations: int = 0) -> "SamplePool":
        """An empty pool with room for fields of m variables, proposals and features."""
        return cls(
            np.zeros((capacity, m)),
            np.zeros(capacity),
            np.zeros((proposals, capacity)),
            np.zeros((capacity, observations), np.float32),
            np.zeros(proposals, int),
            0,
        )

    def add(
        self,
        s: np.ndarray,
        log_likelihood: np.ndarray,
        own_ratio: np.ndarray,
        proposals: Sequence[Variables],
        features: np.ndarray | None = None,
    ) -> "SamplePool":
        """The pool with fields drawn from the last of `proposals` added.

        `own_ratio` is its log-density minus log prior at these fields.
        """
        n, start = len(s), self.size
        stop, last = start + n, len(proposals) - 1
        names = ("s", "log_likelihood", "log_ratio", "features", "counts")
        new = SamplePool(**{name: getattr(self, name).copy() for name in names}, size=stop)
        new.s[start:stop] = s
        new.log_likelihood[start:stop] = log_likelihood
        if self.features.shape[1] and features is not None:
            new.features[start:stop] = features
        for i, proposal in enumerate(proposals[:-1]):
            new.log_ratio[i, start:stop] = log_ratio(proposal, s)
        if start:
            new.log_ratio[last, :start] = log_ratio(proposals[-1], new.s[:start])
        new.log_ratio[last, start:stop] = own_ratio
        new.counts[last] = n
        return new

    def mixture(self) -> np.ndarray:
        """Log-density of the mixture minus log prior; infinite where the pool is empty."""
        used = self.counts > 0
        shares = np.log(self.counts[used] / self.size)[:, None]
        log_mixture = np.logaddexp.reduce(self.log_ratio[used] + shares, axis=0)
        log_mixture[self.size :] = np.inf
        return log_mixture

    def log_evidence(self) -> tuple[float, float]:
        """Log evidence by all fields together, and its standard error.

        Early proposals are wide: a mode that the model has lost since is still in here.
        """
        report = weight_report(self.log_likelihood[: self.size] - self.mixture()[: self.size])
        return report.log_evidence, report.log_evidence_stderr

    def weights(self, target: Tempered) -> np.ndarray:
        """Log-weights of a target at the fields, up to a constant `(size,)`."""
        n = self.size
        return target.log_ratio(self.log_likelihood[:n], self.log_ratio[0, :n]) - self.mixture()[:n]

    def normalised(self, target: Tempered) -> np.ndarray:
        """Log target - log prior `(capacity,)`: by the pool's own estimate its integral is one."""
        mean = np.logaddexp.reduce(self.weights(target)) - np.log(self.size)
        return target.log_ratio(self.log_likelihood, self.log_ratio[0]) - mean

    def raised(self, target: Tempered, effective: float) -> Tempered:
        """The target at the highest temperature that is worth `effective` fields."""
        n = self.size
        values = self.log_likelihood[:n], self.log_ratio[0, :n]
        return target.raised(*values, self.mixture()[:n], effective)

    def chances(self, target: np.ndarray, picked: float) -> np.ndarray:
        """Chances of all fields to be drawn: alike, and some by what they add to the divergence.

        Of the latest proposal from the target. So the few fields where it is far off, strays
        between narrow modes for one, are seen at every step.
        """
        n, latest = self.size, np.flatnonzero(self.counts)[-1]
        mixture = self.mixture()[:n]
        v, w = (normalised(a[:n] - mixture) for a in (self.log_ratio[latest], target))
        with np.errstate(divide="ignore"):
            ratio = np.clip(np.log(v) - np.log(w), -MAX_LOG_RATIO, MAX_LOG_RATIO)
        added = np.where(v == w, 0.0, (v - w) * ratio)
        if not added.sum() > 0:
            return np.full(n, 1 / n)
        return (1 - picked) / n + picked * added / added.sum()
