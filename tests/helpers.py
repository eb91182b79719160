"""What the tests share: parameters moved off their start, casts, dense matrices of linear maps."""

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import paramax
import pytest

from msign.priors import DensePrior, Prior, pooling_matrix


def seeded(base: int) -> int:
    """The seed of a statistical test: `base`, shifted by the environment's MSIGN_TEST_SEED.

    A test that draws random numbers and compares with a tolerance must hold for other draws,
    too. `make test-seeds` runs the suite with other shifts; without one the seed is `base`.
    """
    return base + 1000 * int(os.environ.get("MSIGN_TEST_SEED", "0"))


def is_fixed(leaf: Any) -> bool:
    return isinstance(leaf, paramax.NonTrainable)


def split_trainable(module: Any) -> tuple[Any, Any]:
    """Trainable leaves and the rest, as `eqx.partition` gives them."""
    return eqx.partition(module, eqx.is_inexact_array, is_leaf=is_fixed)


def join(trainable: Any, rest: Any) -> Any:
    return eqx.combine(trainable, rest, is_leaf=is_fixed)


def moved(module: Any, size: float = 0.1, seed: int = 7) -> Any:
    """The module with every trainable parameter moved randomly off its start."""
    trainable, rest = split_trainable(module)
    rng = np.random.default_rng(seeded(seed))
    shifted = jax.tree.map(
        lambda a: jnp.asarray(np.asarray(a) + size * rng.normal(size=a.shape), a.dtype), trainable
    )
    return join(shifted, rest)


def in_float32(module: Any) -> Any:
    """The module with all floating-point arrays, trainable or not, in single precision."""
    return jax.tree.map(
        lambda a: jnp.asarray(np.asarray(a, np.float32)) if eqx.is_inexact_array(a) else a,
        module,
    )


def identical(a: Any, b: Any) -> bool:
    """Whether two modules are of one structure and agree in every bit of every array.

    As `eqx.tree_equal`, which compiles a comparison for each shape.
    """
    first, second = jax.tree.flatten(a), jax.tree.flatten(b)
    return first[1] == second[1] and all(
        np.array_equal(x, y) and np.asarray(x).dtype == np.asarray(y).dtype
        for x, y in zip(first[0], second[0], strict=True)
    )


def matrix_of(f: Callable[[Any], Any], d: int) -> np.ndarray:
    """The matrix of an affine map of vectors of length d, one column per basis vector."""
    return matrix_by_values(_mapped(f, origin_and_basis(d)))


def origin_and_basis(d: int) -> np.ndarray:
    """Points `(d + 1, d)` at which an affine map says all that it is."""
    return np.concatenate([np.zeros((1, d)), np.eye(d)])


def matrix_by_values(values: Any) -> np.ndarray:
    """The matrix of an affine map by its values at the origin and the basis vectors."""
    origin, *columns = np.asarray(values).reshape(len(values), -1)
    return np.stack(columns, 1) - origin[:, None]


@eqx.filter_jit
def _mapped(f: Callable[[Any], Any], points: Any) -> Any:
    return jax.vmap(f)(points)


def covariance_of(prior: Prior) -> np.ndarray:
    root = matrix_of(prior.unwhiten, prior.lattice.dim)
    return root @ root.T


def pooling_of(prior: Prior) -> np.ndarray:
    """The downsampling matrix A of a prior."""
    if isinstance(prior, DensePrior):
        return prior.downsampling_matrix()
    return pooling_matrix(prior.lattice)


def random_covariance(d: int, seed: int = 0) -> np.ndarray:
    factor = np.random.default_rng(seeded(seed)).normal(size=(d, 2 * d))
    return factor @ factor.T / d


def refused(*parts: Any) -> Any:
    """A one-line ValueError that contains all `parts`, in this order."""
    pattern = ".*".join(re.escape(str(part)) for part in parts)
    return pytest.raises(ValueError, match=rf"\A[^\n]*{pattern}[^\n]*\Z")


def ring(x: Any) -> Any:
    """Two observations of four cells: twisted, with two modes that no Gaussian is near to."""
    a, b = x @ jnp.array([1.0, 1, 1, 1]), x @ jnp.array([1.0, 1, -1, -1])
    return jnp.stack([a**2 + b, b - 0.3 * a * b], -1)


class Killed(BaseException):
    """Stands for the end of a process: nothing catches it."""


@contextlib.contextmanager
def killed_after(directory: type, checkpoints: int) -> Iterator[None]:
    """What runs inside dies when it has written these checkpoints of a run directory."""
    save, count = directory.save_checkpoint, itertools.count(1)

    def dying(self: Any, *arguments: Any) -> None:
        save(self, *arguments)
        if next(count) == checkpoints:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(directory, "save_checkpoint", dying)
        yield
