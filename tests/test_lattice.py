"""Lattices, pooling A, upsampling B, blocks and the Haar basis."""

import functools
import itertools
import math

import jax
import numpy as np
import pytest

from helpers import seeded
from msign import Lattice
from msign.lattice import bands, from_blocks, haar, join_bands, next_side, split_bands, to_blocks

pytestmark = pytest.mark.usefixtures("quick_compilation")
LATTICES = [
    *(Lattice((8,)), Lattice((4, 6)), Lattice((2, 4, 6)), Lattice((4, 4), 3)),
    *(Lattice((15,)), Lattice((4, 9), 2), Lattice((5, 6)), Lattice((6, 2, 3))),
]


def field(lattice, *batch):
    return np.random.default_rng(seeded(0)).normal(size=(*batch, *lattice.field_shape))


@functools.partial(jax.jit, static_argnums=0)
def pooled_and_back(lattice, x):
    """Pooled fields, those upsampled again, and these pooled: one program."""
    coarse = lattice.pool(x)
    fine = lattice.upsample(coarse)
    return coarse, fine, lattice.pool(fine)


@functools.partial(jax.jit, static_argnums=0)
def in_blocks(lattice, x):
    """Blocks, bands and flat coordinates of fields, and the way back of each: one program."""
    window = lattice.factors
    blocks = to_blocks(x.reshape(len(x), *lattice.shape, -1), window)
    found = bands(blocks, window)
    flat = split_bands(found, 0.7, lattice.ndim)
    back = (
        from_blocks(blocks, window),
        bands(found, window, inverse=True),
        join_bands(flat, lattice, 0.7),
    )
    return blocks, found, back, lattice.pool(x), haar(blocks) if set(window) == {2} else None


@pytest.mark.parametrize(
    ("shape", "default", "shapes"),
    [
        ((28, 28), 3, [(7, 7), (14, 14), (28, 28)]),
        ((12,), 3, [(1,), (3,), (6,), (12,)]),
        ((8, 32), 3, [(1, 4), (2, 8), (4, 16), (8, 32)]),
        ((30, 48), 3, [(1, 6), (5, 12), (15, 24), (30, 48)]),
        ((225,), 4, [(1,), (5,), (25,), (75,), (225,)]),
        ((4, 9, 50), 2, [(1, 1, 5), (2, 3, 25), (4, 9, 50)]),
        ((7, 64), 1, [(7, 64)]),
        ((1, 8), 1, [(1, 8)]),
    ],
    ids=str,
)
def test_sides_are_divided_by_the_smallest_of_2_3_and_5(shape, default, shapes):
    lattice = Lattice(shape)
    lattices = lattice.hierarchy(lattice.max_scales)
    assert [l.shape for l in lattices] == shapes
    for coarse, fine in itertools.pairwise(lattices):
        assert np.multiply(coarse.shape, fine.factors).tolist() == list(fine.shape)
    assert lattice.pooling == tuple(fine.factors for fine in lattices[:0:-1])
    assert lattice.default_scales == default
    # At least two cells per side, and no scale more would leave as many.
    coarsest = lattice.hierarchy(lattice.default_scales)[0]
    assert lattice.default_scales == 1 or min(coarsest.shape) > 1
    assert coarsest.max_scales == 1 or min(coarsest.coarsen().shape) == 1


def test_the_next_side_that_can_be_divided_so_often():
    assert [next_side(n, 2) for n in (7, 8, 9, 11, 31, 33)] == [8, 8, 12, 12, 32, 36]
    for side, steps in ((97, 3), (7, 4), (250, 5)):
        found = next_side(side, steps)
        deep = [n for n in range(side, found + 1) if Lattice((n,)).max_scales > steps]
        leaving = [n for n in deep if Lattice((n,)).hierarchy(steps + 1)[0].shape[0] > 1]
        assert leaving == [found]


def test_sizes():
    lattice = Lattice((4, 6), 3)
    assert (lattice.ndim, lattice.dim, lattice.field_shape) == (2, 72, (4, 6, 3))
    assert lattice.axes == (-3, -2)
    assert Lattice(8).shape == (8,)
    assert repr(lattice) == "Lattice(4x6, 3)"
    assert Lattice((np.int64(4), 6)) == Lattice((4, 6))


@pytest.mark.parametrize("lattice", LATTICES, ids=repr)
def test_pooling_averages_windows_and_undoes_upsampling(lattice):
    x = field(lattice, 5)
    coarse, fine, again = map(np.asarray, pooled_and_back(lattice, x))
    assert coarse.shape == (5, *lattice.coarsen().field_shape)
    corner = x[(slice(None), *map(slice, lattice.factors))]
    first = corner.mean(tuple(range(1, lattice.ndim + 1)))
    np.testing.assert_allclose(coarse[(slice(None),) + (0,) * lattice.ndim], first)
    np.testing.assert_allclose(again, coarse)
    p = lattice.factors[0]
    for i in range(1, p):
        np.testing.assert_array_equal(fine[:, ::p], fine[:, i::p])


@pytest.mark.parametrize("lattice", LATTICES, ids=repr)
def test_blocks_and_bands_are_inverted(lattice):
    x = field(lattice, 2)
    blocks, found, back, pooled, by_haar = jax.tree.map(np.asarray, in_blocks(lattice, x))
    np.testing.assert_array_equal(back[0], x.reshape(2, *lattice.shape, -1))
    np.testing.assert_allclose(back[1], blocks, atol=1e-14)
    np.testing.assert_allclose((found**2).sum(), (x**2).sum())  # orthonormal
    low = found[..., 0, :] * math.prod(lattice.factors) ** -0.5
    np.testing.assert_allclose(low, pooled.reshape(low.shape))
    np.testing.assert_allclose(back[2], found, atol=1e-14)
    if by_haar is not None:
        np.testing.assert_array_equal(found, by_haar)
