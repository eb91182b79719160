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
    """Evaluated fields.

    Attributes:
        s: Variables `(n, m)`.
        log_likelihood: `(n,)`.
        log_ratio: Log-density of each proposal minus log prior at each field `(proposals, n)`; the
            first proposal is the start of the stage.
        features: Of the observations `(n, k)`, for an emulator (else `(n, 0)`).
        counts: Fields drawn from each proposal `(proposals,)`.
    """

    s: np.ndarray
    log_likelihood: np.ndarray
    log_ratio: np.ndarray
    features: np.ndarray
    counts: np.ndarray

    @classmethod
    def empty(cls, m: int, observations: int = 0) -> "SamplePool":
        """A pool for fields of m variables and their features."""
        none, features = np.zeros(0), np.zeros((0, observations), np.float32)
        return cls(np.zeros((0, m)), none, np.zeros((0, 0)), features, np.zeros(0, int))

    def shaped(self, fields: int, proposals: int) -> "SamplePool":
        """A pool of the same variables with arrays for so many fields, to be read from a file."""
        return SamplePool(
            np.zeros((fields, self.s.shape[1])),
            np.zeros(fields),
            np.zeros((proposals, fields)),
            np.zeros((fields, self.features.shape[1]), np.float32),
            np.zeros(proposals, int),
        )

    @property
    def size(self) -> int:
        """Number of fields."""
        return len(self.s)

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
        n, known = len(s), np.zeros((0, self.size))
        if self.size:
            known = np.concatenate([self.log_ratio, log_ratio(proposals[-1], self.s)[None]])
        here = np.stack([*(log_ratio(proposal, s) for proposal in proposals[:-1]), own_ratio])
        seen = np.zeros((n, self.features.shape[1]), np.float32)
        if self.features.shape[1] and features is not None:
            seen[:] = features
        return SamplePool(
            np.concatenate([self.s, s]),
            np.concatenate([self.log_likelihood, log_likelihood]),
            np.concatenate([known.reshape(len(here), -1), here], 1),
            np.concatenate([self.features, seen]),
            np.append(self.counts, n),
        )

    def mixture(self) -> np.ndarray:
        """Log-density of the mixture minus log prior `(n,)`."""
        shares = np.log(self.counts / self.size)[:, None]
        return np.logaddexp.reduce(self.log_ratio + shares, axis=0)

    def log_evidence(self) -> tuple[float, float]:
        """Log evidence by all fields together, and its standard error.

        Early proposals are wide: a mode that the model has lost since is still in here.
        """
        report = weight_report(self.log_likelihood - self.mixture())
        return report.log_evidence, report.log_evidence_stderr

    def weights(self, target: Tempered) -> np.ndarray:
        """Log-weights of a target at the fields, up to a constant `(n,)`."""
        return target.log_ratio(self.log_likelihood, self.log_ratio[0]) - self.mixture()

    def normalised(self, target: Tempered) -> np.ndarray:
        """Log target - log prior `(n,)`: by the pool's own estimate its integral is one."""
        mean = np.logaddexp.reduce(self.weights(target)) - np.log(self.size)
        return target.log_ratio(self.log_likelihood, self.log_ratio[0]) - mean

    def raised(self, target: Tempered, effective: float) -> Tempered:
        """The target at the highest temperature that is worth `effective` fields."""
        values = self.log_likelihood, self.log_ratio[0]
        return target.raised(*values, self.mixture(), effective)

    def chances(self, target: np.ndarray, picked: float) -> np.ndarray:
        """Chances of all fields to be drawn: alike, and some by what they add to the divergence.

        Of the latest proposal from the target. So the few fields where it is far off, strays
        between narrow modes for one, are seen at every step.
        """
        n, mixture = self.size, self.mixture()
        v, w = (normalised(a - mixture) for a in (self.log_ratio[-1], target))
        with np.errstate(divide="ignore"):
            ratio = np.clip(np.log(v) - np.log(w), -MAX_LOG_RATIO, MAX_LOG_RATIO)
        added = np.where(v == w, 0.0, (v - w) * ratio)
        if not added.sum() > 0:
            return np.full(n, 1 / n)
        return (1 - picked) / n + picked * added / added.sum()
