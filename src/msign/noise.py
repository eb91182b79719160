"""Random numbers on the host, where a JAX program for each new shape would have to be compiled."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, PRNGKeyArray


def generator(key: PRNGKeyArray) -> np.random.Generator:
    """NumPy's generator, seeded by a JAX key."""
    return np.random.default_rng(np.asarray(jr.key_data(key)))


def normal(key: PRNGKeyArray, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal numbers in the precision of JAX."""
    return generator(key).standard_normal(shape, default_dtype())


def normal_parts(key: PRNGKeyArray, n: int, dim: int, size: int) -> Iterator[np.ndarray]:
    """Standard normal rows `(n, dim)` in parts of `size`, each drawn while the one before is used.

    On a large lattice drawing noise takes half as long as simulating it.
    """
    sizes = [min(size, n - start) for start in range(0, n, size)]
    with ThreadPoolExecutor(1) as thread:
        parts = [(jr.fold_in(key, i), (rows, dim)) for i, rows in enumerate(sizes)]
        coming = thread.submit(normal, *parts[0])
        for following in parts[1:]:
            part, coming = coming.result(), thread.submit(normal, *following)
            yield part
        yield coming.result()


def default_dtype() -> np.dtype:
    """Of floating-point numbers in JAX: single precision unless it is told otherwise."""
    return np.dtype(jnp.result_type(float))


def on_device(array: ArrayLike) -> Array:
    """The array in the precision of JAX; unlike ``jnp.asarray`` without a program to compile."""
    return jax.device_put(np.asarray(array, default_dtype()))
