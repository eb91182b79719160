"""A pool of evaluated fields that is used again and again: simulations are the cost, not the flow.

Fields come from a sequence of proposals (the model as it was). All of them together are treated as
one sample of the mixture of these proposals (the balance heuristic), whose density at each field
is kept up to date as proposals are added.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from msign.inference.models import Core, excess_all
from msign.inference.objectives import MAX_LOG_RATIO
from msign.weights import highest_power, normalised, weight_report

PICKED = 0.1  # of a minibatch is drawn by what fields add to the divergence,
MOST = 0.01  # none of them more often than this, of what is so drawn


class Pool(eqx.Module):
    """Evaluated fields in arrays of fixed capacity, so that compiled code sees one shape.

    Attributes:
        s: Trained variables `(capacity, m)`.
        log_likelihood: `(capacity,)`.
        excess: Excess of each proposal at each field `(proposals, capacity)`.
        residual: Whitened residuals `(capacity, m)` for an emulator (else `(capacity, 0)`).
        counts: Fields drawn from each proposal `(proposals,)`.
        size: Fields in the pool.
    """

    s: np.ndarray
    log_likelihood: np.ndarray
    excess: np.ndarray
    residual: np.ndarray
    counts: np.ndarray
    size: int

    @classmethod
    def empty(cls, capacity: int, m: int, proposals: int, observations: int = 0) -> "Pool":
        """A pool with room for so many fields of m variables, proposals and residuals."""
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
        proposals: list[Core],
        residual: np.ndarray | None = None,
    ) -> "Pool":
        """The pool with fields drawn from the last of `proposals` added, always as many."""
        n, start = len(s), self.size
        stop = start + n
        new_s, values = self.s.copy(), self.log_likelihood.copy()
        excess, counts = self.excess.copy(), self.counts.copy()
        residuals = self.residual.copy()
        new_s[start:stop] = s
        values[start:stop] = log_likelihood
        if self.residual.shape[1] and residual is not None:
            residuals[start:stop] = residual
        for i, proposal in enumerate(proposals[:-1]):
            excess[i, start:stop] = np.asarray(excess_all(proposal, jnp.asarray(s)))
        last = len(proposals) - 1
        for a in range(0, stop, n):  # pieces of one size, so that they are compiled once
            piece = jnp.asarray(new_s[a : a + n])
            excess[last, a : a + n] = np.asarray(excess_all(proposals[-1], piece))
        counts[last] = n
        return Pool(new_s, values, excess, residuals, counts, stop)

    def mixture(self) -> np.ndarray:
        """Log-density of the mixture minus log prior; infinite where the pool is empty."""
        used = self.counts > 0
        shares = np.log(self.counts[used] / self.size)[:, None]
        log_mixture = np.logaddexp.reduce(self.excess[used] + shares, axis=0)
        log_mixture[self.size :] = np.inf
        return log_mixture

    def log_evidence(self) -> tuple[float, float]:
        """Log evidence by all fields together, and its standard error.

        Early proposals are wide: a mode that the model has lost since is still in here.
        """
        report = weight_report(self.log_likelihood[: self.size] - self.mixture()[: self.size])
        return report.log_evidence, report.log_evidence_stderr

    def bridged(self, temperature: float) -> np.ndarray:
        """Log-target minus log prior on the bridge: (1 - T) first proposal + T posterior."""
        values = temperature * self.log_likelihood
        return values + (1 - temperature) * self.excess[0] if temperature < 1 else values

    def target(self, temperature: float) -> np.ndarray:
        """`bridged`, normalised: by the pool's own estimate its integral is one."""
        values, n = self.bridged(temperature), self.size
        mean = np.logaddexp.reduce(values[:n] - self.mixture()[:n]) - np.log(n)
        return values - mean

    def flattened(self, effective: float) -> np.ndarray:
        """Log-weights of a power of the posterior, the lowest that is worth `effective` samples."""
        s, values = self.s[: self.size], self.log_likelihood[: self.size]
        weights, density = values - self.mixture()[: self.size], values - 0.5 * np.sum(s**2, 1)
        power = highest_power(lambda t: weights - t * density, effective, 0.0)
        return np.pad(
            weights - power * density, (0, len(self.s) - self.size), constant_values=-np.inf
        )

    def uniform(self) -> np.ndarray:
        """The same chance for each field."""
        return np.where(np.arange(len(self.s)) < self.size, 1 / self.size, 0.0)

    def chances(self, target: np.ndarray) -> np.ndarray:
        """Chances of the fields to be drawn: most alike, some by what they add to the divergence.

        Of the latest proposal from the target. So the few fields where it is far off, strays
        between narrow modes for one, are seen at every step.
        """
        n, latest = self.size, np.flatnonzero(self.counts)[-1]
        mixture = self.mixture()[:n]
        v, w = (normalised(a[:n] - mixture) for a in (self.excess[latest], target))
        with np.errstate(divide="ignore"):
            ratio = np.clip(np.log(v) - np.log(w), -MAX_LOG_RATIO, MAX_LOG_RATIO)
        added = np.where(v == w, 0.0, (v - w) * ratio)
        added = np.minimum(added, MOST * added.sum())
        chances = self.uniform()
        if added.sum() > 0:
            chances[:n] = (1 - PICKED) * chances[:n] + PICKED * added / added.sum()
        return chances

    def highest_temperature(self, effective: float, lowest: float) -> float:
        """The largest T, at least `lowest`, at which the weights are worth `effective` samples."""
        mixture = self.mixture()[: self.size]
        return highest_power(lambda t: self.bridged(t)[: self.size] - mixture, effective, lowest)
