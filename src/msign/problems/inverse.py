"""An inverse problem: a prior, a forward map, data and noise, posed at every scale (appendix D).

The posterior at scale l is q_l(x) = prior_l(x) exp(log-likelihood of B x) / Z_l, B the upsampling
to the finest lattice. Log-likelihoods leave out the noise's normalising constant, so that the
evidence is the integral of prior times exp(-|residual|^2 / 2). A problem says what is inferred and
does not change; a `Simulator` evaluates it.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from msign import checks
from msign.priors import Prior
from msign.problems.at_scale import (
    Forward,
    ForwardAndVjp,
    Noise,
    ScaleModel,
    Vjp,
    noise_covariance,
    whitened_noise,
)


class InverseProblem:
    """Data `y = F(x) + noise` about a field x with a prior. Its attributes cannot be set.

    Args:
        prior: Of the field on the finest lattice.
        forward: Batch of fields `(n, *field_shape)` to batch of observations `(n, m)`. JAX code is
            recognised by tracing it once and is then compiled and differentiated; anything else
            is called with NumPy arrays (float64), outside of any compiled code.
        data: Observations `(m,)`.
        noise_std: Standard deviation of the noise: a number or `(m,)`.
        noise_cov: Covariance of the noise `(m, m)`, instead of `noise_std`.
        vjp: For a NumPy forward map: `(fields, cotangents (n, m)) -> (n, *field_shape)`, the
            transposed derivative applied to the cotangents.
        forward_and_vjp: Both at once, for simulators where the derivative re-uses work of the
            forward solve: `(fields, cotangents) -> (observations, gradients)`, cotangents being a
            function `(observations (k, m), rows) -> (k, m)` of any consecutive rows of the batch.
        scales: Number of scales L; by default as many as leave at least two cells per side.
        forward_at: Own, cheaper models of coarse scales: `forward_at(l)` gives None (use
            upsampling), a forward map for fields of scale l, or a pair of it and its vjp.
        inflate: Prior draws from which to estimate the discretisation error of each coarse scale;
            its mean and covariance are added to the noise there (0: off).
        on_failure: A simulation that raises or is not finite: `raise` stops; `reject` counts as
            zero likelihood.
        chunk: Fields per call of `forward`.
        name: For reports.
        reference: An exact posterior to compare with, where one is known (see `synthetic`).
        symmetry: A map of fields under which the posterior does not change, where one is known.
        truth: The field behind the data, where it is known.

    Attributes:
        priors: Of all scales, coarse to fine.
        traceable: Whether the forward map is JAX code.
    """

    def __init__(
        self,
        prior: Prior,
        forward: Forward,
        data: ArrayLike | Sequence[float],
        noise_std: ArrayLike | None = None,
        noise_cov: ArrayLike | None = None,
        *,
        vjp: Vjp | None = None,
        forward_and_vjp: ForwardAndVjp | None = None,
        scales: int | None = None,
        forward_at: Callable[[int], Forward | tuple[Forward, Vjp] | None] | None = None,
        inflate: int = 0,
        on_failure: str = "raise",
        chunk: int | None = None,
        name: str = "problem",
        reference: Any = None,
        symmetry: Callable[[ArrayLike], np.ndarray] | None = None,
        truth: ArrayLike | None = None,
    ):
        if not isinstance(prior, Prior):
            raise ValueError(f"prior must be a msign prior, got {type(prior).__name__}")
        if not callable(forward):
            raise ValueError(f"forward must be callable, got {type(forward).__name__}")
        self.prior = prior
        self.forward = forward
        self.data = np.array(np.atleast_1d(checks.finite_array("data", data)))
        if self.data.ndim != 1:
            raise ValueError(f"data must have shape (m,), got {self.data.shape}")
        self.noise_cov = noise_covariance(noise_std, noise_cov, len(self.data))
        if forward_and_vjp is not None and vjp is None:
            raise ValueError("vjp must be given beside forward_and_vjp, got None")
        self.vjp = vjp
        self.forward_and_vjp = forward_and_vjp
        self.forward_at = forward_at
        self.inflate = checks.integer("inflate", inflate, 0)
        self.on_failure = checks.one_of("on_failure", on_failure, ("raise", "reject"))
        if scales is None:
            scales = min(prior.max_scales, prior.lattice.default_scales)
        self.priors = prior.hierarchy(scales)
        self.chunk = checks.integer("chunk", chunk or max(1, 2**23 // prior.lattice.dim), 1)
        self.name = name
        self.reference = reference
        self.symmetry = symmetry
        self.truth = None if truth is None else np.array(checks.finite_array("truth", truth))
        if self.truth is not None and self.truth.shape != prior.lattice.field_shape:
            raise ValueError(
                f"truth must have shape {prior.lattice.field_shape}, got {self.truth.shape}"
            )
        self.traceable = vjp is None and self._is_traceable()
        self._models = tuple(self._model(l) for l in range(1, scales + 1))
        for array in (self.data, self.noise_cov, self.truth):
            if array is not None:
                array.setflags(write=False)
        self._complete = True

    def __setattr__(self, name: str, value: Any) -> None:
        if "_complete" in vars(self):
            raise AttributeError(f"{name} cannot be set: a problem does not change, make another")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} cannot be deleted: a problem does not change")

    def __repr__(self) -> str:
        return (
            f"InverseProblem({self.name}, {self.prior.lattice}, {self.scales} scales, "
            f"{len(self.data)} observations)"
        )

    @property
    def scales(self) -> int:
        """Number of scales L."""
        return len(self.priors)

    @property
    def dim(self) -> int:
        """Dimension d of the finest field."""
        return self.prior.lattice.dim

    @property
    def differentiable(self) -> bool:
        """Whether gradients of the log-likelihood are to be had."""
        return self.traceable or self.vjp is not None

    @functools.cached_property
    def noise(self) -> Noise:
        """Data and noise as residuals need them, without inflation."""
        return whitened_noise(self.data, self.noise_cov, None)

    def at_scale(self, scale: int) -> ScaleModel:
        """The forward map of a scale. Its compiled functions are made once per problem."""
        return self._models[checks.integer("scale", scale, 1, self.scales) - 1]

    def log_likelihood(self, x: ArrayLike, scale: int | None = None) -> np.ndarray:
        """Log-likelihood of a batch of fields of a scale (default: the finest).

        This is for a look at a few fields: nothing counts these simulations. Coarse scales have
        their inflated noise, if the problem asks for it, and every call estimates it again, where
        a `Simulator` does so once.
        """
        from msign.problems.simulator import Simulator  # which stands above problems

        scale = self.scales if scale is None else scale
        prior = self.at_scale(scale).prior
        u = prior.whiten(prior.lattice.check("x", x))
        return Simulator(self).evaluate(u, scale).log_likelihood

    def without_inflation(self) -> "InverseProblem":
        """The same problem with its own noise at every scale."""
        plain = copy.copy(self)
        vars(plain)["inflate"] = 0
        return plain

    def _model(self, scale: int) -> ScaleModel:
        own = self.forward_at(scale) if self.forward_at and scale < self.scales else None
        model = functools.partial(
            ScaleModel, scale, self.priors[scale - 1], m=len(self.data), traceable=self.traceable
        )
        if own is None:
            finer = [p.lattice for p in self.priors[scale:]]
            return model(finer, self.forward, self.vjp, self.forward_and_vjp)
        return model((), *own) if isinstance(own, tuple) else model((), own)

    def _is_traceable(self) -> bool:
        fields = jax.ShapeDtypeStruct((2, *self.prior.lattice.field_shape), jnp.zeros(0).dtype)
        try:
            out = jax.eval_shape(self.forward, fields)
        except Exception:
            return False
        if not hasattr(out, "shape") or out.shape != (2, len(self.data)):
            got = getattr(out, "shape", type(out).__name__)
            raise ValueError(
                f"forward must return shape (n, {len(self.data)}) for n fields, got {got} for n = 2"
            )
        return True


def problem_without_forward(prior: Prior, scales: int, name: str) -> InverseProblem:
    """A problem of which only prior and scales are known, as a run on disk knows it.

    Simulating it is an error.
    """
    return InverseProblem(prior, missing_forward, (), noise_std=1.0, scales=scales, name=name)


def missing_forward(x: Any) -> NoReturn:
    """The forward map of a problem that has none."""
    raise ValueError(
        "problem must be given to Posterior.load to simulate: this run was loaded without it"
    )
