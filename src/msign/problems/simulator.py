"""Evaluating the fields of a problem: what a forward simulation costs, and when it fails.

One `Simulator` belongs to one run. It alone counts. The problem, and what is compiled for it, is
shared by all simulators. Fields enter in the whitened coordinates u of the scale's prior.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import ArrayLike, PRNGKeyArray

from msign import checks
from msign.devices import shared_out
from msign.lattice import Lattice
from msign.noise import normal, on_device
from msign.priors import Prior
from msign.problems.at_scale import ScaleModel, compiled_rows
from msign.problems.data_likelihood import DataLikelihood, Inflation
from msign.problems.failures import SimulationRaised, SimulatorUnavailable
from msign.problems.inverse import InverseProblem, missing_forward
from msign.problems.spread import spread_over
from msign.problems.workers import as_workers

VALUES_IN_FLIGHT = 2**23  # of the fields that are with workers at a time
INFLATION_SEED = 20210  # of the prior draws that estimate the discretisation error


class BudgetExceeded(RuntimeError):
    """More forward simulations were asked for than the budget allows; none of them was made."""


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
        features: What the likelihood is a function of `(n, m)`: with Gaussian noise the whitened
            residuals, else what the problem's likelihood says.
    """

    log_likelihood: np.ndarray
    gradient: np.ndarray | None
    features: np.ndarray


class BothPlaces(NamedTuple):
    """A likelihood as NumPy arrays, in double precision, and as compiled code takes it."""

    host: DataLikelihood
    device: DataLikelihood


