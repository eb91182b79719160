"""Random numbers on the host, where a JAX program for each new shape would have to be compiled."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, PRNGKeyArray

MANY = 2**24  # numbers for which compiled code is worth its compilation
BLOCK = 2**19  # of them at a time, what a processor's cache holds
# Coefficients of Giles's two polynomials, the highest power first.
CENTRE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
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
    """Standard normal rows `(n, dim)` in `parts` of a size, whose numbers do not depend on it.

    Of many numbers each comes from its place alone, by compiled code: a third of NumPy's time.
    """
    dtype = default_dtype()
    if n * dim < MANY or dtype != np.float32:
        stream = generator(key)
        for rows in parts(n, size):
            yield stream.standard_normal((rows.stop - rows.start, dim), dtype)
        return
    words, left, block = np.asarray(jr.key_data(key)), np.zeros(0, dtype), 0
    for rows in parts(n, size):
        count, found = (rows.stop - rows.start) * dim, [left]
        while sum(map(len, found)) < count:
            found.append(np.asarray(_block_of_normals(words, np.uint32(block))))
            block += 1
        whole = found[1] if len(left) == 0 and len(found) == 2 else np.concatenate(found)
        left = whole[count:]
        yield whole[:count].reshape(-1, dim)


@jax.jit
def _block_of_normals(key: Array, block: Array) -> Array:
    """Standard normal numbers `(BLOCK,)`: Threefry's bits of a block, by the inverse distribution.

    Threefry-2x32 of 20 rounds, JAX's own generator, written out so that it becomes one loop.
    """
    place = jnp.arange(BLOCK // 2, dtype=jnp.uint32)
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    a, b = place + keys[0], block + keys[1]
    for i in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            a = a + b
            b = a ^ ((b << turn) | (b >> (32 - turn)))
        a, b = a + keys[(i + 1) % 3], b + keys[(i + 2) % 3] + np.uint32(i + 1)
    return jnp.concatenate([_normal_of_bits(a), _normal_of_bits(b)])


def _normal_of_bits(bits: Array) -> Array:
    """Standard normal numbers in single precision, from a sign and 31 bits of the tail each.

    Giles's approximation of the inverse error function ("Approximating the erfinv function", 2010),
    whose argument 1 - t is near one in the tails: t itself has all of its digits there. Beyond 5.3
    deviations, one number in ten million, they are right to a thousandth.
    """
    t = (bits >> 1).astype(jnp.int32).astype(jnp.float32) * 2.0**-31 + 2.0**-32
    w = -jnp.log(t * (2 - t))
    centre = jnp.polyval(jnp.array(CENTRE, jnp.float32), w - 2.5, unroll=9)
    tail = jnp.polyval(jnp.array(TAIL, jnp.float32), jnp.sqrt(w) - 3, unroll=9)
    size = math.sqrt(2) * (1 - t) * jnp.where(w < 5, centre, tail)
    return jnp.where(bits & 1, size, -size)


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


def as_array(array: ArrayLike) -> Array:
    """As `jnp.asarray`, which compiles a program for each shape of a NumPy array."""
    return jax.device_put(array) if isinstance(array, np.ndarray) else jnp.asarray(array)
