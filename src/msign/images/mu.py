"""The Haar prior of a data set by moment matching (paper, appendix G, table of mu_l)."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from msign import checks
from msign.images.pixels import Pixels
from msign.images.sets import ImageSet
from msign.images.stream import read_ahead
from msign.lattice import Lattice, bands, to_blocks
from msign.priors import ScalarPrior

IMAGES = 10_000
CHUNK_BYTES = 1 << 26

# The paper's estimates (appendix G), of images scaled to an interval that it does not state.
PAPER: dict[str, tuple[float, ...]] = {
    "mnist": (0.67,),
    "cifar10": (0.48, 0.46),
    "celeba64": (0.22, 0.30),
    "imagenet32": (0.32, 0.42),
    "imagenet64": (0.28, 0.36),
}


class Moments(NamedTuple):
    """What the prior of a data set is made of.

    Attributes:
        mean: Of all values.
        std: Standard deviation of the values at the coarsest scale, sqrt(c_1).
        mu: mu_2, ..., mu_L, coarse to fine: numbers, or arrays `(3, channels)`.
        images: How many images were used.
    """

    mean: float
    std: float
    mu: tuple[np.ndarray, ...]
    images: int


def estimate_moments(
    images: ImageSet,
    pixels: Pixels,
    scales: int,
    per_band: bool = False,
    count: int = IMAGES,
    seed: int = 0,
) -> Moments:
    """Moments of the fields of `count` images chosen at random (all, if there are fewer).

    Fields are dequantised and scaled as in training. Squares are summed chunk by chunk, so that
    large images need no more memory than small ones.

    Args:
        images: The data set.
        pixels: How grey levels become numbers.
        scales: Number of scales L.
        per_band: One mu per Haar band and channel, instead of the paper's one per scale.
        count: Number of images.
        seed: Of the choice of images and the dequantisation noise.
    """
    lattice = Lattice(images.shape[:2], images.shape[2])
    lattice.hierarchy(scales)
    count = min(checks.integer("count", count, 1), len(images))
    chosen = np.sort(np.random.default_rng([seed, 1]).choice(len(images), count, replace=False))
    chunk = max(1, min(count, CHUNK_BYTES // (4 * lattice.dim)))
    parts = [chosen[i : i + chunk] for i in range(0, count, chunk)]
    totals: list[np.ndarray] | None = None
    for i, block in enumerate(read_ahead(images, iter(parts))):
        key = jr.fold_in(jr.key(seed), i)
        sums = [np.asarray(s, np.float64) for s in _sums(block, key, pixels, lattice, scales)]
        totals = sums if totals is None else [a + b for a, b in zip(totals, sums, strict=True)]
    assert totals is not None
    first, square, *details = totals
    values = count * lattice.hierarchy(scales)[0].dim
    mean = first / values
    mu = []
    for fine, total in zip(lattice.hierarchy(scales)[1:], details, strict=True):
        cells = math.prod(fine.factors)
        squares = total / (count * (fine.dim // images.shape[2]) / cells)
        mu.append(np.sqrt((squares if per_band else squares.mean()) * cells))
    std = math.sqrt(max(float(square / values - mean**2), 0.0))
    if std == 0 or any(np.min(m) == 0 for m in mu):
        raise ValueError("images must differ from each other: a moment of the data set is zero")
    return Moments(float(mean), std, tuple(mu), count)


def prior_of(images_shape: tuple[int, int, int], moments: Moments) -> ScalarPrior:
    """The prior with these moments, on the lattice of the images."""
    *sides, channels = images_shape
    return ScalarPrior(tuple(sides), moments.mu, moments.std, moments.mean, channels)


@eqx.filter_jit
def _sums(
    images: np.ndarray, key: PRNGKeyArray, pixels: Pixels, lattice: Lattice, scales: int
) -> list[Array]:
    """Sum and sum of squares at the coarsest scale; sums of squared details, scales 2 to L."""
    noise = jr.uniform(key, images.shape)
    v, _ = jax.vmap(pixels.field)(pixels.reduce(jnp.asarray(images)), noise)
    details = []
    for fine in reversed(lattice.hierarchy(scales)[1:]):
        blocks = bands(to_blocks(v, fine.factors), fine.factors)
        details.append(jnp.sum(blocks[..., 1:, :] ** 2, (0, 1, 2)))
        v = fine.pool(v)
    return [jnp.sum(v), jnp.sum(v**2), *reversed(details)]
