"""What is known of the answer: the field behind the data, an exact marginal of the posterior."""

import os
from typing import NamedTuple

import numpy as np

from msign import archive
from msign.problems.inverse import InverseProblem


class Known(NamedTuple):
    """Answers to compare with; each array is empty where it is not known.

    Attributes:
        truth: The field behind the data.
        weights: A linear functional of the field, shaped as one, whose posterior is known.
        values: Values of the functional, rising `(k,)`.
        density: The exact density of each `(k,)`.
    """

    truth: np.ndarray = np.zeros(0)
    weights: np.ndarray = np.zeros(0)
    values: np.ndarray = np.zeros(0)
    density: np.ndarray = np.zeros(0)

    @classmethod
    def of(cls, problem: InverseProblem) -> "Known":
        """What a problem says of its answer."""
        known = cls()
        if problem.truth is not None:
            known = known._replace(truth=problem.truth)
        if hasattr(problem.reference, "marginal"):
            weights, values, density = problem.reference.marginal()
            known = known._replace(weights=weights, values=values, density=density)
        return known

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file of arrays."""
        arrays = {name: np.asarray(a, np.float64) for name, a in self._asdict().items()}
        archive.save(path, (), {"kind": "Known"}, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str], field_shape: tuple[int, ...]) -> "Known":
        """Read it; nothing is known where there is no such file."""
        if not os.path.exists(path):
            return cls()
        arrays = archive.read_arrays(path, cls._fields)
        k = len(np.atleast_1d(arrays["values"]))
        shapes = {"truth": field_shape, "weights": field_shape, "values": (k,), "density": (k,)}
        for name, array in arrays.items():
            if array.dtype != np.float64 or array.shape not in (shapes[name], (0,)):
                raise ValueError(f"{path} is damaged: {name} is {array.dtype}{array.shape}")
        return cls(**arrays)
