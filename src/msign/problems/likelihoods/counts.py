"""Likelihoods of counts: the forward map predicts log rates or logits."""

from typing import Any

import equinox as eqx
import numpy as np
from scipy.special import gammaln

from msign.problems.likelihoods.base import Independent, positive_parameter

LARGEST_MEAN = 1e15  # of counts that are drawn: more is no longer a whole number of 64 bits


class _Natural(Independent):
    """Predictions are log rates or logits, and are the features themselves."""

    def features(self, predicted: Any, data: Any) -> Any:
        return predicted

    def slope(self) -> Any:
        return 1.0


class Poisson(_Natural):
    """Counts with rate exp(predicted): the forward map returns log rates.

    log p(y) = y log(rate) - rate - log(y!). The information about a log rate is the rate.

    Example:
        >>> import msign
        >>> msign.likelihoods.Poisson().fisher([0.0])
        array([1.])
    """

    def check(self, data: np.ndarray) -> None:
        _whole("Poisson", "data", data)

    def draw(self, predicted: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
        return rng.poisson(np.exp(predicted)).astype(np.float64)

    def kernel(self, features: Any, data: Any) -> Any:
        # Relative to the rate y, which is best: large counts do not cancel in single precision.
        xp = features.__array_namespace__()
        away = features - xp.log(xp.where(data > 0, data, 1.0))
        return xp.where(data > 0, data * (away - xp.expm1(away)), -xp.exp(features))

    def constants(self, data: np.ndarray) -> np.ndarray:
        at_best = data * np.log(np.where(data > 0, data, 1.0)) - data
        return at_best - gammaln(data + 1)

    def score(self, features: Any, data: Any) -> Any:
        return data - features.__array_namespace__().exp(features)

    def drawn(self, predicted: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.poisson(_mean(predicted)).astype(np.float64)

    def information(self, features: Any) -> Any:
        return features.__array_namespace__().exp(features)


class Binomial(_Natural):
    """Successes of n trials, with chance 1 / (1 + exp(-predicted)): the forward map returns logits.

    The information about a logit is n p (1 - p).

    Args:
        n: Trials, a whole number or one for each observation.
    """

    n: np.ndarray = eqx.field(converter=positive_parameter("n"))

    def __check_init__(self) -> None:
        _whole("Binomial", "n", self.n)

    def check(self, data: np.ndarray) -> None:
        most = self.n.reshape(data.shape) if self.n.size == data.size else self.n
        if most.shape in ((), data.shape):  # else `restricted` says what is wrong
            _whole("Binomial" if np.any(self.n > 1) else "Bernoulli", "data", data, most)

    def draw(self, predicted: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
        return rng.binomial(self.n.astype(int), _sigmoid(predicted)).astype(np.float64)

    def kernel(self, features: Any, data: Any) -> Any:
        return data * _log_sigmoid(features) + (self.n - data) * _log_sigmoid(-features)

    def constants(self, data: np.ndarray) -> np.ndarray:
        return gammaln(self.n + 1) - gammaln(data + 1) - gammaln(self.n - data + 1)

    def score(self, features: Any, data: Any) -> Any:
        return data - self.n * _sigmoid(features)

    def drawn(self, predicted: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.binomial(self.n.astype(int), _sigmoid(predicted)).astype(np.float64)

    def information(self, features: Any) -> Any:
        return self.n * _sigmoid(features) * _sigmoid(-features)


def Bernoulli() -> Binomial:
    """Yes (1) or no (0), with chance 1 / (1 + exp(-predicted)): the forward map returns logits."""
    return Binomial(np.asarray(1.0))


class NegativeBinomial(_Natural):
    """Counts of variance mean + dispersion mean^2: the forward map returns the log of the mean.

    As dispersion goes to zero these are Poisson counts. With r = 1 / dispersion, the log-density is
    log Gamma(y + r) - log Gamma(r) - log y! + r log(r / (r + mean)) + y log(mean / (r + mean)), and
    the information about a log mean is r mean / (r + mean).

    Args:
        dispersion: A positive number, or one for each observation.
    """

    dispersion: np.ndarray = eqx.field(converter=positive_parameter("dispersion"))

    def check(self, data: np.ndarray) -> None:
        _whole("NegativeBinomial", "data", data)

    def draw(self, predicted: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
        missed = _sigmoid(-self._logit(predicted))
        return rng.negative_binomial(1 / self.dispersion, missed).astype(np.float64)

    def kernel(self, features: Any, data: Any) -> Any:
        r, logit = 1 / self.dispersion, self._logit(features)
        return data * _log_sigmoid(logit) + r * _log_sigmoid(-logit)

    def constants(self, data: np.ndarray) -> np.ndarray:
        r = 1 / self.dispersion
        return gammaln(data + r) - gammaln(r) - gammaln(data + 1)

    def score(self, features: Any, data: Any) -> Any:
        r = 1 / self.dispersion
        return data - (data + r) * _sigmoid(self._logit(features))

    def drawn(self, predicted: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        r = 1 / self.dispersion
        return rng.negative_binomial(r, r / (r + _mean(predicted))).astype(np.float64)

    def information(self, features: Any) -> Any:
        return _sigmoid(self._logit(features)) / self.dispersion

    def _logit(self, features: Any) -> Any:
        """Of mean / (r + mean)."""
        return features + features.__array_namespace__().log(self.dispersion)


def _mean(log_mean: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(log_mean, np.log(LARGEST_MEAN)))


def _log_sigmoid(x: Any) -> Any:
    return -x.__array_namespace__().logaddexp(x.__array_namespace__().zeros_like(x), -x)


def _sigmoid(x: Any) -> Any:
    return x.__array_namespace__().exp(_log_sigmoid(x))


def _whole(kind: str, name: str, array: np.ndarray, most: np.ndarray | float = np.inf) -> None:
    """Refuse entries that are not whole numbers from 0 to `most`; NaN is missing."""
    bad = (array != np.floor(array)) | (array < 0) | (array > most)
    bad &= ~np.isnan(array)
    if bad.any():
        index = tuple(map(int, np.argwhere(bad)[0]))
        highest = np.broadcast_to(most, array.shape)[index]
        span = "of at least 0" if np.isinf(highest) else f"from 0 to {highest:g}"
        value = array[index]
        raise ValueError(
            f"{name} must be whole numbers {span} for {kind}, got {value} at index {index}"
        )
