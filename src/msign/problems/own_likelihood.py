"""Likelihoods that a user writes: a function to a distribution, or a log-likelihood of fields."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from msign.noise import default_dtype, on_device
from msign.problems.data_likelihood import DataLikelihood, Inflation, Layout, OwnValues
from msign.problems.likelihoods import Likelihood
from msign.variables import in_pieces

Summands = Callable[[Any, Any], Any]


class FromDistribution(Likelihood):
    """A function from predictions of one field, shaped as the data, to a distribution of the data.

    All that is asked of the distribution is `log_prob(data)`, in JAX: one number for all
    observations (flowjax), or one for each (NumPyro, distrax).

    Attributes:
        function: As given.
        summands: `(features (m,), data (m,)) -> (k,)`, made by `restricted`.
    """

    function: Callable[[Any], Any] = eqx.field(static=True)
    summands: Summands | None = eqx.field(static=True, default=None)

    @property
    def covariance(self) -> np.ndarray | None:
        return None

    def check(self, data: np.ndarray) -> None:
        """What data can be is known to the distribution alone."""

    def restricted(self, layout: Layout) -> Likelihood:
        """Refuses functions that cannot be traced, and a `log_prob` of a wrong shape."""
        shape, whole = layout.shape, jax.ShapeDtypeStruct(layout.shape, default_dtype())
        try:
            out = jax.eval_shape(lambda p, y: self.function(p).log_prob(y), whole, whole)
        except Exception as error:
            what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise ValueError(
                f"likelihood must be JAX code from predictions of shape {shape} to a distribution "
                f"with log_prob, got {what}"
            ) from error
        got = getattr(out, "shape", None)
        if got not in ((), shape):
            raise ValueError(f"likelihood must have a log_prob of shape {shape} or (), got {got}")
        if got == () and layout.kept is not None:
            raise ValueError(
                "missing must be 'raise' where log_prob is one number for all data, got 'drop'"
            )
        return FromDistribution(self.function, _summands(self.function, layout))

    def given(self, data: np.ndarray, error: Inflation | None = None) -> DataLikelihood:
        assert self.summands is not None
        return _DistributedData(summands=self.summands, data=data)


def _summands(function: Callable[[Any], Any], layout: Layout) -> Summands:
    """Log-densities of the observations that are used.

    In the place of those that are missing stand the first prediction and the first datum, which
    are possible, and of which nothing is used.
    """
    kept = np.arange(layout.size) if layout.kept is None else layout.kept
    source = np.zeros(layout.size, int)
    source[kept] = np.arange(len(kept))

    def whole(flat: Any) -> Any:
        return (flat if layout.kept is None else flat[source]).reshape(layout.shape)

    def summands(features: Any, data: Any) -> Any:
        log_prob = function(whole(features)).log_prob(whole(data))
        return log_prob[None] if log_prob.ndim == 0 else log_prob.reshape(-1)[kept]

    return summands


class _DistributedData(DataLikelihood):
    """Given data of a user's distribution; features are the predictions."""

    summands: Summands = eqx.field(static=True)
    data: Any
    constant: float = eqx.field(static=True, default=0.0)

    def terms(self, features: Any) -> Any:
        return _for_each(_terms, self.summands, features, self.data)

    def score(self, features: Any) -> Any:
        return _for_each(_score, self.summands, features, self.data)

    def information(self, features: Any) -> Any:
        return _for_each(_curvature, self.summands, features, self.data)


def _terms(summands: Summands, features: Any, data: Any) -> Any:
    return summands(features, data)


def _score(summands: Summands, features: Any, data: Any) -> Any:
    return jax.grad(lambda f: summands(f, data).sum())(features)


def _curvature(summands: Summands, features: Any, data: Any) -> Any:
    """Diagonal of the Hessian of minus the log-likelihood, zero where it is negative.

    One product with the Hessian for each observation.
    """
    slope = jax.grad(lambda f: summands(f, data).sum())

    def along(unit: Any) -> Any:
        return jax.jvp(slope, (features,), (unit,))[1] @ unit

    units = jnp.eye(len(features), dtype=features.dtype)
    return jnp.maximum(0.0, -jax.lax.map(along, units))


def _for_each(function: Callable[..., Any], summands: Summands, features: Any, data: Any) -> Any:
    """A function of the features `(m,)` of one field, of each of `(n, m)` or of one.

    NumPy arrays are compiled code's business, too, and come back as such.
    """
    if isinstance(features, np.ndarray):
        given, rows = on_device(data), features.reshape(-1, features.shape[-1])
        (found,) = in_pieces(lambda part: (_compiled(function, summands, part, given),), rows)
        return found.astype(np.float64).reshape(*features.shape[:-1], -1)
    one = partial(function, summands, data=data)
    return jax.vmap(one)(features) if features.ndim == 2 else one(features)


@partial(jax.jit, static_argnums=(0, 1))
def _compiled(function: Callable[..., Any], summands: Summands, rows: Any, data: Any) -> Any:
    return jax.vmap(lambda f: function(summands, f, data))(rows)


class OfFields(Likelihood):
    """Of a problem that is given by a log-likelihood of fields."""

    @property
    def covariance(self) -> np.ndarray | None:
        return None

    def check(self, data: np.ndarray) -> None:
        """There are none."""

    def restricted(self, layout: Layout) -> Likelihood:
        return self

    def given(self, data: np.ndarray, error: Inflation | None = None) -> DataLikelihood:
        return OwnValues()


def as_forward(log_likelihood: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A log-likelihood of fields `(n,)` as a forward map of one observation `(n, 1)`."""

    def forward(x: Any) -> Any:
        values, n = log_likelihood(x), len(x)
        if np.shape(values) != (n,):
            raise ValueError(
                f"log_likelihood must return shape {(n,)} for {n} fields, got {np.shape(values)}"
            )
        return (values if hasattr(values, "ndim") else np.asarray(values))[:, None]

    return forward


def as_vjp(gradient: Callable[[Any], Any]) -> Callable[[Any, Any], np.ndarray]:
    """The gradient of a log-likelihood as transposed derivative of that forward map."""

    def vjp(x: Any, cotangents: Any) -> np.ndarray:
        slopes = np.asarray(gradient(x), np.float64)
        if slopes.shape != np.shape(x):
            raise ValueError(f"gradient must return shape {np.shape(x)}, got {slopes.shape}")
        return slopes * np.reshape(cotangents, (len(slopes),) + (1,) * (slopes.ndim - 1))

    return vjp
