"""A problem of ours as a likelihood of NIFTy; importing this needs `nifty`.

NIFTy is run without its compiler, so that its conjugate gradients and Newton steps are loops of
Python in which simulations are made by a `Simulator`, counted, in any language.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import nifty.re as jft
import numpy as np

from msign.problems import InverseProblem
from msign.problems.likelihoods import Gaussian, Likelihood, Poisson, StudentT
from msign.samplers.nifty_places import Places


def of_features(problem: InverseProblem) -> jft.Likelihood:
    """NIFTy's likelihood of the features of a simulation."""
    family: Likelihood = problem.family
    zero = jnp.zeros(problem.layout.m)
    if isinstance(family, Gaussian):  # features are residuals in units of the noise
        return jft.Gaussian(zero, _identity, _identity)
    if isinstance(family, StudentT):
        return jft.StudentT(zero, jnp.asarray(family.df), _identity, _identity)
    assert isinstance(family, Poisson)  # features are log rates
    counts = jft.Poissonian(jnp.asarray(problem.data, int))
    return counts.amend(jnp.exp, domain=jax.ShapeDtypeStruct(zero.shape, zero.dtype))


def _identity(x: Any) -> Any:
    return x


class Simulated(jft.Likelihood):
    """The likelihood of fields in whitened coordinates `(d,)`, where NIFTy's prior is ours.

    Energies are minus our log-likelihood; metric and transformation are NIFTy's, of the features.

    Args:
        places: Simulates.
        inner: The likelihood of features.
        dim: d.
    """

    def __init__(self, places: Places, inner: jft.Likelihood, dim: int):
        self.places = places
        self.inner_metric = jax.jit(inner.metric)
        self.inner_left = jax.jit(inner.left_sqrt_metric)
        self.inner_right = jax.jit(inner.right_sqrt_metric)
        self.inner_transformation = jax.jit(inner.transformation)
        self.many_metrics = jax.jit(jax.vmap(inner.metric))
        super().__init__(
            domain=jax.ShapeDtypeStruct((dim,), jnp.zeros(()).dtype),
            lsm_tangents_shape=inner.lsm_tangents_shape,
        )

    def transformation(self, primals: Any) -> Any:
        """To coordinates in which the metric is the identity: one simulation."""
        return self.inner_transformation(self.places.features(_row(primals))[0])

    def left_sqrt_metric(self, primals: Any, tangents: Any) -> Any:
        """One adjoint solve."""
        u = _row(primals)
        inner = self.inner_left(self.places.features(u)[0], tangents)
        return jnp.asarray(self.places.adjoints(u, _row(inner))[0])

    def right_sqrt_metric(self, primals: Any, tangents: Any) -> Any:
        """One tangent solve."""
        u = _row(primals)
        features = self.places.features(u)[0]
        return self.inner_right(features, self.places.tangents(u, _row(tangents))[0])

    def metric(self, primals: Any, tangents: Any) -> Any:
        """A tangent and an adjoint solve."""
        u = _row(primals)
        features = self.places.features(u)[0]
        inner = self.inner_metric(features, self.places.tangents(u, _row(tangents))[0])
        return jnp.asarray(self.places.adjoints(u, _row(inner))[0])

    def value_and_gradient(self, primals: Any, *, primals_samples: Any) -> tuple[Any, Any]:
        """Of the mean energy of all samples around a place, the prior's included."""
        u = np.asarray(primals_samples.at(primals).samples, np.float64)
        values, slopes = self.places.log_likelihood_and_gradient(u)
        energy = np.mean(0.5 * np.sum(u**2, 1) - values)
        return jnp.asarray(energy), jnp.asarray(np.mean(u - slopes, 0))

    def mean_metric(self, primals: Any, tangents: Any, *, primals_samples: Any) -> Any:
        """The mean of the metrics at all samples around a place, the prior's included."""
        u = np.asarray(primals_samples.at(primals).samples, np.float64)
        along = np.broadcast_to(np.asarray(tangents, np.float64), u.shape)
        inner = self.many_metrics(self.places.features(u), self.places.tangents(u, along))
        return tangents + jnp.asarray(self.places.adjoints(u, np.asarray(inner)).mean(0))


def _row(array: Any) -> np.ndarray:
    return np.asarray(array, np.float64)[None]


ValueAndGradient = Callable[..., tuple[Any, Any]]


def variational_inference(likelihood: Simulated, value_and_gradient: ValueAndGradient) -> Any:
    """NIFTy's own steps of variational inference, none of them compiled."""
    return jft.OptimizeVI(
        likelihood,
        n_total_iterations=0,  # the loop around `update` is ours
        jit=False,
        linear_minimizer_jit=False,
        nonlinear_minimizer_jit=False,
        kl_map="lmap",
        residual_map="lmap",
        _kl_value_and_grad=value_and_gradient,
        _kl_metric=likelihood.mean_metric,
    )
