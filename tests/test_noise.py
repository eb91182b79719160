"""Random numbers on the host: decided by their key, of JAX's precision, standard normal."""

import jax
import jax.random as jr
import numpy as np
import pytest
import scipy.special

from helpers import seeded
from msign import noise as module
from msign.noise import (
    ahead,
    default_dtype,
    generator,
    normal,
    normal_parts,
    on_device,
    parts,
)

KEY = jr.key(seeded(0))


@pytest.fixture(params=[False, True], ids=["float32", "float64"])
def dtype(request):
    """JAX in one of its precisions."""
    jax.config.update("jax_enable_x64", request.param)
    yield np.float64 if request.param else np.float32
    jax.config.update("jax_enable_x64", True)


def test_a_key_decides_the_numbers():
    drawn = normal(KEY, (3, 5))
    assert isinstance(drawn, np.ndarray) and drawn.shape == (3, 5)
    np.testing.assert_array_equal(normal(KEY, (3, 5)), drawn)
    np.testing.assert_array_equal(generator(KEY).uniform(size=4), generator(KEY).uniform(size=4))


@pytest.mark.parametrize("n", [1, 6, 7, 12, 20])
def test_parts_are_the_rows_of_the_whole(n):
    """In parts of six; what is left over is in the last."""
    found = list(normal_parts(KEY, n, 3, 6))
    assert all(len(part) == 6 for part in found[:-1]) and len(found[-1]) < 12
    np.testing.assert_array_equal(np.concatenate(found), normal(KEY, (n, 3)))
    assert [rows.stop - rows.start for rows in parts(n, 6)] == [len(part) for part in found]


@pytest.mark.parametrize("size", [4, 7, 40])
def test_many_numbers_do_not_depend_on_the_size_of_parts(dtype, size, monkeypatch):
    monkeypatch.setattr(module, "MANY", 1)
    dim, n = 2**17 + 5, 9
    found = list(normal_parts(KEY, n, dim, size))
    assert [len(part) for part in found] == [rows.stop - rows.start for rows in parts(n, size)]
    whole, (again,) = np.concatenate(found), normal_parts(KEY, n, dim, n)
    assert whole.dtype == dtype
    np.testing.assert_array_equal(whole, again)
    other = next(normal_parts(jr.fold_in(KEY, 1), 1, dim, 1))[0]
    assert np.abs(whole.astype(float) @ other).max() < 5.5 * np.linalg.norm(other)


def test_many_numbers_are_independent_and_normal():
    """Also far out: every part of the tail has as many as it should, up to five deviations."""
    jax.config.update("jax_enable_x64", False)
    key = jr.key_data(KEY)
    x = np.concatenate([module._block_of_normals(key, np.uint32(i)) for i in range(16)])
    jax.config.update("jax_enable_x64", True)
    n = len(x)
    assert n == 16 * module.BLOCK
    x = x.astype(np.float64)
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(x**power) - mean) < 5 * np.sqrt(variance / n)
    for lag in (1, module.BLOCK // 2, module.BLOCK):
        assert abs(np.mean(x[lag:] * x[:-lag])) < 5 / np.sqrt(n - lag)
    for end in (0.5, 1, 2, 3, 4, 4.5, 5):
        expected = n * scipy.special.ndtr(-end)
        for side in (x, -x):
            assert abs(np.sum(side > end) - expected) < 5 * np.sqrt(expected) + 5


def test_normal_numbers_of_bits_are_quantiles_to_single_precision():
    bits = np.concatenate([np.geomspace(1, 2**31 - 1, 2001).astype(np.uint32) * 2, [0, 1]])
    t = ((bits >> 1) + 0.5) * 2.0**-31  # twice the mass beyond
    wanted = -scipy.special.ndtri(t / 2) * np.where(bits % 2, 1, -1)
    found = np.asarray(jax.jit(module._normal_of_bits)(np.asarray(bits, np.uint32)))
    far = np.abs(wanted) > 5.3  # one number in ten million
    np.testing.assert_allclose(found[~far], wanted[~far], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found[far], wanted[far], rtol=1e-3)


def test_what_is_made_ahead_comes_in_order_with_the_errors_of_its_making():
    def items():
        yield from range(1, 4)
        raise ValueError("no more")

    made = ahead(items())
    assert [next(made) for _ in range(3)] == [1, 2, 3]
    with pytest.raises(ValueError, match="no more"):
        next(made)
    assert list(ahead(iter(range(1, 6)))) == list(range(1, 6))


def test_other_keys_give_other_numbers():
    """Also those that differ in one half of their 64 bits only, in either order."""
    keys = [KEY, *(jr.fold_in(KEY, i) for i in range(5))]
    keys += [jr.wrap_key_data(np.array(halves, np.uint32)) for halves in ((0, 7), (7, 0), (7, 7))]
    drawn = np.stack([normal(key, (8,)) for key in keys])
    assert len(np.unique(drawn)) == drawn.size


def test_they_have_the_precision_of_jax(dtype):
    assert default_dtype() == dtype
    assert normal(KEY, (2,)).dtype == dtype
    for array in (np.arange(3.0), np.arange(3), [0, 1, 2], np.float32([0, 1, 2])):
        placed = on_device(array)
        assert isinstance(placed, jax.Array) and placed.dtype == dtype
        np.testing.assert_array_equal(placed, [0, 1, 2])


def test_moments_are_those_of_independent_standard_normal_numbers(dtype):
    """Of one key, and of one number from each of many keys."""
    n = 40_000
    many = np.concatenate([normal(key, (1,)) for key in jr.split(KEY, 2000)])
    for x in (normal(KEY, (n,)).astype(np.float64), many.astype(np.float64)):
        # Variances of the powers of a normal number: E x^2k - (E x^k)^2.
        for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
            assert abs(np.mean(x**power) - mean) < 5 * np.sqrt(variance / len(x))
        assert abs(np.mean(x[1:] * x[:-1])) < 5 / np.sqrt(len(x))
