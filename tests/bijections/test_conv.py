"""The convolution and its derivative are those of XLA's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import seeded
from msign.bijections.conv import convolve

pytestmark = pytest.mark.usefixtures("quick_compilation")

MORE_OUT, AS_MANY, FEWER_OUT = (2, 5), (3, 3), (5, 2)
CASES = [  # lattice, kernel, channels
    ((1,), (3,), MORE_OUT),
    ((2,), (5,), FEWER_OUT),
    ((7,), (1,), FEWER_OUT),
    ((7,), (3,), AS_MANY),
    ((2, 1), (3, 5), MORE_OUT),
    ((5, 3), (3, 3), FEWER_OUT),
    ((4, 3), (3, 1), AS_MANY),
    ((4, 3), (5, 3), MORE_OUT),
    ((1, 2, 1), (3, 3, 3), FEWER_OUT),
    ((4, 3, 2), (3, 3, 3), MORE_OUT),
    ((4, 3, 2), (5, 1, 3), FEWER_OUT),
]


def plain(x, weight):
    axes = "DHW"[4 - x.ndim :]
    numbers = (f"N{axes}C", f"{axes}IO", f"N{axes}C")
    strides = (1,) * len(axes)
    return jax.lax.conv_general_dilated(
        x[None], weight, strides, "SAME", dimension_numbers=numbers
    )[0]


def draw(spatial, kernel, c_in, c_out, batch=()):
    rng = np.random.default_rng(seeded(0))
    shapes = ((*batch, *spatial, c_in), (*kernel, c_in, c_out), (*batch, *spatial, c_out))
    return [rng.normal(size=shape) for shape in shapes]


def assert_close(ours, theirs):
    """Up to rounding of sums of a few hundred products."""
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12 * np.abs(b).max())


@pytest.mark.parametrize(("spatial", "kernel", "channels"), CASES, ids=str)
def test_equals_plain_convolution(spatial, kernel, channels):
    def value_and_vjp(convolution, x, weight, dy):
        y, vjp = jax.vjp(convolution, x, weight)
        return y, vjp(dy)

    both = jax.jit(lambda *a: [value_and_vjp(f, *a) for f in (convolve, plain)])
    assert_close(*both(*draw(spatial, kernel, *channels)))


def test_derivatives_in_a_scan_of_a_batch():
    x, up, _ = draw((4, 3), (3, 3), 2, 6, batch=(5,))
    _, down, _ = draw((4, 3), (3, 3), 6, 2)
    weights = (np.stack([up, -up, 0.5 * up]) / 5, np.stack([down, 0.3 * down, down]) / 5)

    def gradient(convolution):
        def block(x, w):
            return x + convolution(jnp.tanh(convolution(x, w[0])), w[1]), None

        def loss(x, weights):
            y = jax.vmap(lambda x: jax.lax.scan(block, x, weights)[0])(x)
            return jnp.sum(y**2)

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(x, weights)

    assert_close(gradient(convolve), gradient(plain))


@pytest.mark.parametrize("channels", [MORE_OUT, FEWER_OUT], ids=str)
def test_gradient_of_each_field(channels):
    x, weight, dy = draw((4, 3), (3, 3), *channels, batch=(5,))

    def gradients(convolution):
        def loss(x, weight, dy):
            return jnp.sum(convolution(x, weight) * dy)

        return jax.jit(jax.vmap(jax.grad(loss, argnums=(0, 1)), (0, None, 0)))(x, weight, dy)

    assert_close(gradients(convolve), gradients(plain))


@pytest.mark.parametrize("channels", [MORE_OUT, FEWER_OUT], ids=str)
def test_single_precision(channels):
    """Each of the 9 c_in products and sums of a value is rounded once."""
    x, weight, _ = draw((4, 3), (3, 3), *channels)
    x, weight = x.astype(np.float32), weight.astype(np.float32)
    y = jax.jit(convolve)(x, weight)
    assert y.dtype == jnp.float32
    exact = plain(x.astype(float), weight.astype(float))
    size = plain(abs(x).astype(float), abs(weight).astype(float))
    rounding = np.finfo(np.float32).eps / 2
    assert np.all(np.abs(y - exact) <= 2 * 9 * channels[0] * rounding * size)


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
