"""What a model predicts of the data: the simulations of its certificate, kept for later looks."""

import os
from typing import NamedTuple

import numpy as np

from msign import archive
from msign.inference.simulate import Simulated
from msign.problems.inverse import InverseProblem

KEPT = 1000  # fields whose predictions are kept,
VALUES = 2**20  # but no more numbers than these,
FEWEST = 50  # and not fewer fields


class Predictive(NamedTuple):
    """Data, and what n fields of the model predict of them; rejected simulations are left out.

    Attributes:
        data: Observations that are used `(m,)`.
        predicted: By the forward map, without noise `(n, m)`.
        residuals: What is left of the data, in units of the noise `(n, m)`.
        replicated: New data, with noise `(n, m)`; empty `(0, m)` where the likelihood cannot be
            drawn from.
        log_weights: Log q - log p of the fields, up to the evidence `(n,)`.
    """

    data: np.ndarray
    predicted: np.ndarray
    residuals: np.ndarray
    replicated: np.ndarray
    log_weights: np.ndarray

    @classmethod
    def of(cls, problem: InverseProblem, drawn: Simulated, seed: int) -> "Predictive | None":
        """From simulated fields of the finest scale; None where there are no observations."""
        if not problem.has_observations:
            return None
        m = len(problem.data)
        rows = np.flatnonzero(np.isfinite(drawn.log_weights))
        rows = rows[: min(KEPT, max(FEWEST, VALUES // m))]
        if not len(rows):
            return None
        features, likelihood = drawn.features[rows], problem.likelihood
        replicated = likelihood.replicated(features, np.random.default_rng(seed))
        return cls(
            np.array(problem.data),
            likelihood.predicted(features),
            likelihood.residuals(features),
            np.zeros((0, m)) if replicated is None else replicated,
            drawn.log_weights[rows],
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file of arrays."""
        arrays = {name: np.asarray(a, np.float64) for name, a in self._asdict().items()}
        archive.save(path, (), {"kind": "Predictive"}, arrays, finite=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Predictive | None":
        """Read it; None if there is no such file. Arrays that do not fit together are refused."""
        if not os.path.exists(path):
            return None
        arrays = archive.read_arrays(path, cls._fields)
        found = cls(**arrays)
        n, m = len(found.log_weights), len(found.data)
        shapes: dict[str, list[tuple[int, ...]]]
        shapes = {"data": [(m,)], "log_weights": [(n,)], "replicated": [(n, m), (0, m)]}
        for name, array in arrays.items():
            allowed = shapes.get(name, [(n, m)])
            if array.shape not in allowed or array.dtype != np.float64 or 0 in (n, m):
                raise ValueError(f"{path} is damaged: {name} is {array.dtype}{array.shape}")
        return found
