"""The baseline: an exact density, the same blocks, data-dependent start, files."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from helpers import moved, refused, seeded
from msign.bijections import GlowConfig
from msign.images import Glow, load_model
from msign.lattice import Lattice

pytestmark = pytest.mark.usefixtures("quick_compilation")
CONFIG = GlowConfig(blocks=1, hidden=4)


def glow(scales=2):
    return Glow(Lattice((4, 4), 2), scales, CONFIG, 0.3, 0.7)


def test_at_the_start_it_is_white_noise():
    x = jr.normal(jr.key(seeded(0)), (3, 4, 4, 2))
    expected = jax.scipy.stats.norm.logpdf(x, 0.3, 0.7).sum((1, 2, 3))
    np.testing.assert_allclose(glow().log_prob(x), expected, rtol=1e-10)


def test_round_trip_and_density_against_the_jacobian():
    model = moved(glow(), 0.2)
    x = jr.normal(jr.key(seeded(1)), (4, 4, 2))
    z = model.encode(x)
    assert [entry.size for entry in z] == [16, 16]
    np.testing.assert_allclose(model.decode(z), x, atol=1e-10)
    flat = lambda x: jnp.concatenate(model.backward(x.reshape(4, 4, 2))[0])  # noqa: E731
    jacobian = jax.jit(jax.jacobian(flat))(x.ravel())
    normal = jax.scipy.stats.norm.logpdf(jnp.concatenate(z)).sum()
    expected = normal + np.linalg.slogdet(np.asarray(jacobian))[1]
    assert float(model.log_prob(x)) == pytest.approx(float(expected), rel=1e-10)


def test_samples_have_the_density_of_noise_and_cool_down():
    model = glow()
    hot, cold = (model.sample(jr.key(seeded(2)), 500, temperature=t) for t in (1.0, 0.5))
    assert np.std(hot) == pytest.approx(0.7, rel=6 / np.sqrt(2 * hot.size))
    np.testing.assert_allclose(cold - 0.3, 0.5 * (hot - 0.3), atol=1e-12)


def test_start_from_data_gives_every_actnorm_unit_variance():
    fields = 2 + 3 * jr.normal(jr.key(seeded(3)), (200, 4, 4, 2)) * jnp.asarray([1.0, 5.0])
    started = glow().started_from(fields)
    # Nothing follows the last actnorm yet, so that its output is the noise itself.
    z = np.asarray(started.encode(fields)[0])
    assert abs(z.mean()) < 1e-6 and z.std() == pytest.approx(1, rel=1e-4)
    assert float(started.log_prob(fields).mean()) > float(glow().log_prob(fields).mean()) + 100


def test_channels_double_from_level_to_level_and_parameters_are_counted():
    model = Glow(Lattice((8, 8), 3), 2, CONFIG)
    assert [flow.shape for flow in model.flows] == [(4, 4, 12), (2, 2, 24)]
    leaves = jax.tree.leaves((model.flows, model.splits))
    floats = [a for a in leaves if eqx.is_inexact_array(a)]
    assert sum(model.parameters()) == sum(a.size for a in floats)
    assert model.parameters()[0] > model.parameters()[1] - model.splits[0].weight.size


def test_files(tmp_path):
    model = moved(glow(), 0.2)
    model.save(tmp_path / "glow.msign")
    again = load_model(tmp_path / "glow.msign")
    x = jr.normal(jr.key(seeded(1)), (2, 4, 4, 2))
    np.testing.assert_array_equal(again.log_prob(x), model.log_prob(x))


def test_bad_arguments():
    with refused("scales", "at most", 4):
        glow(scales=3)
    with refused("scales", "at most 2", "(12, 12)", "halves", 3):
        Glow(Lattice((12, 12), 2), 3, CONFIG)
    with refused("x", "4, 4, 2", "(2, 2, 2)"):
        glow().log_prob(jnp.zeros((2, 2, 2)))
    with refused("scale", 2):
        glow().log_prob(jnp.zeros((4, 4, 2)), 1)
    with refused("z_1", 16):
        glow().decode([jnp.zeros((1, 3)), jnp.zeros((1, 16))])
