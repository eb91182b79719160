"""Evaluating the fields of a problem: log-likelihoods, gradients, predictions.

One `Simulator` belongs to one run. It alone counts. The problem, and what is compiled for it, is
shared by all simulators. Fields enter in the whitened coordinates u of the scale's prior.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np
from jaxtyping import ArrayLike, PRNGKeyArray

from msign import checks
from msign.devices import shared_out
from msign.noise import as_array, normal
from msign.problems.at_scale import ScaleModel, compiled_rows
from msign.problems.coarse_noise import BothPlaces, CoarseNoise
from msign.problems.counting import Count
from msign.problems.data_likelihood import DataLikelihood, Inflation
from msign.problems.forward_maps import ForwardMaps, not_finite
from msign.problems.inverse import InverseProblem
from msign.problems.linearised import check_batch, linearised
from msign.problems.trial import check_every_scale, check_vjp, refuse_all_rejected

PATIENCE = 30  # further prior draws that are tried where none of the first could be simulated


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
        problem: What is simulated.
        count: Of its simulations: one per field evaluated, one more per field differentiated.

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
        self.count = Count(budget)
        self._maps = ForwardMaps(problem, self.count, executor)
        self._noise = CoarseNoise(self._maps)

    def __repr__(self) -> str:
        allowed = "" if self.budget is None else f" of {self.budget}"
        return f"Simulator({self.problem.name}, {self.nfs}{allowed} simulations)"

    # --- counting --------------------------------------------------------------------------------

    @property
    def nfs(self) -> int:
        """Forward simulations so far."""
        return self.count.nfs

    @property
    def failures(self) -> int:
        """Simulations rejected so far."""
        return self.count.failures

    @property
    def budget(self) -> int | None:
        """How many forward simulations are allowed; None: any number."""
        return self.count.budget

    @property
    def left(self) -> int:
        """Simulations that the budget still allows."""
        return self.count.left

    def limited(self, simulations: int) -> contextlib.AbstractContextManager[None]:
        """A block in which no more than these simulations are allowed."""
        return self.count.limited(simulations)

    @contextlib.contextmanager
    def rejecting(self) -> Iterator[None]:
        """A block in which what fails is rejected, whatever the problem says, in this process.

        For proposals of samplers, which may lie where nothing can be simulated.
        """
        before, self._maps.rejects = self._maps.rejects, True
        try:
            yield
        finally:
            self._maps.rejects = before

    # --- evaluating ------------------------------------------------------------------------------

    def evaluate(self, u: ArrayLike, scale: int, gradient: bool = False) -> Evaluated:
        """Log-likelihood of fields in whitened coordinates `(n, d_l)`, chunk by chunk."""
        model = self._maps.at_scale(scale)
        if gradient and not model.differentiable:
            raise ValueError("gradient must be False: the forward map has no derivative (no vjp)")
        u = np.asarray(u)
        checks.shape("u", u.shape, (model.prior.lattice.dim,))
        check_batch("u", u, 1)
        cost = len(u) * (2 if gradient else 1)
        self._maps.require(cost + self._noise.cost(scale))
        likelihood = self._noise.likelihood(scale)
        self._maps.spend(cost)
        parts, rows = [], compiled_rows(len(u), self._maps.block)
        for start in range(0, len(u), self._maps.block):
            piece = u[start : start + self._maps.block]
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
        quiet = np.errstate(over="ignore", invalid="ignore")
        with self._maps.named(model, lambda: u, start), quiet:
            values = likelihood.host.log_likelihood(features)
        bad = ~np.isfinite(values)
        if slopes is not None:
            bad |= ~np.all(np.isfinite(slopes), axis=1)
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            self._maps.reject(model, u, start, bad, not_finite(features[i], values[i]))
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
        with self._maps.named(model, lambda: u, start):
            return model.simulate(u, likelihood.device, gradient, rows, self._maps.rejects)

    def observe(self, x: ArrayLike, scale: int | None = None) -> np.ndarray:
        """What the forward map gives for a batch of fields of a scale `(n, m)`, without noise."""
        model = self._maps.at_scale(self.problem.scales if scale is None else scale)
        fields = model.prior.lattice.check("x", x)
        check_batch("x", fields, len(model.prior.lattice.field_shape))
        self._maps.spend(len(fields))
        with self._maps.named(model, lambda: np.asarray(model.prior.whiten(as_array(fields)))):
            return self._maps.observe(model, fields)

    # --- products with the derivative of the features ---------------------------------------------

    def jvp(
        self, u: ArrayLike, tangents: ArrayLike, scale: int, solved: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Features `(n, m)` of fields and their derivatives along tangents `(n, d_l)`.

        For forward maps in JAX; counts two simulations a field, or one, the tangent solve, for
        fields that have been simulated before (`solved`).
        """
        model = self._maps.at_scale(scale)
        if not model.traceable:
            raise ValueError("jvp must be asked of a forward map in JAX, got one in NumPy")
        arrays = np.asarray(u), np.asarray(tangents)
        return linearised(self._noise, model, model.jvp, arrays, model.prior.lattice.dim, 1, solved)

    def vjp(
        self, u: ArrayLike, cotangents: ArrayLike, scale: int, solved: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Features `(n, m)` of fields, and `(n, d_l)`: their transposed derivative of cotangents.

        Counts two simulations a field, or one, the adjoint solve, for fields that have been
        simulated before (`solved`) by a forward map in JAX; one in NumPy is called again.
        """
        model = self._maps.at_scale(scale)
        arrays = np.asarray(u), np.asarray(cotangents)
        known = solved and model.traceable
        return linearised(
            self._noise, model, model.vjp_of_features, arrays, model.layout.m, 1, known
        )

    def jacobian(self, u: ArrayLike, scale: int) -> tuple[np.ndarray, np.ndarray]:
        """Features `(n, m)` of fields and all of their derivatives `(n, m, d_l)`.

        Counts m + 1 simulations a field.
        """
        model = self._maps.at_scale(scale)
        return linearised(self._noise, model, model.jacobian, (np.asarray(u),), 0, model.layout.m)

    # --- the noise of coarse scales ---------------------------------------------------------------

    def prepare(self) -> None:
        """Estimate the discretisation errors now, if the problem asks for it."""
        self._noise.prepare()

    def inflation(self, scale: int) -> Inflation | None:
        """The estimated discretisation error of a coarse scale, if the problem asks for it.

        None, too, where the simulations of all prior draws but one were rejected.
        """
        return self._noise.inflation(scale)

    def relative_inflation(self, scale: int) -> float:
        """Discretisation error of a scale, in units of the noise, that is added to it."""
        error, noise = self.inflation(scale), self.problem.noise_cov
        return 0.0 if error is None or noise is None else error.relative_to(noise)

    def likelihood(self, scale: int) -> DataLikelihood:
        """The likelihood of a scale as a function of features, in double precision."""
        return self._noise.likelihood(scale).host

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
        random directions. Where simulations may be rejected, some prior draw is not: if none of
        the first can be simulated, more are tried.
        """
        key = jr.key(0) if key is None else key
        scales = sorted(scales or range(1, self.problem.scales + 1), reverse=True)
        before = self.failures
        if self.problem.traceable and len(scales) > 1:
            check_every_scale(self._noise, key, scales)
        else:
            for scale in scales:
                d = self.problem.priors[scale - 1].lattice.dim
                self.evaluate(normal(jr.fold_in(key, scale), (2, d)), scale)
        tried = 2 * len(scales)
        if self.failures - before >= tried:
            u = normal(jr.fold_in(key, scales[0]), (PATIENCE, self.problem.dim))
            found = self.evaluate(u, self.problem.scales)
            if not np.isfinite(found.log_likelihood).any():
                refuse_all_rejected(self._maps, u[:1], tried + PATIENCE)
        if self.problem.vjp is not None:
            check_vjp(self._maps, jr.fold_in(key, 0), tolerance)
