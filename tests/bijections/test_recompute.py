"""Stacks that compute activations again: the same values and derivatives, less memory."""

import functools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from helpers import identical, join, moved, refused, seeded, split_trainable
from msign.bijections import glow_stack
from msign.bijections.recompute import Checkpointed, Reversible, recomputing

pytestmark = pytest.mark.usefixtures("quick_compilation")
STACK = moved(glow_stack(jr.key(seeded(0)), (4, 4, 4), 3, 5), 0.1)
X = jr.normal(jr.key(seeded(1)), (5, 4, 4, 4))


@functools.cache
def losses_and_gradients(what):
    """Of a loss of the way there and one of the way back."""
    trainable, rest = split_trainable(recomputing(STACK, what))

    @jax.jit
    def run(trainable, x):
        def loss(trainable, x, inverse):
            flow = join(trainable, rest)
            move = flow.inverse_and_log_det if inverse else flow.transform_and_log_det
            y, log_det = jax.vmap(move)(x)
            return jnp.sum(jnp.sin(y)) + jnp.sum(log_det**2)

        both = jax.value_and_grad(loss, (0, 1))
        return both(trainable, x, False), both(trainable, x, True)

    return jax.tree.leaves(run(trainable, X))


@pytest.mark.parametrize("what", ["blocks", "inversion"])
def test_values_and_derivatives_are_those_of_the_plain_stack(what):
    assert type(recomputing(STACK, what)) is {"blocks": Checkpointed, "inversion": Reversible}[what]
    for a, b in zip(losses_and_gradients("nothing"), losses_and_gradients(what), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-9 * np.abs(a).max())


def temporaries(blocks, what):
    """Bytes that a compiled derivative needs for what is neither argument nor result."""
    stack = recomputing(glow_stack(jr.key(0), (8, 8, 4), blocks, 16), what)
    trainable, rest = split_trainable(stack)

    def loss(trainable, x):
        z, log_det = jax.vmap(join(trainable, rest).inverse_and_log_det)(x)
        return jnp.sum(z**2) - jnp.sum(log_det)

    x = jnp.zeros((16, 8, 8, 4))
    return (
        jax.jit(jax.grad(loss)).lower(trainable, x).compile().memory_analysis().temp_size_in_bytes
    )


def test_memory_grows_with_the_blocks_by_a_field_or_not_at_all():
    field = 16 * 8 * 8 * 4 * 8
    few, many = temporaries(4, "inversion"), temporaries(12, "inversion")
    assert many - few < field  # what the blocks' own weights need
    assert temporaries(12, "blocks") - few < 2 * 12 * field
    assert temporaries(12, "nothing") - few > 8 * 12 * field


def test_a_network_is_changed_throughout_and_back():
    pair = {"a": STACK, "b": (STACK, 1.0)}
    changed = recomputing(pair, "inversion")
    assert isinstance(changed["a"], Reversible) and isinstance(changed["b"][0], Reversible)
    assert identical(recomputing(changed, "nothing"), pair)


def test_bad_arguments():
    with refused("what", "blocks", "everything"):
        recomputing(STACK, "everything")
    with refused("condition"):
        recomputing(STACK, "inversion").transform(X[0], jnp.zeros(1))
