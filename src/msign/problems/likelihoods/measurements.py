"""Likelihoods of measurements with noise: the forward map predicts their centres."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import ArrayLike
from scipy.special import gammaln

from msign import checks
from msign.problems.data_likelihood import DataLikelihood, Inflation, Layout, whitened_noise
from msign.problems.likelihoods.base import Independent, Likelihood, positive_parameter


class _Location(Independent):
    """Noise around the prediction; features are residuals in units of `scale`."""

    scale: eqx.AbstractVar[np.ndarray]

    def check(self, data: np.ndarray) -> None:
        """Any number may be measured."""

    def features(self, predicted: Any, data: Any) -> Any:
        return (data - predicted) / self.scale

    def slope(self) -> Any:
        return -1 / self.scale

    def predicted(self, features: np.ndarray, data: np.ndarray) -> np.ndarray:
        return data - self.scale * features

    def residuals(self, features: np.ndarray, data: np.ndarray) -> np.ndarray:
        """In units of `scale`: the score of heavy tails is small for an outlier."""
        return features

    def drawn(self, predicted: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return predicted + self.scale * self.noise(predicted.shape, rng)

    @abstractmethod
    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """Of width one."""


class StudentT(_Location):
    """Noise with heavy tails: an outlier pulls less the further off it is.

    log p(y) = log Gamma((df + 1) / 2) - log Gamma(df / 2) - log(df pi scale^2) / 2 -
    (df + 1) / 2 log(1 + r^2 / df), r = (y - predicted) / scale. The information about a prediction
    is (df + 1) / (df + 3) / scale^2.

    Args:
        scale: Width; close to the standard deviation of measurements that are no outliers.
        df: Degrees of freedom: 1 is Cauchy's distribution, many are Gaussian.
    """

    scale: np.ndarray = eqx.field(converter=positive_parameter("scale"))
    df: np.ndarray = eqx.field(converter=positive_parameter("df"))

    def draw(self, predicted: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
        return predicted + self.scale * rng.standard_t(self.df, predicted.shape)

    def kernel(self, features: Any, data: Any) -> Any:
        xp = features.__array_namespace__()
        return -0.5 * (self.df + 1) * xp.log1p(features**2 / self.df)

    def constants(self, data: np.ndarray) -> np.ndarray:
        half = 0.5 * self.df
        shape = gammaln(half + 0.5) - gammaln(half) - 0.5 * np.log(self.df * np.pi)
        return shape - np.log(self.scale)

    def score(self, features: Any, data: Any) -> Any:
        return -(self.df + 1) * features / (self.df + features**2)

    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        return rng.standard_t(np.broadcast_to(self.df, shape))

    def information(self, features: Any) -> Any:
        ones = features.__array_namespace__().ones_like(features)
        return (self.df + 1) / (self.df + 3) * ones


class Laplace(_Location):
    """Noise of density exp(-|y - predicted| / scale) / (2 scale); its information is 1 / scale^2.

    Args:
        scale: A positive number, or one for each observation.
    """

    scale: np.ndarray = eqx.field(converter=positive_parameter("scale"))

    def draw(self, predicted: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
        return rng.laplace(predicted, self.scale)

    def kernel(self, features: Any, data: Any) -> Any:
        return -abs(features)

    def constants(self, data: np.ndarray) -> np.ndarray:
        return -np.log(2 * self.scale)

    def score(self, features: Any, data: Any) -> Any:
        return -features.__array_namespace__().sign(features)

    def noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        return rng.laplace(size=shape)

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
            widths = layout.select(std, positive_parameter(std)(self.std))
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

    def log_prob_of_each(self, predicted: np.ndarray, data: np.ndarray) -> np.ndarray | None:
        assert self.covariance is not None
        variances = np.diag(self.covariance)
        if np.any(self.covariance != np.diag(variances)):
            return None
        return -0.5 * ((data - predicted) ** 2 / variances + np.log(2 * np.pi * variances))

    def draw(self, predicted: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
        assert self.covariance is not None
        factor = np.linalg.cholesky(self.covariance)
        return predicted + rng.normal(size=predicted.shape) @ factor.T

    def fisher(self, predicted: ArrayLike) -> np.ndarray:
        """Expected information about each prediction, of the shape of `predicted`."""
        ones = np.ones_like(np.asarray(predicted, np.float64))
        if self.std is not None:
            return ones / np.asarray(self.std, np.float64) ** 2
        return ones * np.diag(np.linalg.inv(np.asarray(self.cov, np.float64)))

    def _name(self, name: str) -> str:
        """Of an argument, as the user knows it."""
        return name if self.normalised else f"noise_{name}"
