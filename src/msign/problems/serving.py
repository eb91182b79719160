"""The forward map of a problem as a UM-Bridge server, for clients in any language."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from msign import checks
from msign.problems.inverse import InverseProblem, missing_forward


def serve(problem: InverseProblem, port: int = 4242, workers: int = 1) -> None:
    """Offer the forward map of a problem, and its gradient, as a UM-Bridge server.

    Args:
        problem: Its name is that of the model: one input vector, a field row by row, one output.
        port: Of this machine, on all of its interfaces.
        workers: Requests that are worked on at a time.
    """
    checks.integer("port", port, 1, 65535)
    checks.integer("workers", workers, 1)
    if problem.forward is missing_forward or not problem.has_observations:
        raise ValueError(f"problem must have a forward map to serve, got {problem}")
    try:
        import umbridge as package
    except ImportError:
        raise ValueError("serving needs UM-Bridge: pip install 'msign[umbridge]'") from None

    class Served(package.Model):
        """One forward map."""

        def get_input_sizes(self, config: Any = None) -> list[int]:
            return [problem.dim]

        def get_output_sizes(self, config: Any = None) -> list[int]:
            return [problem.layout.size]

        def supports_evaluate(self) -> bool:
            return True

        def supports_gradient(self) -> bool:
            return problem.differentiable

        def __call__(self, parameters: list[list[float]], config: Any = None) -> list[list[float]]:
            return [_observed(problem, parameters[0]).reshape(-1).tolist()]

        def gradient(
            self,
            out_wrt: int,
            in_wrt: int,
            parameters: list[list[float]],
            sens: list[float],
            config: Any = None,
        ) -> list[float]:
            return _gradient(problem, parameters[0], sens).reshape(-1).tolist()

    package.serve_models([Served(problem.name)], port, max_workers=workers)


def _observed(problem: InverseProblem, values: list[float]) -> np.ndarray:
    """What the forward map gives for one field, in the shape that it returns."""
    return np.asarray(problem.forward(_field(problem, values)), np.float64)


def _gradient(problem: InverseProblem, values: list[float], sens: list[float]) -> np.ndarray:
    """The transposed derivative of the forward map at one field, applied to `sens`."""
    x = _field(problem, values)
    if problem.vjp is not None:
        shape = (1, *problem.layout.shape)
        return np.asarray(problem.vjp(x, np.reshape(sens, shape)))
    observed, transposed = jax.vjp(problem.forward, x)
    return np.asarray(transposed(np.reshape(sens, observed.shape).astype(observed.dtype))[0])


def _field(problem: InverseProblem, values: list[float]) -> Any:
    shape = (1, *problem.prior.lattice.field_shape)
    x = np.reshape(np.asarray(values, np.float64), shape)
    return jnp.asarray(x) if problem.traceable else x
