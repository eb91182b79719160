"""The convolution and its derivative are those of XLA's own."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from msign.bijections.conv import convolve

pytestmark = pytest.mark.usefixtures("quick_compilation")

SPATIAL = [(1,), (2,), (7,), (1, 1), (2, 1), (2, 2), (5, 3), (1, 2, 1), (4, 3, 2)]
CHANNELS = [(2, 5), (3, 3), (5, 2)]


def plain(x, weight):
    axes = "DHW"[4 - x.ndim :]
    numbers = (f"N{axes}C", f"{axes}IO", f"N{axes}C")
    strides = (1,) * len(axes)
    return jax.lax.conv_general_dilated(
        x[None], weight, strides, "SAME", dimension_numbers=numbers
    )[0]


def draw(spatial, kernel, c_in, c_out, batch=()):
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (*batch, *spatial, c_in))
    weight = jax.random.normal(keys[1], (*kernel, c_in, c_out))
    return x, weight, jax.random.normal(keys[2], (*batch, *spatial, c_out))


def assert_close(ours, theirs):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("side", [1, 3, 5])
@pytest.mark.parametrize(
    ("spatial", "channels"), [*zip(SPATIAL, itertools.cycle(CHANNELS), strict=False)], ids=str
)
def test_equals_plain_convolution(spatial, channels, side):
    def value_and_vjp(convolution, x, weight, dy):
        y, vjp = jax.vjp(convolution, x, weight)
        return y, vjp(dy)

    both = jax.jit(lambda *a: [value_and_vjp(f, *a) for f in (convolve, plain)])
    assert_close(*both(*draw(spatial, (side,) * len(spatial), *channels)))


@pytest.mark.parametrize("channels", CHANNELS, ids=str)
@pytest.mark.parametrize("kernel", [(1, 3), (3, 1), (5, 3)], ids=str)
def test_kernel_sides_may_differ(kernel, channels):
    x, weight, _ = draw((4, 3), kernel, *channels)
    assert_close(convolve(x, weight), plain(x, weight))


@pytest.mark.parametrize("spatial", [(3,), (4, 3), (2, 3, 2)], ids=str)
def test_derivatives_in_a_scan_of_a_batch(spatial):
    kernel = (3,) * len(spatial)
    x, up, _ = draw(spatial, kernel, 2, 6, batch=(5,))
    _, down, _ = draw(spatial, kernel, 6, 2)
    weights = (jnp.stack([up, -up, 0.5 * up]) / 5, jnp.stack([down, 0.3 * down, down]) / 5)

    def gradient(convolution):
        def block(x, w):
            return x + convolution(jnp.tanh(convolution(x, w[0])), w[1]), None

        def loss(x, weights):
            y = jax.vmap(lambda x: jax.lax.scan(block, x, weights)[0])(x)
            return jnp.sum(y**2)

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(x, weights)

    assert_close(gradient(convolve), gradient(plain))


@pytest.mark.parametrize("channels", CHANNELS, ids=str)
def test_gradient_of_each_field(channels):
    x, weight, dy = draw((4, 3), (3, 3), *channels, batch=(5,))

    def gradients(convolution):
        def loss(x, weight, dy):
            return jnp.sum(convolution(x, weight) * dy)

        return jax.jit(jax.vmap(jax.grad(loss, argnums=(0, 1)), (0, None, 0)))(x, weight, dy)

    assert_close(gradients(convolve), gradients(plain))


@pytest.mark.parametrize("channels", CHANNELS, ids=str)
def test_single_precision(channels):
    x, weight, _ = (a.astype(jnp.float32) for a in draw((4, 3), (3, 3), *channels))
    y = convolve(x, weight)
    assert y.dtype == jnp.float32
    np.testing.assert_allclose(y, plain(x, weight), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        ((4, 4, 2), (2, 3, 2, 5), r"weight.*odd.*\(2, 3\)"),
        ((4, 4, 2), (3, 3, 3, 5), r"weight.*2 channels.*3"),
        ((4, 4, 2), (3, 2, 5), r"weight.*4 axes.*\(3, 2, 5\)"),
        ((2,), (2, 5), r"x must.*\(2,\)"),
    ],
)
def test_errors_name_argument_and_value(x, weight, message):
    with pytest.raises(ValueError, match=message):
        convolve(jnp.zeros(x), jnp.zeros(weight))
