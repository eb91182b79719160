"""Likelihoods: how data are distributed given what the forward map predicts for them.

    InverseProblem(prior, forward, data, likelihood=Poisson())

The log-likelihood of each has all of its normalising constants, so that evidences of different
likelihoods of the same data can be compared. `InverseProblem(..., noise_std=0.1)` is Gaussian noise
without its constant, `likelihood=Gaussian(0.1)` the same with it.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import ArrayLike
from scipy.special import gammaln

from msign import checks
from msign.problems.data_likelihood import (
    DataLikelihood,
    Inflation,
    Layout,
    flattened,
    whitened_noise,
)

__all__ = [
    "Bernoulli",
    "Binomial",
    "Gaussian",
    "Laplace",
    "Likelihood",
    "NegativeBinomial",
    "Poisson",
    "StudentT",
]


class Likelihood(eqx.Module):
    """How data are distributed given predictions; parameters are numbers or one per observation."""

    @property
    @abstractmethod
    def covariance(self) -> np.ndarray | None:
        """Of Gaussian noise `(m, m)`; None where the noise is not Gaussian."""

    @abstractmethod
    def check(self, data: np.ndarray) -> None:
        """Refuse data that cannot be; those that are missing are NaN."""

    @abstractmethod
    def restricted(self, layout: Layout) -> "Likelihood":
        """The likelihood of the flat observations `(m,)` that are used."""

    @abstractmethod
    def given(self, data: np.ndarray, error: Inflation | None = None) -> DataLikelihood:
        """The likelihood of data `(m,)`, after `restricted`; Gaussian noise may have an error."""

    def log_prob(self, predicted: ArrayLike, data: ArrayLike) -> np.ndarray:
        """Log-density of all data together given the predictions `(n, *data.shape)` of n fields.

        Example:
            >>> import msign
            >>> predicted = [[0.0, 1.0], [0.5, 0.5]]  # two fields, logarithms of two rates
            >>> msign.likelihoods.Poisson().log_prob(predicted, [1, 3]).round(3)
            array([-2.51 , -3.089])
        """
        array, flat = np.asarray(data, np.float64), np.asarray(predicted, np.float64)
        self.check(array)
        layout = Layout(array.shape)
        bound = self.restricted(layout).given(array.reshape(-1))
        return np.asarray(bound.log_likelihood(bound.features(layout.flat(flat))))


# --- observations that are independent of each other ------------------------------------


class _Independent(Likelihood):
    """Every observation has a density of its own, given its own prediction.

    All arrays of such a class are parameters of the observations.
    """

    @property
    def covariance(self) -> np.ndarray | None:
        return None

    def restricted(self, layout: Layout) -> "Likelihood":
        kind, names = type(self), [f.name for f in dataclasses.fields(self)]
        return kind(
            **{n: layout.select(f"{n} of {kind.__name__}", getattr(self, n)) for n in names}
        )

    def given(self, data: np.ndarray, error: Inflation | None = None) -> DataLikelihood:
        constant = np.broadcast_to(self.constants(data), data.shape).sum()
        return _IndependentData(family=self, data=data, constant=np.asarray(constant))

    def fisher(self, predicted: ArrayLike) -> np.ndarray:
        """Expected information about each prediction, of the shape of `predicted`."""
        return self.information(np.asarray(predicted, np.float64)) * self.slope() ** 2

    @abstractmethod
    def features(self, predicted: Any, data: Any) -> Any:
        """What is kept of predictions; affine in them."""

    @abstractmethod
    def slope(self) -> Any:
        """Derivative of the features by the predictions."""

    @abstractmethod
    def kernel(self, features: Any, data: Any) -> Any:
        """Log-density of each observation, without its constant."""

    @abstractmethod
    def constants(self, data: np.ndarray) -> np.ndarray:
        """What `kernel` leaves out, of each observation."""

    @abstractmethod
    def score(self, features: Any, data: Any) -> Any:
        """Derivative of the kernel by the features."""

    @abstractmethod
    def information(self, features: Any) -> Any:
        """Expected square of the score."""


class _IndependentData(DataLikelihood):
    """Given data of independent observations."""

    family: _Independent
    data: Any
    constant: Any

    def features(self, observed: Any) -> Any:
        return self.family.features(observed, self.data)

    def pull(self, cotangents: Any) -> Any:
        return cotangents * self.family.slope()

    def terms(self, features: Any) -> Any:
        return self.family.kernel(features, self.data)

    def score(self, features: Any) -> Any:
        return self.family.score(features, self.data)

    def information(self, features: Any) -> Any:
        return self.family.information(features)

    def with_error(
        self, features: np.ndarray, weights: np.ndarray, covariance: np.ndarray
    ) -> tuple[np.ndarray, DataLikelihood]:
        return np.eye(features.shape[1]), flattened(self, features, weights, covariance)


def _positive(name: str) -> Callable[[ArrayLike], np.ndarray]:
    """Converter of a parameter that is a positive number, or one for each observation."""

    def convert(value: ArrayLike) -> np.ndarray:
        array = checks.finite_array(name, value)
        if array.size and array.min() <= 0:
            raise ValueError(f"{name} must be positive, got {array.min()}")
        return array

    return convert


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


# --- counts: the forward map predicts log rates or logits -------------------------------


class _Natural(_Independent):
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

    def information(self, features: Any) -> Any:
        return features.__array_namespace__().exp(features)


class Binomial(_Natural):
    """Successes of n trials, with chance 1 / (1 + exp(-predicted)): the forward map returns logits.

    The information about a logit is n p (1 - p).

    Args:
        n: Trials, a whole number or one for each observation.
    """

    n: np.ndarray = eqx.field(converter=_positive("n"))

    def __check_init__(self) -> None:
        _whole("Binomial", "n", self.n)

    def check(self, data: np.ndarray) -> None:
        most = self.n.reshape(data.shape) if self.n.size == data.size else self.n
        if most.shape in ((), data.shape):  # else `restricted` says what is wrong
            _whole("Binomial" if np.any(self.n > 1) else "Bernoulli", "data", data, most)

    def kernel(self, features: Any, data: Any) -> Any:
        return data * _log_sigmoid(features) + (self.n - data) * _log_sigmoid(-features)

    def constants(self, data: np.ndarray) -> np.ndarray:
        return gammaln(self.n + 1) - gammaln(data + 1) - gammaln(self.n - data + 1)

    def score(self, features: Any, data: Any) -> Any:
        return data - self.n * _sigmoid(features)

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

    dispersion: np.ndarray = eqx.field(converter=_positive("dispersion"))

    def check(self, data: np.ndarray) -> None:
        _whole("NegativeBinomial", "data", data)

    def kernel(self, features: Any, data: Any) -> Any:
        r, logit = 1 / self.dispersion, self._logit(features)
        return data * _log_sigmoid(logit) + r * _log_sigmoid(-logit)

    def constants(self, data: np.ndarray) -> np.ndarray:
        r = 1 / self.dispersion
        return gammaln(data + r) - gammaln(r) - gammaln(data + 1)

    def score(self, features: Any, data: Any) -> Any:
        r = 1 / self.dispersion
        return data - (data + r) * _sigmoid(self._logit(features))

    def information(self, features: Any) -> Any:
        return _sigmoid(self._logit(features)) / self.dispersion

    def _logit(self, features: Any) -> Any:
        """Of mean / (r + mean)."""
        return features + features.__array_namespace__().log(self.dispersion)


def _log_sigmoid(x: Any) -> Any:
    return -x.__array_namespace__().logaddexp(x.__array_namespace__().zeros_like(x), -x)


def _sigmoid(x: Any) -> Any:
    return x.__array_namespace__().exp(_log_sigmoid(x))


# --- measurements with noise: the forward map predicts their centres --------------------


class _Location(_Independent):
    """Noise around the prediction; features are residuals in units of `scale`."""

    scale: eqx.AbstractVar[np.ndarray]

    def check(self, data: np.ndarray) -> None:
        """Any number may be measured."""

    def features(self, predicted: Any, data: Any) -> Any:
        return (data - predicted) / self.scale

    def slope(self) -> Any:
        return -1 / self.scale


class StudentT(_Location):
    """Noise with heavy tails: an outlier pulls less the further off it is.

    log p(y) = log Gamma((df + 1) / 2) - log Gamma(df / 2) - log(df pi scale^2) / 2 -
    (df + 1) / 2 log(1 + r^2 / df), r = (y - predicted) / scale. The information about a prediction
    is (df + 1) / (df + 3) / scale^2.

    Args:
        scale: Width; close to the standard deviation of measurements that are no outliers.
        df: Degrees of freedom: 1 is Cauchy's distribution, many are Gaussian.
    """

    scale: np.ndarray = eqx.field(converter=_positive("scale"))
    df: np.ndarray = eqx.field(converter=_positive("df"))

    def kernel(self, features: Any, data: Any) -> Any:
        xp = features.__array_namespace__()
        return -0.5 * (self.df + 1) * xp.log1p(features**2 / self.df)

    def constants(self, data: np.ndarray) -> np.ndarray:
        half = 0.5 * self.df
        shape = gammaln(half + 0.5) - gammaln(half) - 0.5 * np.log(self.df * np.pi)
        return shape - np.log(self.scale)

    def score(self, features: Any, data: Any) -> Any:
        return -(self.df + 1) * features / (self.df + features**2)

    def information(self, features: Any) -> Any:
        ones = features.__array_namespace__().ones_like(features)
        return (self.df + 1) / (self.df + 3) * ones


class Laplace(_Location):
    """Noise of density exp(-|y - predicted| / scale) / (2 scale); its information is 1 / scale^2.

    Args:
        scale: A positive number, or one for each observation.
    """

    scale: np.ndarray = eqx.field(converter=_positive("scale"))

    def kernel(self, features: Any, data: Any) -> Any:
        return -abs(features)

    def constants(self, data: np.ndarray) -> np.ndarray:
        return -np.log(2 * self.scale)

    def score(self, features: Any, data: Any) -> Any:
        return -features.__array_namespace__().sign(features)

    def information(self, features: Any) -> Any:
        return features.__array_namespace__().ones_like(features)


class Gaussian(Likelihood):
    """Gaussian noise; its information about a prediction is 1 / std^2.

    Args:
        std: Standard deviation: a number, or one for each observation.
        cov: Covariance `(m, m)` of the flat observations, instead of `std`.
        normalised: Whether the log-likelihood has the constant -log det(2 pi cov) / 2, which
            `noise_std` and `noise_cov` of a problem leave out.
    """

    std: ArrayLike | None = None
    cov: ArrayLike | None = None
    normalised: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        if (self.std is None) == (self.cov is None):
            names = [self._name(n) for n in ("std", "cov")]
            raise ValueError(f"{' or '.join(names)} must be given, and not both")

    @property
    def covariance(self) -> np.ndarray | None:
        return None if self.cov is None else np.asarray(self.cov)

    def check(self, data: np.ndarray) -> None:
        """Any number may be measured."""

    def restricted(self, layout: Layout) -> Likelihood:
        std, cov = self._name("std"), self._name("cov")
        if self.std is not None:
            widths = layout.select(std, _positive(std)(self.std))
            return Gaussian(cov=np.diag(widths**2), normalised=self.normalised)
        matrix, shape = checks.finite_array(cov, self.cov), (layout.size, layout.size)
        if matrix.shape != shape:
            raise ValueError(f"{cov} must have shape {shape}, got {matrix.shape}")
        if not np.allclose(matrix, matrix.T) or np.linalg.eigvalsh(matrix)[0] <= 0:
            raise ValueError(f"{cov} must be symmetric positive definite")
        kept = np.arange(layout.size) if layout.kept is None else layout.kept
        return Gaussian(cov=matrix[np.ix_(kept, kept)], normalised=self.normalised)

    def given(self, data: np.ndarray, error: Inflation | None = None) -> DataLikelihood:
        assert self.covariance is not None
        return whitened_noise(data, self.covariance, error, self.normalised)

    def fisher(self, predicted: ArrayLike) -> np.ndarray:
        """Expected information about each prediction, of the shape of `predicted`."""
        ones = np.ones_like(np.asarray(predicted, np.float64))
        if self.std is not None:
            return ones / np.asarray(self.std, np.float64) ** 2
        return ones * np.diag(np.linalg.inv(np.asarray(self.cov, np.float64)))

    def _name(self, name: str) -> str:
        """Of an argument, as the user knows it."""
        return name if self.normalised else f"noise_{name}"
