"""Several devices: the fields of a batch are spread over them, weights are copies on each.

Batches are NumPy arrays before and after a compiled program, so that it is enough to cut what
enters one by rows (`spread`) and to bring back what leaves it (`gathered`, `local`). XLA does the
rest: it runs a program on all devices over which an argument is spread, copies the others, and adds
gradients up. With one device all this does nothing, and programs and numbers are what they were.

With several processes (`jax.distributed`) `fit` and `refine` are called by all of them and run
`together`: over the devices of all, each process simulating its share of the fields of a forward
map in NumPy, the first alone writing files. Anything else uses the devices of its own process, so
that one of them may look at results without the others.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, ArrayLike

from msign.noise import default_dtype

AXIS = "batch"
VALUES_AT_ONCE = 2**23  # numbers of the fields that a forward map is given at once
VALUES_IN_CACHE = 2**19  # of those that compiled code on a processor is given
T = TypeVar("T")

_together = contextvars.ContextVar("together", default=False)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """A block that all processes run with equal arguments, on the devices of all of them."""
    with _scope(True):
        yield


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A block that this process runs on its own devices, whatever the others do."""
    with _scope(False):
        yield


@contextlib.contextmanager
def _scope(value: bool) -> Iterator[None]:
    token = _together.set(value)
    try:
        yield
    finally:
        _together.reset(token)


def processes() -> int:
    """How many processes work together here; one outside of `together`."""
    return jax.process_count() if _together.get() else 1


def writes_files() -> bool:
    """Whether this process writes what all of them have found."""
    return processes() == 1 or jax.process_index() == 0


def mesh() -> Mesh:
    """The devices in use, in a row."""
    return _row_of(processes() > 1)


@functools.cache
def _row_of(everybodys: bool) -> Mesh:
    return Mesh(np.array(jax.devices() if everybodys else jax.local_devices()), (AXIS,))


def rows_spread(ndim: int, axis: int = 0) -> NamedSharding:
    """The sharding of arrays of `ndim` axes, one of which is cut among the devices."""
    return NamedSharding(mesh(), PartitionSpec(*(AXIS if i == axis else None for i in range(ndim))))


def copies() -> NamedSharding:
    """The sharding of arrays of which every device has all."""
    return NamedSharding(mesh(), PartitionSpec())


def fields_at_once(dim: int, compiled: bool = True) -> int:
    """How many fields of `dim` values a forward map is given at once.

    Compiled code on a processor is given what its cache holds: it makes an array after each of its
    steps, and large ones cost more to come by than to fill.
    """
    in_cache = compiled and jax.default_backend() == "cpu"
    return max(1, (VALUES_IN_CACHE if in_cache else VALUES_AT_ONCE) // dim)


# --- into compiled programs -----------------------------------------------------------------------


def spread(array: ArrayLike, axis: int = 0) -> Array:
    """The array in the precision of JAX, its rows (or another axis) spread over all devices.

    Copies where the number of devices does not divide the rows: right, but no faster than one.
    """
    whole = np.asarray(array, default_dtype())
    if mesh().size == 1:
        return jax.device_put(whole)
    sharding = _cut(whole.shape, axis)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def spread_tree(tree: T) -> T:
    """The same for all arrays of a tree, which are on a device already."""
    return tree if mesh().size == 1 else jax.tree.map(spread, tree)


def _cut(shape: tuple[int, ...], axis: int) -> NamedSharding:
    return rows_spread(len(shape), axis) if shape[axis] % mesh().size == 0 else copies()


# --- inside of them -------------------------------------------------------------------------------


def spread_here(array: Array, axis: int = 0) -> Array:
    """For compiled code: an array that is made there, its rows spread over all devices."""
    if mesh().size == 1:
        return array
    return jax.lax.with_sharding_constraint(array, _cut(array.shape, axis))


def copied_here(tree: T) -> T:
    """For compiled code: results, weights say, that every device is to have."""
    if mesh().size == 1:
        return tree
    return jax.lax.with_sharding_constraint(tree, copies())


# --- out of them ----------------------------------------------------------------------------------


def gathered(array: Array) -> np.ndarray:
    """An array of any sharding as a whole, on the host."""
    if processes() == 1 or array.is_fully_replicated:
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def local(tree: T) -> T:
    """A tree of copies on all devices as ordinary arrays of this process."""
    if mesh().size == 1:
        return tree
    return jax.tree.map(
        lambda a: jax.device_put(np.asarray(a)) if eqx.is_array(a) else a,
        tree,
    )


# --- on the hosts ---------------------------------------------------------------------------------


def shared_out(
    function: Callable[[slice], tuple[np.ndarray, np.ndarray | None]], n: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """What a function makes of n rows, each process calling it for its share of them.

    It is given the rows in question and returns one array of as many, or two. If it raises in one
    process, all raise.
    """
    count = processes()
    if count == 1:
        return function(slice(0, n))
    share = -(-n // count)
    first = min(jax.process_index() * share, n - 1)
    own: tuple[np.ndarray, np.ndarray | None] | Exception
    with alone():
        try:
            own = function(slice(first, min(first + share, n)))
        except Exception as error:
            own = error
    failed = multihost_utils.process_allgather(np.int32(isinstance(own, Exception)))
    if isinstance(own, Exception):
        raise own
    if failed.any():
        raise RuntimeError(f"process {failed.argmax()} of {count} failed; its own error says why")
    values, more = own
    return _from_all(values, share)[:n], None if more is None else _from_all(more, share)[:n]


def _from_all(array: np.ndarray, share: int) -> np.ndarray:
    """The shares of all processes, one after the other, to the last bit in any precision."""
    missing = [(0, share - len(array))] + [(0, 0)] * (array.ndim - 1)
    whole = np.ascontiguousarray(np.pad(array, missing)).reshape(share, -1).view(np.uint8)
    found = np.ascontiguousarray(multihost_utils.process_allgather(whole, tiled=True))
    return found.view(array.dtype).reshape(-1, *array.shape[1:])


def wait(name: str) -> None:
    """Until all processes that work together are here."""
    if processes() > 1:
        multihost_utils.sync_global_devices(name)
