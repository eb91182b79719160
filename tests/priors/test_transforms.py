"""Eigenbases of the Laplacian: fast transforms against matrices, and what pooling does to them."""

import jax
import numpy as np
import pytest

from conformance import BOUNDARIES
from helpers import seeded
from msign.lattice import Lattice
from msign.priors import pooling_matrix, transforms

pytestmark = pytest.mark.usefixtures("quick_compilation")


def there_and_back(x, boundary, axes):
    @jax.jit
    def run(x):
        c = transforms.analyse(x, boundary, axes)
        return c, transforms.synthesise(c, boundary, axes)

    return run(x)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 14])
def test_fft_and_matrix_product_agree(n, boundary, monkeypatch):
    q = transforms.basis(n, boundary)
    np.testing.assert_allclose(q @ q.T, np.eye(n), atol=1e-12)
    x = np.random.default_rng(seeded(0)).normal(size=(3, n, 2))
    expected = np.einsum("kn,bnc->bkc", q, x)
    for dense_side in (0, 64):
        monkeypatch.setattr(transforms, "DENSE_SIDE", dense_side)
        c, again = there_and_back(x, boundary, (-2,))
        np.testing.assert_allclose(c, expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(again, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_lattice_above_the_dense_side(boundary):
    n = transforms.DENSE_SIDE + 2
    x = np.random.default_rng(seeded(0)).normal(size=(n, 3))
    c, again = there_and_back(x, boundary, (-2, -1))
    expected = transforms.basis(n, boundary) @ x @ transforms.basis(3, boundary).T
    np.testing.assert_allclose(c, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(again, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("n", [2, 4, 6, 16, 3, 9, 15, 21, 5, 25, 35])
def test_pooling_couples_modes_in_blocks(n, boundary):
    """Of p modes for each coarse mode, that of its own frequency first."""
    (p,) = Lattice((n,)).factors
    pooling = pooling_matrix(Lattice((n,)))
    coarse, fine = transforms.basis(n // p, boundary), transforms.basis(n, boundary)
    index, weight = transforms.pooling_blocks(n, p, boundary)
    assert index.shape == weight.shape == (n // p, p)
    assert sorted(index.reshape(-1)) == list(range(n))
    expected = np.zeros((n // p, n))
    np.put_along_axis(expected, index, weight, 1)
    np.testing.assert_allclose(coarse @ pooling @ fine.T, expected, atol=1e-12)
    assert weight[:, 0].min() > 0
    angles = [transforms.angles(m, boundary) for m in (n // p, n)]
    np.testing.assert_allclose(angles[1][index[:, 0]], angles[0] / p)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_coarse_first_order_is_a_permutation_led_by_smooth_modes(boundary):
    shape = (4, 12)
    order, position = transforms.coarse_first(shape, boundary)
    np.testing.assert_array_equal(order[position], np.arange(48))
    lines = [transforms.eigenvalues(n, boundary) for n in shape]
    roughness = np.add.outer(*lines).reshape(-1)[order]
    assert roughness[0] == roughness.min()
    assert roughness[:12].mean() < roughness[12:].mean()
