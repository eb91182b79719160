"""An inverse problem: a prior, a forward map, data and noise, posed at every scale (appendix D).

The posterior at scale l is q_l(x) = prior_l(x) exp(log-likelihood of B x) / Z_l, B the upsampling
to the finest lattice. Fields enter and leave in the whitened coordinates u of the scale's prior.
Log-likelihoods leave out the noise's normalising constant, so that the evidence is the integral of
prior times exp(-|residual|^2 / 2).
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import ArrayLike, PRNGKeyArray

from msign import checks
from msign.priors import Prior
from msign.problems.at_scale import (
    Forward,
    ForwardAndVjp,
    Inflation,
    ScaleModel,
    Vjp,
    noise_covariance,
)


class SimulationError(RuntimeError):
    """A forward simulation raised, or returned NaN or infinity.

    Attributes:
        field: The field, at the finest scale, that it was given.
    """

    def __init__(self, message: str, field: np.ndarray):
        super().__init__(message)
        self.field = field


class Evaluated(NamedTuple):
    """What simulations of n fields of one scale gave.

    Attributes:
        log_likelihood: `(n,)`; minus infinity where a simulation was rejected.
        gradient: Of the log-likelihood in whitened coordinates `(n, d)`, where asked for.
        residual: Whitened residuals `(n, m)`, half of whose squared norm is minus the
            log-likelihood.
    """

    log_likelihood: np.ndarray
    gradient: np.ndarray | None
    residual: np.ndarray


class InverseProblem:
    """Data `y = F(x) + noise` about a field x with a prior.

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

    Attributes:
        nfs: Forward simulations so far: one per field evaluated, one more per field
            differentiated.
        failures: Simulations rejected so far.
        reference: An exact posterior to compare with, where one is known (see `synthetic`).
        symmetry: A map of fields under which the posterior does not change, where one is known.
        truth: The field behind the data, where it is known.
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
    ):
        if not isinstance(prior, Prior):
            raise ValueError(f"prior must be a msign prior, got {type(prior).__name__}")
        if not callable(forward):
            raise ValueError(f"forward must be callable, got {type(forward).__name__}")
        self.prior = prior
        self.forward = forward
        self.data = np.atleast_1d(checks.finite_array("data", data))
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
            sides = min(prior.lattice.shape)
            scales = min(prior.lattice.max_scales, max(1, int(math.log2(sides))))
        self.priors = prior.hierarchy(scales)
        self.chunk = checks.integer("chunk", chunk or max(1, 2**23 // prior.lattice.dim), 1)
        self.name = name
        self.nfs = 0
        self.failures = 0
        self.reference: Any = None
        self.symmetry: Callable[[ArrayLike], np.ndarray] | None = None
        self.truth: np.ndarray | None = None
        self.traceable = vjp is None and self._traceable(forward, prior.lattice.field_shape)
        self._models: dict[int, ScaleModel] = {}
        self._inflation: dict[int, Inflation] = {}

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

    def log_likelihood(self, x: ArrayLike, scale: int | None = None) -> np.ndarray:
        """Log-likelihood of a batch of fields of a scale (default: the finest)."""
        scale = self.scales if scale is None else checks.integer("scale", scale, 1, self.scales)
        prior = self.priors[scale - 1]
        return self.evaluate(prior.whiten(prior.lattice.check("x", x)), scale).log_likelihood

    def evaluate(self, u: ArrayLike, scale: int, gradient: bool = False) -> Evaluated:
        """Log-likelihood of fields in whitened coordinates `(n, d_l)`, chunk by chunk."""
        if gradient and not self.differentiable:
            raise ValueError("gradient must be False: the forward map has no derivative (no vjp)")
        u = np.asarray(u)
        checks.shape("u", u.shape, (self.priors[scale - 1].lattice.dim,))
        if len(u) == 0:
            raise ValueError("u must hold at least one field, got none")
        model = self._model(scale)
        parts = []
        for start in range(0, len(u), self.chunk):
            piece = u[start : start + self.chunk]
            parts.append(self._evaluate_chunk(model, piece, gradient, start))
        self.nfs += len(u) * (2 if gradient else 1)
        slopes = [p.gradient for p in parts if p.gradient is not None]
        return Evaluated(
            np.concatenate([p.log_likelihood for p in parts]),
            np.concatenate(slopes) if gradient else None,
            np.concatenate([p.residual for p in parts]),
        )

    def check(self, key: PRNGKeyArray | None = None, tolerance: float = 1e-2) -> None:
        """Try everything once on prior draws, before anything expensive.

        Looks at shapes and at finiteness of one prior draw per scale, and compares a supplied vjp
        with finite differences of the forward map in random directions.
        """
        key = jr.key(0) if key is None else key
        for scale in range(1, self.scales + 1):
            u = jr.normal(jr.fold_in(key, scale), (2, self.priors[scale - 1].lattice.dim))
            self.evaluate(u, scale)
        if self.vjp is not None:
            self._check_vjp(jr.fold_in(key, 0), tolerance)

    def _check_vjp(self, key: PRNGKeyArray, tolerance: float) -> None:
        assert self.vjp is not None
        x = np.asarray(self.prior.sample(key, 2), np.float64)
        direction = np.asarray(self.prior.sample(jr.fold_in(key, 1), 2), np.float64)
        step = 1e-4
        outer = [np.asarray(self.forward(x + s * step * direction)) for s in (1, -1)]
        slope = (outer[0] - outer[1]) / (2 * step)
        cotangent = np.asarray(jr.normal(jr.fold_in(key, 2), slope.shape), np.float64)
        pulled = np.asarray(self.vjp(x, cotangent))
        self.nfs += 2 * 3
        if pulled.shape != x.shape:
            raise ValueError(f"vjp must return shape {x.shape}, got {pulled.shape}")
        axes = tuple(range(1, x.ndim))
        ours, theirs = (pulled * direction).sum(axes), (cotangent * slope).sum(1)
        scale = np.abs(cotangent * slope).sum(1) + 1e-30
        error = np.max(np.abs(ours - theirs) / scale)
        if not error < tolerance:
            raise ValueError(
                f"vjp must be the transposed derivative of forward: along a random direction it "
                f"gives {ours[0]:.6g} where finite differences give {theirs[0]:.6g}"
            )

    # --- one chunk -----------------------------------------------------------------------------

    def _evaluate_chunk(
        self, model: ScaleModel, u: np.ndarray, gradient: bool, start: int
    ) -> Evaluated:
        n = len(u)
        if model.compiled is not None:
            # Pad to few distinct sizes, so that each is compiled once.
            size = min(self.chunk, 1 << max(0, (n - 1).bit_length()))
            padded = np.concatenate([u, np.broadcast_to(u[:1], (size - n, *u.shape[1:]))])
            found, pulled = model.compiled(jnp.asarray(padded), gradient)
            residual = np.asarray(found, np.float64)[:n]
            slopes = None if pulled is None else np.asarray(pulled)[:n]
        else:
            residual, slopes = self._evaluate_numpy(model, u, gradient, start)
        values = -0.5 * (residual**2).sum(1)
        bad = ~np.isfinite(values)
        if slopes is not None:
            bad |= ~np.all(np.isfinite(slopes), axis=1)
        if bad.any():
            if self.on_failure == "raise":
                self._fail(model, u, int(np.flatnonzero(bad)[0]), start, "returned NaN or infinity")
            self.failures += int(bad.sum())
            values = np.where(bad, -np.inf, values)
            slopes = None if slopes is None else np.where(bad[:, None], 0.0, slopes)
        return Evaluated(values, slopes, residual)

    def _evaluate_numpy(
        self, model: ScaleModel, u: np.ndarray, gradient: bool, start: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Whitened residuals, and gradients of the log-likelihood if asked for."""
        x = np.asarray(model.fields(jnp.asarray(u)), np.float64)
        if gradient and model.both is not None and self.on_failure == "raise":
            return self._evaluate_both(model, x, u, start)
        try:
            observed = self._observe(model, x)
        except Exception as error:
            if self.on_failure == "raise":
                self._fail(model, u, 0, start, f"raised {type(error).__name__}: {error}", len(u))
            observed = np.stack([self._observe_or_nan(model, one) for one in x])
        residual = (self.data - model.shift - observed) @ model.whiten_noise.T
        if not gradient:
            return residual, None
        cotangents = residual @ model.whiten_noise
        assert model.vjp is not None
        pulled = np.asarray(model.vjp(x, np.nan_to_num(cotangents)))
        return residual, np.asarray(model.pull(jnp.asarray(pulled, float)))

    def _evaluate_both(
        self, model: ScaleModel, x: np.ndarray, u: np.ndarray, start: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same from one call for observations and derivative."""

        def residual_of(observed: np.ndarray) -> np.ndarray:
            return (self.data - model.shift - observed) @ model.whiten_noise.T

        assert model.both is not None
        try:
            observed, pulled = model.both(x, lambda o, rows: residual_of(o) @ model.whiten_noise)
        except Exception as error:
            self._fail(model, u, 0, start, f"raised {type(error).__name__}: {error}", len(u))
            raise
        return residual_of(observed), np.asarray(model.pull(jnp.asarray(pulled, float)))

    def _observe(self, model: ScaleModel, x: np.ndarray) -> np.ndarray:
        observed = np.asarray(model.forward(x), np.float64)
        if observed.shape != (len(x), len(self.data)):
            raise ValueError(
                f"forward must return shape {(len(x), len(self.data))} for {len(x)} fields, got "
                f"{observed.shape}"
            )
        return observed

    def _observe_or_nan(self, model: ScaleModel, x: np.ndarray) -> np.ndarray:
        try:
            return self._observe(model, x[None])[0]
        except Exception:
            return np.full(len(self.data), np.nan)

    def _fail(
        self, model: ScaleModel, u: np.ndarray, i: int, start: int, what: str, of: int = 1
    ) -> None:
        field = np.asarray(model.fields(jnp.asarray(u[i : i + 1])))[0]
        which = f"sample {start + i}" if of == 1 else f"one of samples {start} to {start + of - 1}"
        raise SimulationError(
            f"the forward simulation of {which} at scale {model.scale} {what}", field
        )

    # --- the model of one scale ------------------------------------------------------------------

    def _model(self, scale: int) -> ScaleModel:
        if scale not in self._models:
            self._models[scale] = self._make_model(scale, self.inflation(scale))
        return self._models[scale]

    def _make_model(self, scale: int, error: Inflation | None) -> ScaleModel:
        own = self.forward_at(scale) if self.forward_at and scale < self.scales else None
        if own is None:
            finer = [p.lattice for p in self.priors[scale:]]
            maps = (self.forward, self.vjp, self.forward_and_vjp)
        else:
            finer = []
            maps = (*own, None) if isinstance(own, tuple) else (own, None, None)
        prior = self.priors[scale - 1]
        noise = (self.data, self.noise_cov, error)
        return ScaleModel(scale, prior, finer, *maps, *noise, self.traceable)

    def without_inflation(self) -> "InverseProblem":
        """The same problem with its own noise at every scale; it counts its own simulations."""
        plain = copy.copy(self)
        plain.inflate, plain.nfs, plain.failures = 0, 0, 0
        plain._models, plain._inflation = {}, {}
        return plain

    def inflation(self, scale: int) -> Inflation | None:
        """The estimated discretisation error of a coarse scale, if the problem asks for it."""
        if not self.inflate or scale == self.scales:
            return None
        if scale not in self._inflation:
            self._estimate_inflation()
        return self._inflation[scale]

    def _estimate_inflation(self) -> None:
        x = self.prior.sample(jr.key(20210), self.inflate)
        fine = self.observe(x, self.scales)
        for scale in range(self.scales - 1, 0, -1):
            x = self.priors[scale].lattice.pool(x)
            error = fine - self.observe(x, scale)
            covariance = np.cov(error.T).reshape(len(self.data), len(self.data))
            self._inflation[scale] = Inflation(error.mean(0), covariance)

    def observe(self, x: ArrayLike, scale: int | None = None) -> np.ndarray:
        """What the forward map gives for a batch of fields of a scale `(n, m)`, without noise."""
        scale = self.scales if scale is None else checks.integer("scale", scale, 1, self.scales)
        x = self.priors[scale - 1].lattice.check("x", x)
        model = self._make_model(scale, None)
        parts = []
        for start in range(0, len(x), self.chunk):
            lifted = model.lift(x[start : start + self.chunk])
            lifted = lifted if self.traceable else np.asarray(lifted, np.float64)
            parts.append(np.asarray(model.forward(lifted), np.float64))
        self.nfs += len(x)
        return np.concatenate(parts)

    def _traceable(self, forward: Forward, field_shape: tuple[int, ...]) -> bool:
        fields = jax.ShapeDtypeStruct((2, *field_shape), jnp.zeros(0).dtype)
        try:
            out = jax.eval_shape(forward, fields)
        except Exception:
            return False
        if not hasattr(out, "shape") or out.shape != (2, len(self.data)):
            got = getattr(out, "shape", type(out).__name__)
            raise ValueError(
                f"forward must return shape (n, {len(self.data)}) for n fields, got {got} for n = 2"
            )
        return True
