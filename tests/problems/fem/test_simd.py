"""Lane vectors: arithmetic of several fields at once."""

import numba
import numpy as np

from msign.problems.fem.simd import LANES, aligned, exp, fill, fma, load, sqrt, store


def test_arithmetic_is_that_of_each_lane():
    @numba.njit
    def apply(values):
        address = values.ctypes.data
        a, b = load(address, 0), load(address, 1)
        store(address, 2, fma(a, b, fill(2.0)) - sqrt(b) / a)

    values = aligned(3)
    values[:2] = np.random.default_rng(1).uniform(1, 2, (2, LANES))
    apply(values)
    a, b = values[:2]
    np.testing.assert_allclose(values[2], a * b + 2 - np.sqrt(b) / a, rtol=1e-15)


def test_memory_begins_on_a_cache_line():
    for length in (1, 3, 1000):
        values = aligned(length, 2)
        assert values.shape == (length, 2, LANES)
        assert values.ctypes.data % 64 == 0
        assert not values.any()


def test_exponential_is_accurate():
    @numba.njit
    def apply(values):
        for k in range(len(values)):
            store(values.ctypes.data, k, exp(load(values.ctypes.data, k)))

    values = aligned(2000)
    x = np.random.default_rng(0).uniform(-300, 300, (2000, LANES))
    x[:5, 0] = [0.0, 1.0, -1.0, 300.0, -300.0]
    values[:] = x
    apply(values)
    np.testing.assert_allclose(values, np.exp(x), rtol=5e-16)
    assert values[0, 0] == 1.0