class Simulator:
    """Evaluates fields of a problem, counts each forward simulation, refuses to exceed a budget.

    Args:
        problem: What is simulated.
        budget: How many forward simulations are allowed; None: any number.
        executor: Who evaluates the forward map, if it is not JAX code: a number of processes, the
            address of a Dask scheduler, a Dask client, or anything with `submit` or `map`; None:
            this process. Numbers are the same if the forward map gives a field the same numbers
            whatever the batch that it stands in.

    Attributes:
        nfs: Forward simulations so far: one per field evaluated, one more per field
            differentiated.
        failures: Simulations rejected so far.

    Example:
        >>> import numpy as np
        >>> from msign.problems import Simulator, synthetic
        >>> simulator = Simulator(synthetic(8), budget=100)
        >>> found = simulator.evaluate(np.zeros((10, 64)), scale=3, gradient=True)
        >>> simulator.nfs, simulator.left
        (20, 80)
    """

    def __init__(self, problem: InverseProblem, budget: float | None = None, executor: Any = None):
        self.problem = problem
        self.budget = None if budget is None else checks.count("budget", budget, 0)
        if executor is not None and problem.traceable:
            raise ValueError(
                "executor must be None for a forward map in JAX, which is compiled here; to send "
                "it to workers make it a NumPy function: lambda x: np.asarray(forward(x))"
            )
        self._workers = None if executor is None else as_workers(executor)
        self._models: dict[int, ScaleModel] = {}
        # Fields at once: of a call, or of all calls that workers share.
        self._block = problem.chunk
        if executor is not None:
            self._block = max(problem.chunk, VALUES_IN_FLIGHT // problem.dim)
        self.nfs = 0
        self.failures = 0
        self._inflation: dict[int, Inflation | None] = {}
        self._likelihoods: dict[int, BothPlaces] = {}
        self._restored = False

    def __repr__(self) -> str:
        allowed = "" if self.budget is None else f" of {self.budget}"
        return f"Simulator({self.problem.name}, {self.nfs}{allowed} simulations)"

    # --- counting --------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        """Simulations that the budget still allows."""
        return sys.maxsize if self.budget is None else max(0, self.budget - self.nfs)

    def counts(self) -> dict[str, int]:
        """What a run has to save in order to go on counting."""
        return {"nfs": self.nfs, "failures": self.failures}

    def restore(self, counts: dict[str, int]) -> None:
        """Go on from saved counts; they have in them what estimating the inflation cost."""
        self.nfs, self.failures = counts["nfs"], counts["failures"]
        self._restored = True

    @contextlib.contextmanager
    def limited(self, simulations: int) -> Iterator[None]:
        """A block in which at most so many more simulations are allowed."""
        budget = self.budget
        self.budget = self.nfs + min(simulations, self.left)
        try:
            yield
        finally:
            self.budget = budget

    def _require(self, simulations: int) -> None:
        if self.problem.forward is missing_forward:
            missing_forward(None)
        if simulations > self.left:
            raise BudgetExceeded(
                f"the budget of {self.budget} forward simulations does not allow {simulations} "
                f"more: {self.nfs} are used"
            )

    def _spend(self, simulations: int) -> None:
        self._require(simulations)
        self.nfs += simulations

    # --- evaluating ------------------------------------------------------------------------------

    def _model(self, scale: int) -> ScaleModel:
        """The forward map of a scale, evaluated here or by workers."""
        model = self.problem.at_scale(scale)
        if self._workers is None:
            return model
        if scale not in self._models:
            limit, tolerant = self.problem.chunk, self.problem.on_failure == "reject"
            self._models[scale] = spread_over(model, self._workers, limit, tolerant)
        return self._models[scale]

    def evaluate(self, u: ArrayLike, scale: int, gradient: bool = False) -> Evaluated:
        """Log-likelihood of fields in whitened coordinates `(n, d_l)`, chunk by chunk."""
        model = self._model(scale)
        if gradient and not model.differentiable:
            raise ValueError("gradient must be False: the forward map has no derivative (no vjp)")
        u = np.asarray(u)
        checks.shape("u", u.shape, (model.prior.lattice.dim,))
        _check_batch("u", u, 1)
        cost = len(u) * (2 if gradient else 1)
        self._require(cost + self._cost_of_inflation(scale))
        likelihood = self._likelihood_at(scale)
        self._spend(cost)
        parts, rows = [], compiled_rows(len(u), self._block)
        for start in range(0, len(u), self._block):
            piece = u[start : start + self._block]
            parts.append(self._evaluate_chunk(model, likelihood, piece, gradient, start, rows))
        slopes = [p.gradient for p in parts if p.gradient is not None]
        return Evaluated(
            np.concatenate([p.log_likelihood for p in parts]),
            np.concatenate(slopes) if gradient else None,
            np.concatenate([p.features for p in parts]),
        )

    def _evaluate_chunk(
        self,
        model: ScaleModel,
        likelihood: BothPlaces,
        u: np.ndarray,
        gradient: bool,
        start: int,
        rows: int,
    ) -> Evaluated:
        def simulated(own: slice) -> tuple[np.ndarray, np.ndarray | None]:
            return self._simulated(model, likelihood, u[own], gradient, start + own.start, rows)

        whole = slice(0, len(u))
        features, slopes = simulated(whole) if model.traceable else shared_out(simulated, len(u))
        with np.errstate(over="ignore", invalid="ignore"):
            values = likelihood.host.log_likelihood(features)
        bad = ~np.isfinite(values)
        if slopes is not None:
            bad |= ~np.all(np.isfinite(slopes), axis=1)
        if bad.any():
            self._reject(model, u, start, bad)
            values = np.where(bad, -np.inf, values)
            slopes = None if slopes is None else np.where(bad[:, None], 0.0, slopes)
        return Evaluated(values, slopes, features)

    def _simulated(
        self,
        model: ScaleModel,
        likelihood: BothPlaces,
        u: np.ndarray,
        gradient: bool,
        start: int,
        rows: int,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Features, and gradients if asked for; an error names the field that raised it."""
        reject = self.problem.on_failure == "reject"
        try:
            return model.simulate(u, likelihood.device, gradient, rows, reject)
        except SimulatorUnavailable:
            raise
        except Exception as error:
            if reject or model.traceable:
                raise
            raise self._raised(model, u, start, error) from error

    def _reject(self, model: ScaleModel, u: np.ndarray, start: int, bad: np.ndarray) -> None:
        """Count fields whose simulation is not finite, or stop at the first of them."""
        if bad.any() and self.problem.on_failure != "reject":
            i = int(np.flatnonzero(bad)[0])
            raise self._failure(model, u[i], f"sample {start + i}", "returned NaN or infinity")
        self.failures += int(bad.sum())

    def _raised(
        self, model: ScaleModel, u: np.ndarray, start: int, error: Exception
    ) -> SimulationError:
        rows, what = slice(0, len(u)), f"raised {type(error).__name__}: {error}"
        if isinstance(error, SimulationRaised):
            rows, what = error.rows, error.what
        first, last = start + rows.start, start + rows.stop - 1
        which = f"sample {first}" if first == last else f"one of samples {first} to {last}"
        return self._failure(model, u[rows.start], which, what)

    def _failure(self, model: ScaleModel, u: np.ndarray, which: str, what: str) -> SimulationError:
        message = f"the forward simulation of {which} at scale {model.scale} {what}"
        return SimulationError(message, np.asarray(model.fields(u[None]))[0])

    def observe(self, x: ArrayLike, scale: int | None = None) -> np.ndarray:
        """What the forward map gives for a batch of fields of a scale `(n, m)`, without noise."""
        model = self._model(self.problem.scales if scale is None else scale)
        fields = model.prior.lattice.check("x", x)
        _check_batch("x", fields, len(model.prior.lattice.field_shape))
        self._spend(len(fields))
        return self._observe(model, fields)

    def _observe(self, model: ScaleModel, x: ArrayLike, tolerant: bool = False) -> np.ndarray:
        x, chunk = jnp.asarray(x), self._block
        pieces = (x[start : start + chunk] for start in range(0, len(x), chunk))
        return np.concatenate([model.observe(model.lift(piece), tolerant) for piece in pieces])

    # --- products with the derivative of the features ---------------------------------------------

    def jvp(
        self, u: ArrayLike, tangents: ArrayLike, scale: int, solved: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Features `(n, m)` of fields and their derivatives along tangents `(n, d_l)`.

        For forward maps in JAX; counts two simulations a field, or one, the tangent solve, for
        fields that have been simulated before (`solved`).
        """
        model = self._model(scale)
        if not model.traceable:
            raise ValueError("jvp must be asked of a forward map in JAX, got one in NumPy")
        arrays = np.asarray(u), np.asarray(tangents)
        return self._linearised(model, model.jvp, arrays, model.prior.lattice.dim, 1, solved)

    def vjp(
        self, u: ArrayLike, cotangents: ArrayLike, scale: int, solved: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Features `(n, m)` of fields, and `(n, d_l)`: their transposed derivative of cotangents.

        Counts two simulations a field, or one, the adjoint solve, for fields that have been
        simulated before (`solved`) by a forward map in JAX; one in NumPy is called again.
        """
        model = self._model(scale)
        arrays = np.asarray(u), np.asarray(cotangents)
        known = solved and model.traceable
        return self._linearised(model, model.vjp_of_features, arrays, model.layout.m, 1, known)

    def jacobian(self, u: ArrayLike, scale: int) -> tuple[np.ndarray, np.ndarray]:
        """Features `(n, m)` of fields and all of their derivatives `(n, m, d_l)`.

        Counts m + 1 simulations a field.
        """
        model = self._model(scale)
        return self._linearised(model, model.jacobian, (np.asarray(u),), 0, model.layout.m)

    def _linearised(
        self,
        model: ScaleModel,
        function: Callable[..., tuple[np.ndarray, np.ndarray]],
        arrays: tuple[np.ndarray, ...],
        columns: int,
        products: int,
        solved: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """A function of the model, chunk by chunk.

        For each field `products` are counted, and the field itself unless it is `solved`.
        """
        u = arrays[0]
        if not model.differentiable:
            raise ValueError("forward must have a derivative (JAX code, or a vjp), got none")
        checks.shape("u", u.shape, (model.prior.lattice.dim,))
        _check_batch("u", u, 1)
        for other in arrays[1:]:
            if other.shape != (len(u), columns):
                raise ValueError(
                    f"products must be with arrays of shape {(len(u), columns)}, got {other.shape}"
                )
        cost = len(u) * (products + (not solved))
        self._require(cost + self._cost_of_inflation(model.scale))
        likelihood = self._likelihood_at(model.scale).device
        self._spend(cost)
        parts, chunk = [], max(1, self._block // products)
        rows = compiled_rows(len(u), chunk)
        for start in range(0, len(u), chunk):
            pieces = [a[start : start + chunk] for a in arrays]
            try:
                found = function(*pieces, likelihood, rows)
            except SimulatorUnavailable:
                raise
            except Exception as error:
                if model.traceable:
                    raise
                raise self._raised(model, pieces[0], start, error) from error
            finite = [np.isfinite(a).reshape(len(a), -1).all(1) for a in found]
            self._reject(model, pieces[0], start, ~(finite[0] & finite[1]))
            parts.append(found)
        features, derivatives = zip(*parts, strict=True)
        return np.concatenate(features), np.concatenate(derivatives)

    # --- the noise of coarse scales ---------------------------------------------------------------

    def inflation(self, scale: int) -> Inflation | None:
        """The estimated discretisation error of a coarse scale, if the problem asks for it.

        None, too, where the simulations of all prior draws but one were rejected.
        """
        if not self.problem.inflate or self.problem.at_scale(scale).scale == self.problem.scales:
            return None
        self.prepare()
        return self._inflation[scale]

    def relative_inflation(self, scale: int) -> float:
        """Discretisation error of a scale, in units of the noise, that is added to it."""
        error, noise = self.inflation(scale), self.problem.noise_cov
        return 0.0 if error is None or noise is None else error.relative_to(noise)

    def prepare(self) -> None:
        """Estimate the discretisation errors now, if the problem asks for it."""
        problem = self.problem
        if not problem.inflate or problem.scales == 1 or self._inflation:
            return
        failures = self.failures
        self._spend(self._cost_of_inflation(1))
        assert problem.noise_cov is not None  # or the problem would not have its noise inflated
        u = normal(jr.key(INFLATION_SEED), (problem.inflate, problem.dim))
        *coarse, fine = self._observe_everywhere(u, range(1, problem.scales + 1))
        for scale, observed in enumerate(coarse, start=1):
            error = fine - observed
            error = error[np.isfinite(error).all(1)]
            known = len(error) > 1
            self._inflation[scale] = (
                Inflation.estimated(error, problem.noise_cov) if known else None
            )
        if self._restored:
            self.failures = failures  # they have been counted before

    def _observe_everywhere(self, u: np.ndarray, scales: Sequence[int]) -> list[np.ndarray]:
        """Predictions of the forward maps of scales, in rising order, for fields of the finest.

        Failures are those of any simulation; rows of a field that is rejected are not finite.
        """
        problem, found = self.problem, []
        if problem.traceable:
            rows = compiled_rows(max(len(u), problem.inflate), self._block)
            everywhere = problem.every_scale.observe(u, rows)
            for scale in scales:
                observed = everywhere[scale - 1]
                bad = ~np.isfinite(observed).all(1)
                if bad.any():
                    at_scale = problem.every_scale.whitened(u, scale)
                    self._reject(self._model(scale), at_scale, 0, bad)
                found.append(observed)
            return found
        x: Any = _unwhitened(problem.prior, u)
        for scale in range(problem.scales, 0, -1):
            if scale < problem.scales:
                x = _pooled(problem.priors[scale].lattice, x)
            if scale in scales:
                found.append(self._observe_draws(self._model(scale), x))
        return found[::-1]

    def _observe_draws(self, model: ScaleModel, x: ArrayLike) -> np.ndarray:
        """What a forward map in NumPy gives for fields of a scale."""

        def whitened() -> np.ndarray:
            return np.asarray(model.prior.whiten(jnp.asarray(x)))

        try:
            observed = self._observe(model, x, self.problem.on_failure == "reject")
        except Exception as error:
            raise self._raised(model, whitened(), 0, error) from error
        bad = ~np.isfinite(observed).all(1)
        if bad.any():
            self._reject(model, whitened(), 0, bad)
        return observed

    def _cost_of_inflation(self, scale: int) -> int:
        """Simulations that this scale's noise still costs."""
        if self._inflation or self._restored or scale == self.problem.scales:
            return 0
        return self.problem.inflate * self.problem.scales

    def likelihood(self, scale: int) -> DataLikelihood:
        """The likelihood of a scale as a function of features, in double precision."""
        return self._likelihood_at(scale).host

    def _likelihood_at(self, scale: int) -> BothPlaces:
        if scale not in self._likelihoods:
            problem, error = self.problem, self.inflation(scale)
            host = problem.likelihood if error is None else problem.inflated_likelihood(error)
            device = host
            if problem.at_scale(scale).traceable:
                device = jax.tree.map(on_device, host)
            self._likelihoods[scale] = BothPlaces(host, device)
        return self._likelihoods[scale]

    # --- trying everything once ----------------------------------------------------------------

    def check(
        self,
        key: PRNGKeyArray | None = None,
        tolerance: float = 1e-2,
        scales: Sequence[int] | None = None,
    ) -> None:
        """Try everything once on prior draws, before anything expensive.

        Looks at shapes and at finiteness of two prior draws per scale (all of them, or `scales`),
        the finest first, and compares a supplied vjp with finite differences of the forward map in
        random directions.
        """
        key = jr.key(0) if key is None else key
        scales = sorted(scales or range(1, self.problem.scales + 1), reverse=True)
        if self.problem.traceable and len(scales) > 1:
            self._check_every_scale(key, scales)
        else:
            for scale in scales:
                d = self.problem.priors[scale - 1].lattice.dim
                self.evaluate(normal(jr.fold_in(key, scale), (2, d)), scale)
        if self.problem.vjp is not None:
            self._check_vjp(jr.fold_in(key, 0), tolerance)

    def _check_every_scale(self, key: PRNGKeyArray, scales: Sequence[int]) -> None:
        """The same two draws at all scales."""
        self._require(2 * len(scales) + self._cost_of_inflation(min(scales)))
        likelihoods = [self.likelihood(scale) for scale in scales]
        self._spend(2 * len(scales))
        u = normal(key, (2, self.problem.dim))
        everywhere = self._observe_everywhere(u, scales[::-1])[::-1]
        for scale, likelihood, observed in zip(scales, likelihoods, everywhere, strict=True):
            values = likelihood.log_likelihood(likelihood.features(observed))
            bad = np.isfinite(observed).all(1) & ~np.isfinite(values)
            if bad.any():
                at_scale = self.problem.every_scale.whitened(u, scale)
                self._reject(self._model(scale), at_scale, 0, bad)

    def _check_vjp(self, key: PRNGKeyArray, tolerance: float) -> None:
        prior, layout = self.problem.prior, self.problem.layout
        model = self._model(self.problem.scales)
        forward, vjp = model.forward, model.vjp
        assert vjp is not None
        x = np.asarray(prior.sample(key, 2), np.float64)
        direction = np.asarray(prior.sample(jr.fold_in(key, 1), 2), np.float64)
        step = 1e-4
        self._spend(3 * len(x))
        outer = [np.asarray(forward(x + s * step * direction)) for s in (1, -1)]
        slope = (layout.flat(outer[0]) - layout.flat(outer[1])) / (2 * step)
        cotangent = normal(jr.fold_in(key, 2), slope.shape).astype(np.float64)
        pulled = np.asarray(vjp(x, layout.spread(cotangent, outer[0].shape)))
        if pulled.shape != x.shape:
            raise ValueError(f"vjp must return shape {x.shape}, got {pulled.shape}")
        axes = tuple(range(1, x.ndim))
        ours, theirs = (pulled * direction).sum(axes), (cotangent * slope).sum(1)
        size = np.abs(cotangent * slope).sum(1) + 1e-30
        error = np.max(np.abs(ours - theirs) / size)
        if not error < tolerance:
            names = "vjp must be the transposed derivative of forward"
            if not self.problem.has_observations:
                names = "gradient must be that of log_likelihood"
            raise ValueError(
                f"{names}: along a random direction it "
                f"gives {ours[0]:.6g} where finite differences give {theirs[0]:.6g}"
            )


def _check_batch(name: str, a: ArrayLike, axes: int) -> None:
    """Refuse fields, of `axes` axes each, that are not a batch of at least one."""
    shape = np.shape(a)
    if len(shape) != axes + 1:
        raise ValueError(f"{name} must be a batch of fields with one leading axis, got {shape}")
    if shape[0] == 0:
        raise ValueError(f"{name} must hold at least one field, got none")


@eqx.filter_jit
def _unwhitened(prior: Prior, u: ArrayLike) -> jax.Array:
    """Fields of a prior, by one program where its parts would be several."""
    return prior.unwhiten(jnp.asarray(u))


@eqx.filter_jit
def _pooled(lattice: Lattice, x: jax.Array) -> jax.Array:
    return lattice.pool(x)
