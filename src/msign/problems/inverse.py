"""An inverse problem: a prior, a forward map, data and noise, posed at every scale (appendix D).

The posterior at scale l is q_l(x) = prior_l(x) exp(log-likelihood of B x) / Z_l, B the upsampling
to the finest lattice. With `noise_std` or `noise_cov` the log-likelihood leaves out the noise's
normalising constant -log det(2 pi noise_cov) / 2, so that the evidence Z_l is the integral of prior
times exp(-|residual|^2 / 2). With `likelihood` it has all constants, and Z_l is the density of the
data. A problem says what is inferred and does not change; a `Simulator` evaluates it.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import numpy as np
from jaxtyping import ArrayLike

from msign import checks
from msign.devices import fields_at_once
from msign.noise import default_dtype
from msign.priors import Prior
from msign.problems.at_scale import EveryScale, Forward, ForwardAndVjp, ScaleModel, Vjp
from msign.problems.data_likelihood import DataLikelihood, Inflation, Layout
from msign.problems.likelihoods import Gaussian, Likelihood
from msign.problems.own_likelihood import FromDistribution, OfFields, as_forward, as_vjp

INFLATION_DRAWS = 50  # of the prior, to estimate discretisation errors by default


class InverseProblem:
    """Data about a field x with a prior: `y = F(x) + noise`, or distributed in some other way.

    Its attributes cannot be set. A problem is given by forward map and data with one of
    `noise_std`, `noise_cov` and `likelihood`, or by `log_likelihood` alone.

    Args:
        prior: Of the field on the finest lattice.
        forward: Batch of fields `(n, *field_shape)` to batch of observations `(n, m)`, or
            `(n, *data.shape)`. JAX code is recognised by tracing it once and is then compiled and
            differentiated; anything else is called with NumPy arrays (float64), outside of any
            compiled code.
        data: Observations, of any shape.
        noise_std: Standard deviation of the noise: a number, or one for each observation.
        noise_cov: Covariance of the noise `(m, m)`, instead of `noise_std`.
        likelihood: How data are distributed given what `forward` predicts: one of
            `msign.likelihoods`, or a function in JAX from the predictions of one field, shaped as
            the data, to a distribution whose `log_prob(data)` is one number or one for each
            observation.
        missing: `raise` refuses data with NaN; `drop` ignores these observations.
        log_likelihood: Batch of fields to their log-likelihoods `(n,)`, in JAX or NumPy as a
            forward map is, instead of forward map and data.
        gradient: Of a `log_likelihood` in NumPy: batch of fields to `(n, *field_shape)`.
        vjp: For a NumPy forward map: `(fields, cotangents) -> (n, *field_shape)`, the transposed
            derivative applied to cotangents of the shape that `forward` returns.
        forward_and_vjp: Both at once, for simulators where the derivative re-uses work of the
            forward solve: `(fields, cotangents) -> (observations, gradients)`, cotangents being a
            function `(observations, rows)` of any consecutive rows of the batch.
        scales: Number of scales L; by default as many as leave at least two cells per side.
        forward_at: Own, cheaper models of coarse scales: `forward_at(l)` gives None (use
            upsampling), a forward map for fields of scale l, or a pair of it and its vjp.
        inflate: Prior draws from which to estimate the discretisation error of each coarse scale;
            its mean and covariance are added to the noise there, so that coarse posteriors are no
            sharper than their forward maps are right. Each draw costs a simulation per scale. By
            default 50 where the noise is Gaussian, else none; 0 switches it off.
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
        data: Observations that are used, flat `(m,)`.
        layout: Where they lie in what the forward map returns.
        family: The likelihood as a distribution of these observations.
        noise_cov: Covariance of the noise where it is Gaussian, else None.
        has_observations: Whether there are any, or a log-likelihood alone.

    Example:
        >>> import jax.numpy as jnp, msign
        >>> prior = msign.LaplacePrior((8,), alpha=0.5, beta=2.0)
        >>> counts = [3, 1, 0, 2, 5, 2, 1, 4]
        >>> likelihood = msign.likelihoods.Poisson()
        >>> msign.InverseProblem(prior, lambda x: x, counts, likelihood=likelihood)
        InverseProblem(problem, Lattice(8), 3 scales, 8 observations)
        >>> msign.InverseProblem(prior, log_likelihood=lambda x: -jnp.sum(x**4, 1), scales=2)
        InverseProblem(problem, Lattice(8), 2 scales, a log-likelihood)
    """

    def __init__(
        self,
        prior: Prior,
        forward: Forward | None = None,
        data: ArrayLike | Sequence[float] | None = None,
        noise_std: ArrayLike | None = None,
        noise_cov: ArrayLike | None = None,
        *,
        likelihood: Likelihood | Callable[[Any], Any] | None = None,
        missing: str = "raise",
        log_likelihood: Forward | None = None,
        gradient: Forward | None = None,
        vjp: Vjp | None = None,
        forward_and_vjp: ForwardAndVjp | None = None,
        scales: int | None = None,
        forward_at: Callable[[int], Forward | tuple[Forward, Vjp] | None] | None = None,
        inflate: int | None = None,
        on_failure: str = "raise",
        chunk: int | None = None,
        name: str = "problem",
        reference: Any = None,
        symmetry: Callable[[ArrayLike], np.ndarray] | None = None,
        truth: ArrayLike | None = None,
    ):
        if not isinstance(prior, Prior):
            raise ValueError(f"prior must be a msign prior, got {type(prior).__name__}")
        self.prior = prior
        checks.one_of("missing", missing, ("raise", "drop"))
        self.has_observations = log_likelihood is None
        if log_likelihood is not None:
            others = {
                "forward": forward,
                "data": data,
                "noise_std": noise_std,
                "noise_cov": noise_cov,
                "likelihood": likelihood,
                "vjp": vjp,
                "forward_and_vjp": forward_and_vjp,
                "forward_at": forward_at,
            }
            _refuse_beside_log_likelihood(others)
            _check_callable("log_likelihood", log_likelihood)
            self._check_shape("log_likelihood", log_likelihood, ((2,),), "(n,)")
            forward, self.data = as_forward(log_likelihood), np.zeros(0)
            if gradient is not None:
                _check_callable("gradient", gradient)
                vjp = as_vjp(gradient)
            self.layout = Layout((1,))
            self.family: Likelihood = OfFields()
        else:
            if gradient is not None:
                raise ValueError("gradient must be given with log_likelihood only; see vjp")
            _check_callable("forward", forward)
            assert forward is not None
            family = _family(likelihood, noise_std, noise_cov)
            self.data, self.layout = _observations(data, missing, family)
            self.family = family.restricted(self.layout)
            if forward is not missing_forward and vjp is None:
                shapes = ((2, *self.layout.shape), (2, self.layout.size))
                text = ", ".join(map(str, self.layout.shape))
                self._check_shape("forward", forward, shapes, f"(n, {text})")
        self.forward = forward
        self.noise_cov = self.family.covariance
        if inflate and self.noise_cov is None:
            raise ValueError(f"inflate must be 0 where the noise is not Gaussian, got {inflate}")
        if forward_and_vjp is not None and vjp is None:
            raise ValueError("vjp must be given beside forward_and_vjp, got None")
        self.vjp = vjp
        self.forward_and_vjp = forward_and_vjp
        self.forward_at = forward_at
        self.on_failure = checks.one_of("on_failure", on_failure, ("raise", "reject"))
        if scales is None:
            scales = min(prior.max_scales, prior.lattice.default_scales)
        self.priors = prior.hierarchy(scales)
        if inflate is None:
            inflate = INFLATION_DRAWS if self.noise_cov is not None and scales > 1 else 0
        self.inflate = checks.integer("inflate", inflate, 0)
        self.name = name
        self.reference = reference
        self.symmetry = symmetry
        self.truth = None if truth is None else np.array(checks.finite_array("truth", truth))
        if self.truth is not None and self.truth.shape != prior.lattice.field_shape:
            raise ValueError(
                f"truth must have shape {prior.lattice.field_shape}, got {self.truth.shape}"
            )
        self.traceable = vjp is None and self._traced(forward) is not None
        at_once = fields_at_once(prior.lattice.dim, self.traceable)
        self.chunk = checks.integer("chunk", chunk or at_once, 1)
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
        what = f"{len(self.data)} observations" if self.has_observations else "a log-likelihood"
        return f"InverseProblem({self.name}, {self.prior.lattice}, {self.scales} scales, {what})"

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
    def likelihood(self) -> DataLikelihood:
        """The likelihood of the data as a function of a simulation's features, not inflated."""
        return self.family.given(self.data)

    def inflated_likelihood(self, error: Inflation) -> DataLikelihood:
        """The same with the discretisation error of a coarse scale added to the noise."""
        return self.family.given(self.data, error)

    def at_scale(self, scale: int) -> ScaleModel:
        """The forward map of a scale. Its compiled functions are made once per problem."""
        return self._models[checks.integer("scale", scale, 1, self.scales) - 1]

    @functools.cached_property
    def every_scale(self) -> EveryScale:
        """The forward maps of all scales as one, where they are JAX code."""
        return EveryScale(self._models)

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

    def cut(self, scale: int) -> "InverseProblem":
        """The problem of the coarsest `scale` scales, whose field of that scale is the finest.

        Its posterior is q_l, with the noise as it is. A reference and the truth, which are of the
        finest lattice, are left out.
        """
        l = checks.integer("scale", scale, 1, self.scales)
        coarse = copy.copy(self)
        vars(coarse).update(
            prior=self.priors[l - 1],
            priors=self.priors[:l],
            _models=self._models[:l],
            inflate=0,
            reference=None,
            truth=None,
        )
        vars(coarse).pop("every_scale", None)
        return coarse

    def _model(self, scale: int) -> ScaleModel:
        own = self.forward_at(scale) if self.forward_at and scale < self.scales else None
        model = functools.partial(
            ScaleModel,
            scale,
            self.priors[scale - 1],
            layout=self.layout,
            traceable=self.traceable,
        )
        if own is None:
            finer = [p.lattice for p in self.priors[scale:]]
            return model(finer, self.forward, self.vjp, self.forward_and_vjp)
        return model((), *own) if isinstance(own, tuple) else model((), own)

    def _traced(self, function: Callable[[Any], Any]) -> Any:
        """What a function makes of two fields, if it is JAX code; else None."""
        fields = jax.ShapeDtypeStruct((2, *self.prior.lattice.field_shape), default_dtype())
        try:
            return jax.eval_shape(function, fields)
        except Exception:
            return None

    def _check_shape(
        self, name: str, function: Forward, shapes: tuple[tuple[int, ...], ...], wanted: str
    ) -> None:
        """Refuse JAX code that returns another shape for two fields."""
        out = self._traced(function)
        if out is not None and getattr(out, "shape", None) not in shapes:
            got = getattr(out, "shape", type(out).__name__)
            raise ValueError(f"{name} must return shape {wanted} for n fields, got {got} for n = 2")


