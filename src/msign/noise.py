"""Random numbers on the host, where a JAX program for each new shape would have to be compiled."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, PRNGKeyArray

T = TypeVar("T")


class End:
    """What comes after the last item."""


END = End()


def generator(key: PRNGKeyArray) -> np.random.Generator:
    """NumPy's generator, seeded by a JAX key."""
    return np.random.default_rng(np.asarray(jr.key_data(key)))


def normal(key: PRNGKeyArray, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal numbers in the precision of JAX."""
    return generator(key).standard_normal(shape, default_dtype())


def normal_parts(key: PRNGKeyArray, n: int, dim: int, size: int) -> Iterator[np.ndarray]:
    """The rows of ``normal(key, (n, dim))`` in `parts` of a size."""
    stream, dtype = generator(key), default_dtype()
    for rows in parts(n, size):
        yield stream.standard_normal((rows.stop - rows.start, dim), dtype)


def parts(n: int, size: int) -> list[slice]:
    """N rows in parts of `size`; what is left over is in the last one, as if n were less."""
    starts = range(0, max(1, n - size + 1), size)
    return [slice(start, start + size) for start in starts[:-1]] + [slice(starts[-1], n)]


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made by a thread while the one before is used."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, END)
        while not isinstance(item := coming.result(), End):
            coming = thread.submit(next, items, END)
            yield item


def default_dtype() -> np.dtype:
    """Of floating-point numbers in JAX: single precision unless it is told otherwise."""
    return np.dtype(jnp.result_type(float))


def on_device(array: ArrayLike) -> Array:
    """The array in the precision of JAX; unlike ``jnp.asarray`` without a program to compile."""
    return jax.device_put(np.asarray(array, default_dtype()))
