"""What a likelihood is, and those of independent observations."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import ArrayLike

from msign import checks
from msign.problems.data_likelihood import DataLikelihood, Inflation, Layout


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

    def log_prob_of_each(self, predicted: np.ndarray, data: np.ndarray) -> np.ndarray | None:
        """Log-density of each observation `(n, m)`; None where they are not independent.

        After `restricted`, of predictions `(n, m)` and data `(m,)`.
        """
        return None

    def draw(self, predicted: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
        """Data `(n, m)` given predictions, after `restricted`; None where it is not known how."""
        return None


# --- observations that are independent of each other ------------------------------------


class Independent(Likelihood):
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
        return IndependentData(family=self, data=data, constant=np.asarray(constant))

    def log_prob_of_each(self, predicted: np.ndarray, data: np.ndarray) -> np.ndarray | None:
        return self.kernel(self.features(predicted, data), data) + self.constants(data)

    def fisher(self, predicted: ArrayLike) -> np.ndarray:
        """Expected information about each prediction, of the shape of `predicted`."""
        return self.information(np.asarray(predicted, np.float64)) * self.slope() ** 2

    @abstractmethod
    def features(self, predicted: Any, data: Any) -> Any:
        """What is kept of predictions; affine in them."""

    @abstractmethod
    def slope(self) -> Any:
        """Derivative of the features by the predictions."""

    def predicted(self, features: np.ndarray, data: np.ndarray) -> np.ndarray:
        """Predictions of features; these are the features themselves unless it says otherwise."""
        return features

    def residuals(self, features: np.ndarray, data: np.ndarray) -> np.ndarray:
        """What is left of each observation, in units of its own noise: Pearson's residual."""
        return self.score(features, data) / np.sqrt(self.information(features))

    @abstractmethod
    def drawn(self, predicted: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """New data, one for each prediction."""

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


class IndependentData(DataLikelihood):
    """Given data of independent observations."""

    family: Independent
    data: Any
    constant: Any

    def features(self, observed: Any) -> Any:
        return self.family.features(observed, self.data)

    def pull(self, cotangents: Any) -> Any:
        return cotangents * self.family.slope()

    def predicted(self, features: np.ndarray) -> np.ndarray:
        return self.family.predicted(features, self.data)

    def residuals(self, features: np.ndarray) -> np.ndarray:
        return self.family.residuals(features, self.data)

    def replicated(self, features: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
        return self.family.drawn(self.predicted(features), rng)

    def terms(self, features: Any) -> Any:
        return self.family.kernel(features, self.data)

    def score(self, features: Any) -> Any:
        return self.family.score(features, self.data)

    def information(self, features: Any) -> Any:
        return self.family.information(features)


def positive_parameter(name: str) -> Callable[[ArrayLike], np.ndarray]:
    """Converter of a parameter that is a positive number, or one for each observation."""

    def convert(value: ArrayLike) -> np.ndarray:
        array = checks.finite_array(name, value)
        if array.size and array.min() <= 0:
            raise ValueError(f"{name} must be positive, got {array.min()}")
        return array

    return convert
