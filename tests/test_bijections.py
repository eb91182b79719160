"""Every bijection of the table keeps the contract of docs/architecture.md."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conformance import BIJECTIONS, KEY, laplace
from helpers import identical, in_float32, join, moved, seeded, split_trainable
from msign import GlowConfig, Lattice, archive
from msign.bijections import glow_flow, squeeze_window

pytestmark = pytest.mark.usefixtures("quick_compilation")


def point(shape, seed=1):
    """Inside (0, 1), where all bijections and their inverses are defined."""
    return jnp.asarray(np.random.default_rng(seeded(seed)).uniform(0.05, 0.5, shape))


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


@eqx.filter_jit
def there_and_back(bijection, x):
    y = bijection.transform(x)
    return y, bijection.inverse(y)


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
        g = np.asarray(leaf)
        touched = np.all(g != 0) or (BIJECTIONS[name].masked and np.any(g != 0))
        assert np.all(np.isfinite(g)) and touched, jax.tree_util.keystr(path)

    # It starts as the identity, if it promises to.
    if BIJECTIONS[name].identity:
        y, log_det, *_ = examined(start, x, w)
        np.testing.assert_allclose(y, x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(log_det, 0, rtol=0, atol=1e-12)

    # It is read back from a file bit for bit.
    archive.save(tmp_path / "it", bijection, {})
    assert identical(archive.load(tmp_path / "it", like=start), bijection)

    # In single precision it loses roundings only: a few dozen, each as large as the map's
    # condition number makes it.
    y, back = there_and_back(in_float32(bijection), jnp.asarray(np.asarray(x, np.float32)))
    assert y.dtype == back.dtype == jnp.float32
    lost = 100 * np.finfo(np.float32).eps * np.linalg.cond(np.asarray(jacobian))
    np.testing.assert_allclose(back, x, rtol=0, atol=lost)


@pytest.mark.parametrize(
    ("shape", "window"),
    [((8, 4), (2, 2)), ((9, 4), (1, 2)), ((15, 9), (15, 9)), ((45, 25), (3, 5)), ((37,), (37,))],
    ids=str,
)
def test_windows_of_a_flow(shape, window):
    """Pairs of cells; a lattice of odd sides as one cell, or by the windows of pooling if large."""
    assert squeeze_window(Lattice(shape)) == window


def test_large_lattices_of_odd_sides_have_flows():
    prior = laplace((45, 25))
    flow = moved(glow_flow(KEY, prior, GlowConfig(2, 4)))
    assert flow.inner.shape == (15, 5, 15)
    x = point(prior.lattice.field_shape)
    y, again = there_and_back(flow, x)
    np.testing.assert_allclose(again, x, rtol=0, atol=1e-10)
    assert np.abs(y - x).max() > 1e-3
