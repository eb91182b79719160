"""Every bijection of the table keeps the contract of docs/architecture.md."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance import BIJECTIONS
from helpers import in_float32, join, moved, split_trainable
from msign import archive

pytestmark = pytest.mark.usefixtures("quick_compilation")


def point(shape, seed=1):
    """Inside (0, 1), where all bijections and their inverses are defined."""
    return jnp.asarray(np.random.default_rng(seed).uniform(0.05, 0.5, shape))


@eqx.filter_jit
def examined(bijection, x, w):
    """Value, inverse, Jacobian and gradient of sum(w * y) + log_det, compiled at once."""
    trainable, rest = split_trainable(bijection)
    (y, log_det), pull = jax.vjp(
        lambda trainable, x: join(trainable, rest).transform_and_log_det(x), trainable, x
    )
    back, inverse_log_det = bijection.inverse_and_log_det(y)
    rows = jnp.eye(x.size).reshape(x.size, *x.shape)
    cotangents = jnp.concatenate([rows, w[None]]), jnp.eye(x.size + 1)[-1]
    gradients, jacobian = jax.vmap(pull)(cotangents)
    jacobian = jacobian[:-1].reshape(x.size, x.size)
    return y, log_det, back, inverse_log_det, jacobian, jax.tree.map(lambda g: g[-1], gradients)


@pytest.mark.parametrize("name", BIJECTIONS)
def test_contract(name, tmp_path):
    start = BIJECTIONS[name].make()
    bijection = moved(start)
    x, w = point(start.shape), point(start.shape, 2)
    y, log_det, back, inverse_log_det, jacobian, gradient = examined(bijection, x, w)

    # It round-trips.
    np.testing.assert_allclose(back, x, rtol=0, atol=1e-10)
    np.testing.assert_allclose(inverse_log_det, -log_det, rtol=0, atol=1e-10)

    # Its log-determinant is that of its Jacobian.
    assert log_det.shape == ()
    expected = np.linalg.slogdet(np.asarray(jacobian))[1]
    np.testing.assert_allclose(log_det, expected, rtol=0, atol=1e-8)

    # Every parameter receives a gradient, if there are any.
    leaves = jax.tree_util.tree_leaves_with_path(gradient)
    assert bool(leaves) == BIJECTIONS[name].trainable
    for path, leaf in leaves:
        touched = np.all(leaf != 0) or (BIJECTIONS[name].masked and np.any(leaf != 0))
        assert np.all(np.isfinite(leaf)) and touched, jax.tree_util.keystr(path)

    # It starts as the identity, if it promises to.
    if BIJECTIONS[name].identity:
        y, log_det, *_ = examined(start, x, w)
        np.testing.assert_allclose(y, x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(log_det, 0, rtol=0, atol=1e-12)

    # It is read back from a file bit for bit.
    archive.save(tmp_path / "it", bijection, {})
    assert eqx.tree_equal(archive.load(tmp_path / "it", like=start), bijection)


@pytest.mark.parametrize("name", BIJECTIONS)
def test_round_trip_in_float32(name):
    bijection = in_float32(moved(BIJECTIONS[name].make()))
    x = point(bijection.shape).astype(jnp.float32)
    y, back = eqx.filter_jit(lambda b, x: (b.transform(x), b.inverse(b.transform(x))))(bijection, x)
    assert y.dtype == back.dtype == jnp.float32
    np.testing.assert_allclose(back, x, rtol=0, atol=1e-4)
