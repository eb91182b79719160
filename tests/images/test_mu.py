"""The Haar prior of a data set."""

import equinox as eqx
import jax.random as jr
import numpy as np
import pytest

from helpers import refused, seeded
from msign.images import Pixels, StoredImages, estimate_moments, mu, prior_of
from msign.lattice import Lattice
from msign.priors import ScalarPrior
from msign.priors.scalar import estimate_mu

pytestmark = pytest.mark.usefixtures("quick_compilation")


def natural(n, side=8, channels=2):
    """Smooth images of bytes, with details of 15 levels."""
    rng = np.random.default_rng(seeded(5))
    coarse = rng.normal(size=(n, side // 2, side // 2, channels)).repeat(2, 1).repeat(2, 2)
    fine = rng.normal(size=(n, side, side, channels))
    return np.clip(128 + 40 * coarse + 15 * fine, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("per_band", [False, True])
def test_chunks_give_the_estimate_of_all_images_at_once(per_band, monkeypatch):
    monkeypatch.setattr(mu, "CHUNK_BYTES", 4 * 128 * 7)
    images = natural(64)
    found = estimate_moments(StoredImages([images]), Pixels(), 3, per_band)
    fields = (images + 0.5) / 256 - 0.5
    expected = estimate_mu(fields, Lattice((8, 8), 2), 3, per_band)
    # Dequantisation, of standard deviation 0.29 levels, is new noise in the 1024 or more details
    # of a band: it moves their size by 0.29 / 15 / sqrt(1024), and biases it by less.
    for ours, theirs in zip(found.mu, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=6 * 0.29 / 15 / np.sqrt(1024))
    coarse = fields.reshape(64, 2, 4, 2, 4, 2).mean((2, 4))
    assert found.mean == pytest.approx(coarse.mean(), abs=1e-3)
    assert found.std == pytest.approx(coarse.std(), rel=1e-2)


def test_fields_of_a_prior_give_its_parameters_back():
    prior = ScalarPrior((8, 8), (0.12, 0.06), 0.1, 0.02, channels=1)
    n = 4000
    fields = np.asarray(eqx.filter_jit(lambda p: p.sample(jr.key(seeded(0)), n))(prior))
    images = StoredImages([np.floor((fields + 0.5) * 256).clip(0, 255).astype(np.uint8)])
    found = estimate_moments(images, Pixels(), 3)
    again = prior_of(images.shape, found)
    # The standard deviation of k values is known to 1 / sqrt(2 k); grey levels add a thousandth.
    for ours, theirs, details in zip(again.mu, prior.mu, (12 * n, 48 * n), strict=True):
        rel = 6 / np.sqrt(2 * details) + 2e-3
        assert float(ours) == pytest.approx(float(theirs), rel=rel)
    assert found.std == pytest.approx(0.1, rel=6 / np.sqrt(2 * 4 * n) + 2e-3)
    assert found.mean == pytest.approx(0.02, abs=6 * 0.1 / np.sqrt(4 * n) + 1e-3)


def test_as_many_images_as_asked_for():
    images = StoredImages([natural(50)])
    assert estimate_moments(images, Pixels(), 2, count=20).images == 20
    assert estimate_moments(images, Pixels(), 2).images == 50


def test_bad_arguments():
    images = StoredImages([natural(10)])
    with refused("scales", "at most 4", 5):
        estimate_moments(images, Pixels(), 5)
    with refused("count", 0):
        estimate_moments(images, Pixels(), 2, count=0)
