"""Grey levels, real numbers and bits: every constant."""

import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from helpers import refused, seeded
from msign.images import Pixels

OUTPUTS = ("plain", "sigmoid")
RNG = np.random.default_rng(seeded(0))
pytestmark = pytest.mark.usefixtures("quick_compilation")


def logistic_log_density(v):
    """Of a field whose sigmoid is uniform on (0, 1), value by value."""
    return jax.nn.log_sigmoid(v) + jax.nn.log_sigmoid(-v)


@pytest.mark.parametrize("levels", [2, 17, 32, 256])
def test_a_uniform_model_has_log2_levels_bits(levels):
    image = jnp.asarray(RNG.integers(0, levels, (4, 4, 3)))
    noise = jnp.asarray(RNG.uniform(size=image.shape))
    plain = Pixels(levels, "plain")
    _, log_det = plain.field(image, noise)
    assert plain.bits_per_dim(0.0, log_det, image.size) == pytest.approx(math.log2(levels), 1e-14)
    sigmoid = Pixels(levels, "sigmoid")
    v, log_det = sigmoid.field(image, noise)
    bits = sigmoid.bits_per_dim(logistic_log_density(v).sum(), log_det, image.size)
    # The model spends 2 margin of its probability outside of the grey levels.
    expected = math.log2(levels) - math.log2(1 - 2 * sigmoid.margin)
    assert bits == pytest.approx(expected, abs=1e-9)


def test_a_known_discrete_distribution_reaches_its_entropy_and_no_other_model_does():
    p = np.array([0.5, 0.25, 0.125, 0.125])
    entropy = -(p * np.log2(p)).sum()
    images = jnp.asarray(np.repeat(np.arange(4), (800 * p).astype(int)).reshape(-1, 1, 1, 1))
    noise = jnp.asarray(RNG.uniform(size=images.shape))
    pixels = Pixels(4)
    v, log_det = jax.vmap(pixels.field)(images, noise)

    def bits(q):
        """The model with density q_k * levels on the k-th bin."""
        log_p = jnp.log(jnp.asarray(q) * 4)[jnp.floor((v + 0.5) * 4).astype(int)].sum((1, 2, 3))
        return float(pixels.bits_per_dim(log_p, log_det, 1).mean())

    q = np.array([0.4, 0.3, 0.2, 0.1])
    assert bits(p) == pytest.approx(entropy, 1e-12)
    assert bits([0.25] * 4) == pytest.approx(2.0, 1e-12)
    assert bits(q) == pytest.approx(entropy + (p * np.log2(p / q)).sum(), 1e-12)
    # A smooth density cannot beat it: log-densities are averaged over the bin.
    smooth = jax.scipy.stats.norm.logpdf(v, v.mean(), v.std()).sum((1, 2, 3))
    assert float(pixels.bits_per_dim(smooth, log_det, 1).mean()) > entropy


@pytest.mark.parametrize("output", OUTPUTS)
def test_log_determinant_is_that_of_the_map(output):
    pixels = Pixels(256, output)
    image = jnp.asarray([[[0], [255]], [[17], [200]]])
    noise = jnp.asarray(RNG.uniform(0.1, 0.9, image.shape))
    _, log_det = pixels.field(image, noise)
    jacobian = jax.jacobian(lambda u: pixels.field(image, u)[0].ravel())(noise).reshape(4, 4)
    assert log_det == pytest.approx(np.linalg.slogdet(jacobian)[1], rel=1e-10)


@pytest.mark.parametrize("output", OUTPUTS)
def test_every_grey_level_comes_back(output):
    pixels = Pixels(256, output)
    image = jnp.arange(256, dtype=jnp.uint8).reshape(16, 16, 1)
    for u in (0.0, 0.5, 0.999):
        noise = jnp.full(image.shape, u)
        v, _ = pixels.field(image, noise)
        np.testing.assert_allclose(pixels.grey(v), image + noise, atol=1e-9)
        if u:
            np.testing.assert_array_equal(pixels.image(v), image)


def test_what_lies_outside_is_clipped():
    np.testing.assert_array_equal(Pixels().image([-9.0, -0.501, 0.0, 9.0]), [0, 0, 128, 255])


def test_fewer_bits_merge_neighbouring_levels():
    pixels = Pixels.with_bits(256, 5)
    images = jnp.arange(256, dtype=jnp.uint8)
    np.testing.assert_array_equal(pixels.reduce(images), np.arange(256) // 8)
    np.testing.assert_array_equal(pixels.shown([0, 31]), [0, 255])
    assert Pixels.with_bits(17, None).levels == 17


def test_dequantised_values_fill_the_unit_interval():
    images = jnp.asarray(RNG.integers(0, 256, (8, 8, 1)))
    v, _ = Pixels().field(images, jr.uniform(jr.key(0), images.shape))
    assert float(v.min()) >= -0.5 and float(v.max()) < 0.5


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: Pixels(1), ("levels", "from 2 to 256", 1)),
        (lambda: Pixels(output="tanh"), ("output", "plain", "tanh")),
        (lambda: Pixels(margin=0.5), ("margin", 0.5)),
        (lambda: Pixels(32, source_levels=100), ("source_levels", 32, 100)),
        (lambda: Pixels.with_bits(17, 4), ("bits", 17, 4)),
        (lambda: Pixels.with_bits(256, 9), ("bits", 9)),
    ],
)
def test_bad_arguments(make, parts):
    with refused(*parts):
        make()
