"""Couplings of a few variables with small dense conditioners: the blocks of informed flows."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import paramax
from flowjax.bijections import AbstractBijection
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from msign.bijections.channels import bounded
from msign.noise import generator, on_device

MAX_LOG_SCALE = 2.0  # of one affine coupling: factors up to 7


class Conditioner(eqx.Module):
    """Two hidden layers of tanh from variables to the numbers of a coupling, zero at the start.

    Args:
        key: Of the initial weights.
        inputs: Number of variables; 0: the numbers depend on nothing.
        hidden: Width of the hidden layers.
        outputs: How many numbers.
    """

    first: Array | None
    first_bias: Array
    middle: Array
    middle_bias: Array
    last: Array
    last_bias: Array

    def __init__(self, key: PRNGKeyArray, inputs: int, hidden: int, outputs: int):
        rng = generator(key)
        first = rng.normal(size=(hidden, inputs)) / np.sqrt(max(inputs, 1))
        self.first = on_device(first) if inputs else None
        self.first_bias = on_device(np.zeros(hidden))
        self.middle = on_device(rng.normal(size=(hidden, hidden)) / np.sqrt(hidden))
        self.middle_bias = on_device(np.zeros(hidden))
        self.last = on_device(np.zeros((outputs, hidden)))
        self.last_bias = on_device(np.zeros(outputs))

    def __call__(self, x: Array) -> Array:
        h = self.first_bias if self.first is None else self.first @ x + self.first_bias
        h = jnp.tanh(self.middle @ jnp.tanh(h) + self.middle_bias)
        return self.last @ h + self.last_bias


class DenseCoupling(AbstractBijection):
    """y = exp(s) x + t on some variables, s and t functions of the others; identity at the start.

    Args:
        key: Of the conditioner's initial weights.
        moved: Which variables move, a boolean for each.
        candidates: Room for moved variables, at least as many as `moved` has.
        hidden: Width of the conditioner.
    """

    shape: tuple[int, ...]
    cond_shape: None
    moved: Array
    picked: Array
    conditioner: Conditioner

    def __init__(self, key: PRNGKeyArray, moved: ArrayLike, candidates: int, hidden: int):
        moves = np.asarray(moved, bool)
        self.moved = jax.device_put(moves)
        self.picked = _picking(moves, candidates)
        self.shape = moves.shape
        self.cond_shape = None
        self.conditioner = Conditioner(key, len(moves), hidden, 2 * candidates)

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        log_scale, shift = self._numbers(x)
        return x * jnp.exp(log_scale) + shift, log_scale.sum()

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        log_scale, shift = self._numbers(y)
        return (y - shift) * jnp.exp(-log_scale), -log_scale.sum()

    def _numbers(self, x: Array) -> tuple[Array, Array]:
        picked = paramax.unwrap(self.picked)
        raw = self.conditioner(jnp.where(self.moved, 0.0, x)).reshape(2, -1)
        log_scale, shift = _product(raw, picked)
        return bounded(log_scale, MAX_LOG_SCALE), shift


def widened(fresh: DenseCoupling, coupling: DenseCoupling) -> DenseCoupling:
    """A stack of couplings that do the same to their variables, and nothing to more.

    `fresh` are couplings of all variables; they say which of the new ones will be moved.
    """
    old, rank = coupling.moved.shape[-1], fresh.moved.shape[-1]
    net = coupling.conditioner
    moved = np.array(fresh.moved)
    moved[:, :old] = coupling.moved
    room = int(moved.sum(1).max())
    picked = jax.tree.map(lambda *a: jnp.stack(a), *(_picking(each, room) for each in moved))
    blocks, more = len(moved), room - net.last_bias.shape[1] // 2

    def of_each_variable(a: Array) -> Array:
        """Log-scales and shifts, with zeros for those of new variables, which come behind."""
        pairs = np.asarray(a).reshape(blocks, 2, -1, *a.shape[2:])
        pairs = np.pad(pairs, [(0, 0), (0, 0), (0, more), *[(0, 0)] * (a.ndim - 2)])
        return on_device(pairs.reshape(blocks, 2 * room, *a.shape[2:]))

    assert net.first is not None
    first = on_device(np.pad(np.asarray(net.first), ((0, 0), (0, 0), (0, rank - old))))
    last, last_bias = of_each_variable(net.last), of_each_variable(net.last_bias)
    kept = (first, net.first_bias, net.middle, net.middle_bias, last, last_bias)
    return eqx.tree_at(
        lambda c: (c.moved, c.picked, *jax.tree.leaves(c.conditioner)),
        fresh,
        (jax.device_put(moved), picked, *kept),
    )


def _picking(moved: np.ndarray, candidates: int) -> Array:
    """Ones and zeros `(candidates, variables)` that pick the moved variables by a product.

    So couplings that move different variables have the same structure, and stack into one `Scan`.
    """
    order = np.argsort(~moved, kind="stable")[:candidates]
    return paramax.non_trainable(on_device(np.eye(len(moved))[order] * moved))


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