def _check_callable(name: str, value: Any) -> None:
    if not callable(value):
        raise ValueError(f"{name} must be callable, got {type(value).__name__}")


def _refuse_beside_log_likelihood(others: dict[str, Any]) -> None:
    for name, value in others.items():
        if value is not None:
            got = checks.shortened(value)
            raise ValueError(f"{name} must not be given beside log_likelihood, got {got}")


def _family(
    likelihood: Likelihood | Callable[[Any], Any] | None,
    noise_std: ArrayLike | None,
    noise_cov: ArrayLike | None,
) -> Likelihood:
    """The likelihood that a user means."""
    if likelihood is None:
        return Gaussian(noise_std, noise_cov, normalised=False)
    for name, value in (("noise_std", noise_std), ("noise_cov", noise_cov)):
        if value is not None:
            got = checks.shortened(value)
            raise ValueError(f"{name} must not be given beside likelihood, got {got}")
    if isinstance(likelihood, Likelihood):
        return likelihood
    if isinstance(likelihood, type) or not callable(likelihood):
        raise ValueError(
            "likelihood must be an object of msign.likelihoods, as Poisson(), or a function to a "
            f"distribution, got {checks.shortened(likelihood)}"
        )
    return FromDistribution(likelihood)


def _observations(
    data: ArrayLike | Sequence[float] | None, missing: str, family: Likelihood
) -> tuple[np.ndarray, Layout]:
    """Data that are used, flat, and where they lie."""
    if data is None:
        raise ValueError("data must be given beside forward, got None")
    drop = missing == "drop"
    array = np.atleast_1d((checks.numbers if drop else checks.finite_array)("data", data))
    present = ~np.isnan(array).reshape(-1)
    checks.finite_entries("data", array.reshape(-1)[present])
    family.check(array)
    if present.all():
        return np.array(array.reshape(-1)), Layout(array.shape)
    if not present.any():
        raise ValueError("data must hold at least one observation, got NaN only")
    return array.reshape(-1)[present], Layout(array.shape, np.flatnonzero(present))


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
