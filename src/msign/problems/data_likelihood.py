"""The likelihood of given data as inference sees it: a function of the features of a simulation.

Features are what inference keeps of the predicted observations of a field, as many and affine in
them: residuals in units of the noise where there is one, log rates or logits where data are counts.
All functions take features `(..., m)`, of NumPy or of JAX.
"""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

MATRIX = 256  # most independent observations whose noise is a matrix all the same


class Layout(NamedTuple):
    """How observations lie in what a forward map returns.

    Attributes:
        shape: Of the data of a user, and of the observations of one field.
        kept: Positions of observations that are used, in the flat array `(m,)`; None: all.
    """

    shape: tuple[int, ...]
    kept: np.ndarray | None = None

    @property
    def size(self) -> int:
        """Observations, missing ones among them."""
        return int(np.prod(self.shape))

    @property
    def m(self) -> int:
        """Observations that are used."""
        return self.size if self.kept is None else len(self.kept)

    def accepts(self, shape: tuple[int, ...], n: int) -> bool:
        """Whether n fields may have observations of this shape."""
        return shape in ((n, *self.shape), (n, self.size))

    def flat(self, observed: Any) -> Any:
        """Observations of n fields as `(n, m)`, without those that are missing in the data."""
        flat = observed.reshape(len(observed), self.size)
        return flat if self.kept is None else flat[:, self.kept]

    def spread(self, flat: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """`(n, m)` in the shape that the forward map returned; zero where data are missing."""
        if self.kept is not None:
            whole = np.zeros((len(flat), self.size), flat.dtype)
            whole[:, self.kept] = flat
            flat = whole
        return flat.reshape(shape)

    def select(self, name: str, parameter: np.ndarray) -> np.ndarray:
        """A parameter for each observation that is used `(m,)`, from a number or one for each."""
        if parameter.shape not in ((), self.shape, (self.size,)):
            raise ValueError(
                f"{name} must be a number or have shape {self.shape}, got {parameter.shape}"
            )
        flat = np.broadcast_to(parameter.reshape(-1), (self.size,))
        return np.array(flat if self.kept is None else flat[self.kept])


class DataLikelihood(eqx.Module):
    """The likelihood of data; its arrays, the data among them, are arguments of compiled code.

    Features are the predicted observations themselves unless it says otherwise.

    Attributes:
        constant: Part of the log-likelihood that no field changes.
    """

    constant: eqx.AbstractVar[Any]

    def features(self, observed: Any) -> Any:
        """Of predicted observations `(..., m)`."""
        return observed

    def pull(self, cotangents: Any) -> Any:
        """The transposed derivative of `features`, applied to cotangents `(..., m)`."""
        return cotangents

    def predicted(self, features: np.ndarray) -> np.ndarray:
        """The predicted observations `(..., m)` of features: the inverse of `features`."""
        return features

    def residuals(self, features: np.ndarray) -> np.ndarray:
        """What is left of each observation, in units of its own noise `(..., m)`.

        Unless it says otherwise, the score in units of its standard deviation, which for counts is
        (data - mean) / standard deviation; NaN where that is not known.
        """
        information = np.asarray(self.information(features), np.float64)
        known = np.where(information > 0, information, np.nan)
        return np.asarray(self.score(features), np.float64) / np.sqrt(known)

    def replicated(self, features: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
        """New data `(..., m)`, one set for each field; None where no way to draw them is known."""
        return None

    @abstractmethod
    def terms(self, features: Any) -> Any:
        """Summands `(..., k)` of the log-likelihood, one an observation where these are apart."""

    @abstractmethod
    def score(self, features: Any) -> Any:
        """The derivative of the log-likelihood with respect to the features `(..., m)`."""

    @abstractmethod
    def information(self, features: Any) -> Any:
        """Diagonal of the Fisher information of the features `(..., m)`.

        Where it is not known, the curvature of minus the log-likelihood, and zero where that is
        negative.
        """

    def with_error(
        self, features: np.ndarray, covariance: np.ndarray
    ) -> tuple[np.ndarray, "DataLikelihood"]:
        """For features of an emulator, which have errors: a flatter likelihood.

        Args:
            features: Of simulated fields `(n, m)`.
            covariance: Of the errors `(m, m)`.

        Returns:
            A matrix `(m, m)` by which to multiply features, and their likelihood then.
        """
        return np.eye(features.shape[1]), flattened(self, features, covariance)

    def log_likelihood(self, features: Any) -> Any:
        """Of fields by their features `(...)`."""
        return self.terms(features).sum(-1) + self.constant


class _Normal(DataLikelihood):
    """Features are residuals, standard normal under the data's distribution."""

    def terms(self, features: Any) -> Any:
        """All in one: compiled code rounds a sum of halves in another way."""
        return -0.5 * (features**2).sum(-1, keepdims=True)

    def score(self, features: Any) -> Any:
        return -features

    def residuals(self, features: np.ndarray) -> np.ndarray:
        return features

    def information(self, features: Any) -> Any:
        return features.__array_namespace__().ones_like(features)

    def with_error(
        self, features: np.ndarray, covariance: np.ndarray
    ) -> tuple[np.ndarray, DataLikelihood]:
        """Errors of the emulator are added to the noise, which is one."""
        noise = np.eye(len(covariance)) + covariance
        return np.linalg.inv(np.linalg.cholesky(noise)), StandardNormal()


class StandardNormal(_Normal):
    """Of residuals that are at hand already."""

    constant: float = eqx.field(static=True, default=0.0)


class Noise(_Normal):
    """Gaussian noise of the data.

    Attributes:
        target: Data minus the mean of the noise `(m,)`.
        whiten: Matrix `(m, m)` that makes the noise standard normal, or its diagonal `(m,)` where
            it has nothing else and is large.
        constant: Log of the noise's normalising constant, or zero where that is left out.
    """

    target: Any
    whiten: Any
    constant: Any

    def features(self, observed: Any) -> Any:
        """What is left of the data, in units of the noise."""
        residual = self.target - observed
        return residual * self.whiten if self.whiten.ndim == 1 else residual @ self.whiten.T

    def pull(self, cotangents: Any) -> Any:
        return -cotangents * self.whiten if self.whiten.ndim == 1 else -cotangents @ self.whiten

    def predicted(self, features: np.ndarray) -> np.ndarray:
        return self.target - self._coloured(features)

    def replicated(self, features: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
        return self.predicted(features) + self._coloured(rng.standard_normal(features.shape))

    def _coloured(self, white: np.ndarray) -> np.ndarray:
        """Standard normal numbers `(n, m)` as noise."""
        if self.whiten.ndim == 1:
            return white / self.whiten
        return np.linalg.solve(self.whiten, white.T).T


class Inflation(NamedTuple):
    """Mean and covariance of F(x) - F(B A x) over the prior: the coarse model's own error."""

    mean: np.ndarray
    covariance: np.ndarray

    @classmethod
    def estimated(cls, error: np.ndarray, noise: np.ndarray) -> "Inflation":
        """From errors `(n, m)` of draws; where these are few, the covariance is shrunk.

        Towards a multiple of the noise's (Ledoit and Wolf 2004, in its units), so that no
        combination of observations passes for free of error because no draw has shown its own.
        Less than two draws say nothing: no error then.
        """
        n, m = error.shape
        if n < 2:
            return cls(np.zeros(m), np.zeros((m, m)))
        if m < n:
            return cls(error.mean(0), np.cov(error.T).reshape(m, m))
        from sklearn.covariance import ledoit_wolf

        root = np.linalg.cholesky(noise)
        whitened = np.linalg.solve(root, (error - error.mean(0)).T).T
        return cls(error.mean(0), root @ ledoit_wolf(whitened)[0] @ root.T)

    def relative_to(self, noise: np.ndarray) -> float:
        """Root mean square of the error in units of the noise."""
        root = np.linalg.cholesky(noise)
        total = self.covariance + np.outer(self.mean, self.mean)
        half = np.linalg.solve(root, total)
        return float(np.sqrt(np.mean(np.diag(np.linalg.solve(root, half.T)))))


def whitened_noise(
    data: np.ndarray, covariance: np.ndarray, error: Inflation | None, normalised: bool = False
) -> Noise:
    """The noise of a scale, to which its discretisation error is added if there is one.

    Few observations have a matrix even where they are independent, so that noise with and without
    an error share programs.
    """
    if error is not None:
        data, covariance = data - error.mean, covariance + error.covariance
    root = np.linalg.cholesky(covariance)
    constant = -0.5 * len(data) * np.log(2 * np.pi) - np.log(np.diag(root)).sum()
    constant = np.asarray(constant if normalised else 0.0)
    if len(data) > MATRIX and not np.any(covariance - np.diag(np.diag(covariance))):
        return Noise(target=data, whiten=1 / np.diag(root), constant=constant)
    return Noise(target=data, whiten=np.linalg.inv(root), constant=constant)


class OwnValues(DataLikelihood):
    """Of a problem that is a log-likelihood and has no observations: its value is the feature."""

    constant: float = eqx.field(static=True, default=0.0)

    def terms(self, features: Any) -> Any:
        return features

    def score(self, features: Any) -> Any:
        return features.__array_namespace__().ones_like(features)

    def information(self, features: Any) -> Any:
        return features.__array_namespace__().zeros_like(features)


class Flattened(DataLikelihood):
    """A likelihood of features that have errors, up to a constant.

    A Gaussian error of variance v in a feature of information I makes Gaussian noise 1 + v I times
    as large, which is to raise its likelihood to the power 1 / (1 + v I). That power is taken for
    other likelihoods, too. Beyond the features that were ever simulated, where an emulator
    extrapolates, the log-likelihood goes on as a straight line: exponentials would overflow.

    Attributes:
        inner: The likelihood without errors.
        power: Of each of its terms `(k,)`.
        low, high: Range of the features that were simulated `(m,)`.
    """

    inner: DataLikelihood
    power: Any
    low: Any
    high: Any
    constant: float = eqx.field(static=True, default=0.0)

    def features(self, observed: Any) -> Any:
        return self.inner.features(observed)

    def pull(self, cotangents: Any) -> Any:
        return self.inner.pull(cotangents)

    def terms(self, features: Any) -> Any:
        within = self._within(features)
        beyond = self.inner.score(within) * (features - within)
        concat = features.__array_namespace__().concat
        return concat([self.power * self.inner.terms(within), self.power * beyond], axis=-1)

    def score(self, features: Any) -> Any:
        return self.power * self.inner.score(self._within(features))

    def information(self, features: Any) -> Any:
        return self.power * self.inner.information(self._within(features))

    def with_error(
        self, features: np.ndarray, covariance: np.ndarray
    ) -> tuple[np.ndarray, DataLikelihood]:
        return self.inner.with_error(features, covariance)

    def _within(self, features: Any) -> Any:
        return features.__array_namespace__().clip(features, self.low, self.high)


def flattened(inner: DataLikelihood, features: np.ndarray, covariance: np.ndarray) -> Flattened:
    """A likelihood for features with errors, from simulated ones `(n, m)`."""
    information = np.mean(np.asarray(inner.information(features), np.float64), 0)
    power = 1 / (1 + np.diag(covariance) * information)
    if np.shape(inner.terms(features[:1]))[-1] != len(power):  # one term for all observations
        power = np.average(power, weights=information + 1e-30, keepdims=True)
    return Flattened(inner=inner, power=power, low=features.min(0), high=features.max(0))


def cast(likelihood: DataLikelihood, dtype: Any) -> DataLikelihood:
    """The likelihood with its arrays in another precision."""
    return jax.tree.map(lambda a: a.astype(dtype), likelihood)
