"""Encoding and decoding in double precision, with weights and arrays in single."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from helpers import in_float32, moved
from msign.images import Moments, Setting, build_model, precise

MOMENTS = Moments(0.0, 1.0, (np.asarray(1.0),), 1)


@pytest.fixture(scope="module", params=["msign", "glow"])
def model(request):
    """A model whose layers stretch, as those of a trained one do."""
    setting = Setting().changed(model=request.param, blocks=4, hidden=8)
    return in_float32(moved(build_model(setting.architecture, (8, 8, 1), MOMENTS, jr.key(0)), 0.1))


def test_round_trips_lose_one_rounding_only(model):
    v = jr.normal(jr.key(1), (20, 8, 8, 1), jnp.float32)
    z = precise.encode(model, v)
    again = precise.decode(model, z)
    assert again.dtype == np.float32 and all(entry.dtype == np.float32 for entry in z)
    plain = np.abs(np.asarray(model.decode(model.encode(v)) - v)).max()
    assert np.abs(again - v).max() < 0.3 * plain


def test_it_does_not_ask_how_the_session_is_set(model):
    v = np.asarray(jr.normal(jr.key(1), (3, 8, 8, 1), jnp.float32))
    expected = precise.encode(model, v)
    with jax.enable_x64(False):
        z = precise.encode(model, v)
        again = precise.decode(model, z)
        assert jnp.asarray(1.0).dtype == jnp.float32
    for found, wanted in zip(z, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(again, v, atol=1e-4)
