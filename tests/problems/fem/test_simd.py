"""Lane vectors: arithmetic of several fields at once."""

from decimal import Decimal, localcontext

import numba
import numpy as np

from helpers import seeded
from msign.problems.fem.simd import LANES, aligned, exp, fill, fma, load, sqrt, store


def test_arithmetic_is_that_of_each_lane():
    @numba.njit
    def apply(values):
        address = values.ctypes.data
        a, b = load(address, 0), load(address, 1)
        store(address, 2, fma(a, b, fill(2.0)) - sqrt(b) / a)

    values = aligned(3)
    values[:2] = np.random.default_rng(seeded(1)).uniform(1, 2, (2, LANES))
    apply(values)
    a, b = values[:2]
    # Five roundings here and four or five there, of numbers below 8; the result is above 1.
    np.testing.assert_allclose(values[2], a * b + 2 - np.sqrt(b) / a, rtol=10 * 8 * 2.0**-53)


def test_memory_begins_on_a_cache_line():
    for length in (1, 3, 1000):
        values = aligned(length, 2)
        assert values.shape == (length, 2, LANES)
        assert values.ctypes.data % 64 == 0
        assert not values.any()


def test_exponential_is_accurate():
    """To two units in the last place, against 30 decimal digits.

    The reduced argument (at most 0.35) and the series' two last operations (a product of at most
    0.5, a sum of at most 1.42) are rounded, and the result before scaling is at least 0.7: less
    than four roundings of 2^-53 in all, with and without fused operations.
    """

    @numba.njit
    def apply(values):
        for k in range(len(values)):
            store(values.ctypes.data, k, exp(load(values.ctypes.data, k)))

    values = aligned(500)
    x = np.random.default_rng(seeded(0)).uniform(-300, 300, (500, LANES))
    x[:5, 0] = [0.0, 1.0, -1.0, 300.0, -300.0]
    values[:] = x
    apply(values)
    with localcontext(prec=30):
        ratios = [Decimal(y) / Decimal(a).exp() for y, a in zip(values.flat, x.flat, strict=True)]
        errors = [abs(float(ratio - 1)) for ratio in ratios]
    assert max(errors) < 4 * 2.0**-53
    assert values[0, 0] == 1.0
