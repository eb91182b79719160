"""Stacks whose derivative needs little memory: activations are computed twice instead of kept.

The derivative of a stack of K blocks needs what every block computed. `Checkpointed` keeps the
field between blocks only and evaluates each block again; `Reversible` keeps nothing but the end and
finds each block's input by running it the other way. Both are a flowjax `Scan` in all else, with
the same arrays, and a file of one can be read as the other. `bench/images.py memory` measures them.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from flowjax.bijections import AbstractBijection, Scan
from jaxtyping import Array

from msign import checks

T = TypeVar("T")


class _Recomputed(Scan):
    """A stack with its own way through all blocks, either way round."""

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        return self._run(x, condition, inverse=False)

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        return self._run(y, condition, inverse=True)

    @abstractmethod
    def _run(self, x: Array, condition: Array | None, inverse: bool) -> tuple[Array, Array]: ...


class Checkpointed(_Recomputed):
    """Blocks whose activations are computed again, one block at a time, for the derivative.

    The fields between blocks are kept: memory grows with K by one field per block.
    """

    def _run(self, x: Array, condition: Array | None, inverse: bool) -> tuple[Array, Array]:
        arrays, rest = eqx.partition(self.bijection, eqx.is_array)

        def step(carry: tuple[Array, Array], block: Any) -> tuple[tuple[Array, Array], None]:
            x, log_det = carry
            y, more = _apply(eqx.combine(block, rest), x, condition, inverse)
            return (y, log_det + more), None

        start = (x, jnp.zeros((), x.dtype))
        again = jax.checkpoint(step, prevent_cse=False)  # a scan merges no evaluations
        return jax.lax.scan(again, start, arrays, reverse=inverse)[0]


class Reversible(_Recomputed):
    """Blocks whose inputs are found again, for the derivative, by inverting them.

    Nothing between the blocks is kept: memory does not grow with K. Inputs come back with the
    rounding errors of a round trip. Blocks are evaluated once more than by `Checkpointed`.
    The derivative is that of a batch: of `vmap` over fields, as in a training loss.
    """

    def _run(self, x: Array, condition: Array | None, inverse: bool) -> tuple[Array, Array]:
        if condition is not None:
            raise ValueError("condition must be None: a reversible stack has no condition")
        weights, rest = eqx.partition(self.bijection, eqx.is_inexact_array)
        fixed, rest = eqx.partition(rest, eqx.is_array)

        # A derivative rule under vmap would make one weight gradient per field, where one for the
        # whole batch is wanted: the rule is written for batches, and vmap is told to use it.
        @jax.custom_batching.custom_vmap
        def one(weights: Any, fixed: Any, x: Array) -> tuple[Array, Array]:
            y, log_det = _reversible(weights, fixed, x[None], rest, inverse)
            return y[0], log_det[0]

        @one.def_vmap
        def many(size: int, batched: Any, weights: Any, fixed: Any, x: Array) -> Any:
            if any(jax.tree.leaves(batched[:2])):
                raise ValueError("a reversible stack is mapped over fields, not over weights")
            return _reversible(weights, fixed, x, rest, inverse), (True, True)

        return one(weights, fixed, x)


def _reversible(
    weights: Any, fixed: Any, x: Array, rest: Any, inverse: bool
) -> tuple[Array, Array]:
    """A batch through all blocks, with the derivative by inversion."""

    def block(weights: Any, fixed: Any, x: Array, inverse: bool) -> tuple[Array, Array]:
        whole = eqx.combine(weights, fixed, rest)
        return jax.vmap(lambda field: _apply(whole, field, None, inverse))(x)

    @jax.custom_vjp
    def run(weights: Any, fixed: Any, x: Array) -> tuple[Array, Array]:
        def step(carry: tuple[Array, Array], arrays: Any) -> tuple[tuple[Array, Array], None]:
            w, f = arrays
            y, log_det = block(w, f, carry[0], inverse)
            return (y, carry[1] + log_det), None

        start = (x, jnp.zeros(x.shape[:1], x.dtype))
        return jax.lax.scan(step, start, (weights, fixed), reverse=inverse)[0]

    def forward(weights: Any, fixed: Any, x: Array) -> tuple[tuple[Array, Array], Any]:
        y, log_det = run(weights, fixed, x)
        return (y, log_det), (weights, fixed, y)

    def backward(kept: Any, cotangents: tuple[Array, Array]) -> tuple[Any, None, Array]:
        weights, fixed, y = kept
        dy, d_log_det = cotangents

        def step(carry: tuple[Array, Array], arrays: Any) -> tuple[tuple[Array, Array], Any]:
            y, dy = carry
            w, f = arrays
            x = block(w, f, y, not inverse)[0]
            _, pull = jax.vjp(lambda w, x: block(w, f, x, inverse), w, x)
            d_weights, dx = pull((dy, d_log_det))
            return (x, dx), d_weights

        start = (y, dy)
        (_, dx), d_weights = jax.lax.scan(step, start, (weights, fixed), reverse=not inverse)
        return d_weights, None, dx

    run.defvjp(forward, backward)
    return run(weights, fixed, x)


def _apply(
    block: AbstractBijection, x: Array, condition: Array | None, inverse: bool
) -> tuple[Array, Array]:
    move = block.inverse_and_log_det if inverse else block.transform_and_log_det
    return move(x, condition)


RECOMPUTE: dict[str, Callable[[AbstractBijection], Scan]] = {
    "nothing": Scan,
    "blocks": Checkpointed,
    "inversion": Reversible,
}


def recomputing(module: T, what: str) -> T:
    """The module with all its stacks computing again `nothing`, `blocks`, or by `inversion`."""
    kind = RECOMPUTE[checks.one_of("what", what, RECOMPUTE)]

    def changed(node: Any) -> Any:
        return kind(node.bijection) if isinstance(node, Scan) else node

    return jax.tree.map(changed, module, is_leaf=lambda node: isinstance(node, Scan))
