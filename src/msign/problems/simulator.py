"""Evaluating the fields of a problem: what a forward simulation costs, and when it fails.

One `Simulator` belongs to one run. It alone counts. The problem, and what is compiled for it, is
shared by all simulators. Fields enter in the whitened coordinates u of the scale's prior.
"""

import sys
from typing import NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import ArrayLike, PRNGKeyArray

from msign import checks
from msign.noise import normal, on_device
from msign.problems.at_scale import Inflation, Noise, ScaleModel, whitened_noise
from msign.problems.inverse import InverseProblem, missing_forward

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
        residual: Whitened residuals `(n, m)`, half of whose squared norm is minus the
            log-likelihood.
    """

    log_likelihood: np.ndarray
    gradient: np.ndarray | None
    residual: np.ndarray


class Simulator:
    """Evaluates fields of a problem, counts each forward simulation, refuses to exceed a budget.

    Args:
        problem: What is simulated.
        budget: How many forward simulations are allowed; None: any number.

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

    def __init__(self, problem: InverseProblem, budget: int | None = None):
        self.problem = problem
        self.budget = None if budget is None else checks.integer("budget", budget, 0)
        self.nfs = 0
        self.failures = 0
        self._inflation: dict[int, Inflation] = {}
        self._noise: dict[int, Noise] = {}
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

    def evaluate(self, u: ArrayLike, scale: int, gradient: bool = False) -> Evaluated:
        """Log-likelihood of fields in whitened coordinates `(n, d_l)`, chunk by chunk."""
        model = self.problem.at_scale(scale)
        if gradient and not model.differentiable:
            raise ValueError("gradient must be False: the forward map has no derivative (no vjp)")
        u = np.asarray(u)
        checks.shape("u", u.shape, (model.prior.lattice.dim,))
        _check_batch("u", u, 1)
        cost = len(u) * (2 if gradient else 1)
        self._require(cost + self._cost_of_inflation(scale))
        noise = self._noise_at(scale)
        self._spend(cost)
        parts = []
        for start in range(0, len(u), self.problem.chunk):
            piece = u[start : start + self.problem.chunk]
            parts.append(self._evaluate_chunk(model, noise, piece, gradient, start))
        slopes = [p.gradient for p in parts if p.gradient is not None]
        return Evaluated(
            np.concatenate([p.log_likelihood for p in parts]),
            np.concatenate(slopes) if gradient else None,
            np.concatenate([p.residual for p in parts]),
        )

    def _evaluate_chunk(
        self, model: ScaleModel, noise: Noise, u: np.ndarray, gradient: bool, start: int
    ) -> Evaluated:
        chunk, reject = self.problem.chunk, self.problem.on_failure == "reject"
        try:
            residual, slopes = model.simulate(u, noise, gradient, chunk, tolerant=reject)
        except Exception as error:
            if reject or model.traceable:
                raise
            which = f"sample {start}"
            if len(u) > 1:
                which = f"one of samples {start} to {start + len(u) - 1}"
            what = f"raised {type(error).__name__}: {error}"
            raise self._failure(model, u[0], which, what) from error
        values = -0.5 * (residual**2).sum(1)
        bad = ~np.isfinite(values)
        if slopes is not None:
            bad |= ~np.all(np.isfinite(slopes), axis=1)
        if bad.any():
            if not reject:
                i = int(np.flatnonzero(bad)[0])
                raise self._failure(model, u[i], f"sample {start + i}", "returned NaN or infinity")
            self.failures += int(bad.sum())
            values = np.where(bad, -np.inf, values)
            slopes = None if slopes is None else np.where(bad[:, None], 0.0, slopes)
        return Evaluated(values, slopes, residual)

    def _failure(self, model: ScaleModel, u: np.ndarray, which: str, what: str) -> SimulationError:
        message = f"the forward simulation of {which} at scale {model.scale} {what}"
        return SimulationError(message, np.asarray(model.fields(u[None]))[0])

    def observe(self, x: ArrayLike, scale: int | None = None) -> np.ndarray:
        """What the forward map gives for a batch of fields of a scale `(n, m)`, without noise."""
        model = self.problem.at_scale(self.problem.scales if scale is None else scale)
        fields = model.prior.lattice.check("x", x)
        _check_batch("x", fields, len(model.prior.lattice.field_shape))
        self._spend(len(fields))
        return self._observe(model, fields)

    def _observe(self, model: ScaleModel, x: ArrayLike) -> np.ndarray:
        x, chunk = jnp.asarray(x), self.problem.chunk
        pieces = (x[start : start + chunk] for start in range(0, len(x), chunk))
        return np.concatenate([model.observe(model.lift(piece)) for piece in pieces])

    # --- the noise of coarse scales ---------------------------------------------------------------

    def inflation(self, scale: int) -> Inflation | None:
        """The estimated discretisation error of a coarse scale, if the problem asks for it."""
        if not self.problem.inflate or self.problem.at_scale(scale).scale == self.problem.scales:
            return None
        self.prepare()
        return self._inflation[scale]

    def prepare(self) -> None:
        """Estimate the discretisation errors now, if the problem asks for it."""
        problem = self.problem
        if not problem.inflate or problem.scales == 1 or self._inflation:
            return
        self._spend(self._cost_of_inflation(1))
        x = problem.prior.sample(jr.key(INFLATION_SEED), problem.inflate)
        fine = self._observe(problem.at_scale(problem.scales), x)
        m = len(problem.data)
        for scale in range(problem.scales - 1, 0, -1):
            x = problem.priors[scale].lattice.pool(x)
            error = fine - self._observe(problem.at_scale(scale), x)
            self._inflation[scale] = Inflation(error.mean(0), np.cov(error.T).reshape(m, m))

    def _cost_of_inflation(self, scale: int) -> int:
        """Simulations that this scale's noise still costs."""
        if self._inflation or self._restored or scale == self.problem.scales:
            return 0
        return self.problem.inflate * self.problem.scales

    def _noise_at(self, scale: int) -> Noise:
        if scale not in self._noise:
            problem, error = self.problem, self.inflation(scale)
            noise = problem.noise
            if error is not None:
                noise = whitened_noise(problem.data, problem.noise_cov, error)
            traceable = problem.at_scale(scale).traceable
            self._noise[scale] = Noise(*map(on_device, noise)) if traceable else noise
        return self._noise[scale]

    # --- trying everything once ----------------------------------------------------------------

    def check(self, key: PRNGKeyArray | None = None, tolerance: float = 1e-2) -> None:
        """Try everything once on prior draws, before anything expensive.

        Looks at shapes and at finiteness of two prior draws per scale, and compares a supplied vjp
        with finite differences of the forward map in random directions.
        """
        key = jr.key(0) if key is None else key
        for scale, prior in enumerate(self.problem.priors, start=1):
            self.evaluate(normal(jr.fold_in(key, scale), (2, prior.lattice.dim)), scale)
        if self.problem.vjp is not None:
            self._check_vjp(jr.fold_in(key, 0), tolerance)

    def _check_vjp(self, key: PRNGKeyArray, tolerance: float) -> None:
        prior, forward, vjp = self.problem.prior, self.problem.forward, self.problem.vjp
        assert vjp is not None
        x = np.asarray(prior.sample(key, 2), np.float64)
        direction = np.asarray(prior.sample(jr.fold_in(key, 1), 2), np.float64)
        step = 1e-4
        self._spend(3 * len(x))
        outer = [np.asarray(forward(x + s * step * direction)) for s in (1, -1)]
        slope = (outer[0] - outer[1]) / (2 * step)
        cotangent = normal(jr.fold_in(key, 2), slope.shape).astype(np.float64)
        pulled = np.asarray(vjp(x, cotangent))
        if pulled.shape != x.shape:
            raise ValueError(f"vjp must return shape {x.shape}, got {pulled.shape}")
        axes = tuple(range(1, x.ndim))
        ours, theirs = (pulled * direction).sum(axes), (cotangent * slope).sum(1)
        size = np.abs(cotangent * slope).sum(1) + 1e-30
        error = np.max(np.abs(ours - theirs) / size)
        if not error < tolerance:
            raise ValueError(
                f"vjp must be the transposed derivative of forward: along a random direction it "
                f"gives {ours[0]:.6g} where finite differences give {theirs[0]:.6g}"
            )


def _check_batch(name: str, a: ArrayLike, axes: int) -> None:
    """Refuse fields, of `axes` axes each, that are not a batch of at least one."""
    shape = np.shape(a)
    if len(shape) != axes + 1:
        raise ValueError(f"{name} must be a batch of fields with one leading axis, got {shape}")
    if shape[0] == 0:
        raise ValueError(f"{name} must hold at least one field, got none")
