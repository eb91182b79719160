"""Lattices, pooling A, upsampling B, blocks and the Haar basis."""

import jax.numpy as jnp
import numpy as np
import pytest

from helpers import seeded
from msign import Lattice
from msign.lattice import from_blocks, haar, join_bands, split_bands, to_blocks

pytestmark = pytest.mark.usefixtures("quick_compilation")
LATTICES = [Lattice((8,)), Lattice((4, 6)), Lattice((2, 4, 6)), Lattice((4, 4), 3)]


def field(lattice, *batch):
    return jnp.asarray(np.random.default_rng(seeded(0)).normal(size=(*batch, *lattice.field_shape)))


@pytest.mark.parametrize("shape, sides", [((28, 28), [7, 14, 28]), ((12,), [3, 6, 12])])
def test_hierarchy_down_to_odd_sides(shape, sides):
    lattice = Lattice(shape)
    assert lattice.max_scales == 3
    assert [l.shape[0] for l in lattice.hierarchy(3)] == sides


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
    coarse = lattice.pool(x)
    assert coarse.shape == (5, *lattice.coarsen().field_shape)
    corner = x[(slice(None),) + (slice(0, 2),) * lattice.ndim]
    first = corner.mean(tuple(range(1, lattice.ndim + 1)))
    np.testing.assert_allclose(coarse[(slice(None),) + (0,) * lattice.ndim], first)
    fine = lattice.upsample(coarse)
    np.testing.assert_allclose(lattice.pool(fine), coarse)
    np.testing.assert_array_equal(fine[:, ::2], fine[:, 1::2])


@pytest.mark.parametrize("lattice", LATTICES, ids=repr)
def test_blocks_haar_and_bands_are_inverted(lattice):
    x = field(lattice, 2).reshape(2, *lattice.shape, -1)
    window = (2,) * lattice.ndim
    blocks = to_blocks(x, window)
    np.testing.assert_array_equal(from_blocks(blocks, window), x)
    bands = haar(blocks)
    np.testing.assert_allclose(haar(bands), blocks, atol=1e-14)
    np.testing.assert_allclose((bands**2).sum(), (x**2).sum())  # orthonormal
    low = bands[..., 0, :] * 2 ** (-lattice.ndim / 2)
    pooled = lattice.pool(x.reshape(2, *lattice.field_shape)).reshape(low.shape)
    np.testing.assert_allclose(low, pooled)
    flat = split_bands(bands, 0.7, lattice.ndim)
    np.testing.assert_allclose(join_bands(flat, lattice, 0.7), bands, atol=1e-14)
