"""Encoding and decoding in double precision, with weights and arrays in single."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from helpers import in_float32, moved, seeded
from msign.images import Moments, Setting, build_model, precise

pytestmark = pytest.mark.usefixtures("quick_compilation")
MOMENTS = Moments(0.0, 1.0, (np.asarray(1.0),), 1)


def in_float64(tree):
    return jax.tree.map(lambda a: a.astype(jnp.float64) if eqx.is_inexact_array(a) else a, tree)


def assert_rounded_once(found, exact):
    """To nearest in single precision, of what double precision gives to 1e-12."""
    assert found.dtype == np.float32 and exact.dtype == np.float64
    unit = np.finfo(np.float32).eps / 2
    assert np.all(np.abs(found - exact) <= 1.001 * unit * np.abs(exact) + 1e-12)


@pytest.mark.parametrize("kind", ["msign", "glow"])
def test_only_the_result_is_rounded_however_the_session_is_set(kind):
    setting = Setting().changed(model=kind, blocks=2, hidden=4)
    model = build_model(setting.architecture, (8, 8, 1), MOMENTS, jr.key(0))
    model = in_float32(moved(model, 0.1))
    double = in_float64(model)
    v = np.asarray(jr.normal(jr.key(seeded(1)), (3, 8, 8, 1), jnp.float32))
    exact = double.encode(v.astype(float))
    for session_in_double in (True, False):
        with jax.enable_x64(session_in_double):
            z = precise.encode(model, v)
            again = precise.decode(model, z)
            assert jax.config.jax_enable_x64 == session_in_double
        for found, wanted in zip(z, exact, strict=True):
            assert_rounded_once(found, np.asarray(wanted))
        assert_rounded_once(again, np.asarray(double.decode(in_float64([*map(jnp.asarray, z)]))))
