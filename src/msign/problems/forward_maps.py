"""The forward maps of a problem as one run calls them: here or by workers, counted, with failures.

What becomes of a simulation that raises, or that returns NaN or infinity, is decided here: by the
problem's `on_failure` it is counted and rejected, or it ends the run with an error that names the
field.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from msign import user_code
from msign.lattice import Lattice
from msign.noise import as_array
from msign.priors import Prior
from msign.problems.at_scale import ScaleModel, compiled_rows
from msign.problems.counting import Count
from msign.problems.failures import SimulationError, SimulationRaised, SimulatorUnavailable
from msign.problems.inverse import InverseProblem, missing_forward
from msign.problems.spread import spread_over
from msign.problems.workers import as_workers

VALUES_IN_FLIGHT = 2**23  # of the fields that are with workers at a time
NOT_FINITE = "returned NaN or infinity"


class ForwardMaps:
    """The forward maps of all scales of a problem.

    Args:
        problem: What is simulated.
        count: Of the run.
        executor: Who evaluates a forward map that is not JAX code, see `Simulator`.

    Attributes:
        block: Fields at once: of a call, or of all calls that workers share.
        rejects: Whether a simulation that fails is counted and rejected.
    """

    def __init__(self, problem: InverseProblem, count: Count, executor: Any = None):
        if executor is not None and problem.traceable:
            raise ValueError(
                "executor must be None for a forward map in JAX, which is compiled here; to send "
                "it to workers make it a NumPy function: lambda x: np.asarray(forward(x))"
            )
        self.problem, self.count = problem, count
        self.rejects = problem.on_failure == "reject"
        self._workers = None if executor is None else as_workers(executor)
        self._models: dict[int, ScaleModel] = {}
        self.block = problem.chunk
        if executor is not None:
            self.block = max(problem.chunk, VALUES_IN_FLIGHT // problem.dim)

    def at_scale(self, scale: int) -> ScaleModel:
        """The forward map of a scale, evaluated here or by workers."""
        model = self.problem.at_scale(scale)
        if self._workers is None:
            return model
        if scale not in self._models:
            limit = self.problem.chunk
            self._models[scale] = spread_over(model, self._workers, limit, self.rejects)
        return self._models[scale]

    def require(self, simulations: int) -> None:
        """Refuse what the budget does not allow, or a problem that has no forward map."""
        if self.problem.forward is missing_forward:
            missing_forward(None)
        self.count.require(simulations)

    def spend(self, simulations: int) -> None:
        """The same, and count them."""
        self.require(simulations)
        self.count.spend(simulations)

    # --- failures ---------------------------------------------------------------------------------

    def reject(
        self,
        model: ScaleModel,
        u: np.ndarray,
        start: int,
        bad: np.ndarray,
        why: str = NOT_FINITE,
    ) -> None:
        """Count fields whose simulation is not finite, or stop at the first and say why."""
        if bad.any() and not self.rejects:
            i = int(np.flatnonzero(bad)[0])
            raise _failure(model, u[i], f"sample {start + i}", why)
        self.count.failures += int(bad.sum())

    @contextlib.contextmanager
    def named(
        self, model: ScaleModel, u: Callable[[], np.ndarray], start: int = 0
    ) -> Iterator[None]:
        """A block whose errors name fields u() and the line of the user's code that raised them.

        The first of the fields is number `start`. Errors of compiled code alone stay as they are.
        """
        try:
            yield
        except (SimulatorUnavailable, SimulationError):
            raise
        except Exception as error:
            if model.traceable and not user_code.located(error):
                raise
            raise _raised(model, u(), start, error) from error

    # --- observations -----------------------------------------------------------------------------

    def observe(self, model: ScaleModel, x: ArrayLike, tolerant: bool = False) -> np.ndarray:
        """What the forward map of a scale gives for its fields, chunk by chunk; counts nothing."""
        x, chunk = jnp.asarray(x), self.block
        pieces = (x[start : start + chunk] for start in range(0, len(x), chunk))
        return np.concatenate([model.observe(model.lift(piece), tolerant) for piece in pieces])

    def observe_everywhere(self, u: np.ndarray, scales: Sequence[int]) -> list[np.ndarray]:
        """Predictions of the forward maps of scales, in rising order, for fields of the finest.

        Failures are those of any simulation; rows of a field that is rejected are not finite.
        """
        problem, found = self.problem, []
        if problem.traceable:
            rows = compiled_rows(max(len(u), problem.inflate), self.block)
            with self.named(self.at_scale(problem.scales), lambda: u):
                everywhere = problem.every_scale.observe(u, rows)
            for scale in scales:
                observed = everywhere[scale - 1]
                bad = ~np.isfinite(observed).all(1)
                if bad.any():
                    at_scale = problem.every_scale.whitened(u, scale)
                    self.reject(self.at_scale(scale), at_scale, 0, bad)
                found.append(observed)
            return found
        x: Any = _unwhitened(problem.prior, u)
        for scale in range(problem.scales, 0, -1):
            if scale < problem.scales:
                x = _pooled(problem.priors[scale].lattice, x)
            if scale in scales:
                found.append(self._observe_draws(self.at_scale(scale), x))
        return found[::-1]

    def _observe_draws(self, model: ScaleModel, x: ArrayLike) -> np.ndarray:
        """What a forward map in NumPy gives for fields of a scale."""

        def whitened() -> np.ndarray:
            return np.asarray(model.prior.whiten(as_array(x)))

        with self.named(model, whitened):
            observed = self.observe(model, x, self.rejects)
        bad = ~np.isfinite(observed).all(1)
        if bad.any():
            self.reject(model, whitened(), 0, bad)
        return observed


def not_finite(predicted: np.ndarray, value: float) -> str:
    """What is wrong with a simulation, from what it leaves of predictions and its likelihood."""
    if not np.isfinite(predicted).all():
        return NOT_FINITE
    if not np.isfinite(value):
        return (
            f"returned finite numbers, but given these the log-likelihood of the data is {value}: "
            "data outside of what the likelihood allows, or too far from the predictions"
        )
    return "returned finite numbers, but their derivative is NaN or infinite"


def _raised(model: ScaleModel, u: np.ndarray, start: int, error: Exception) -> SimulationError:
    rows, what = slice(0, len(u)), user_code.raised(error)
    if isinstance(error, SimulationRaised):
        rows, what = error.rows, error.what
    first, last = start + rows.start, start + rows.stop - 1
    which = f"sample {first}" if first == last else f"one of samples {first} to {last}"
    return _failure(model, u[rows.start], which, what)


def _failure(model: ScaleModel, u: np.ndarray, which: str, what: str) -> SimulationError:
    message = f"the forward simulation of {which} at scale {model.scale} {what}"
    return SimulationError(message, np.asarray(model.fields(u[None]))[0])


@eqx.filter_jit
def _unwhitened(prior: Prior, u: ArrayLike) -> jax.Array:
    """Fields of a prior, by one program where its parts would be several."""
    return prior.unwhiten(jnp.asarray(u))


@eqx.filter_jit
def _pooled(lattice: Lattice, x: jax.Array) -> jax.Array:
    return lattice.pool(x)
