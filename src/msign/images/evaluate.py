"""How good a model of images is: bits per dimension, and the error of a round trip."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from msign import checks
from msign.images import precise
from msign.images.model import Model
from msign.images.pixels import Pixels
from msign.images.sets import ImageSet
from msign.images.step import bits_of, fields_at
from msign.images.stream import fixed_batches

BATCH_PIXELS = 1 << 17


class Bits(NamedTuple):
    """Bits per dimension of a set of images.

    Attributes:
        mean: An upper bound on bits per dimension: the mean over images and draws of noise.
        error: Standard error of the mean over images.
        tighter: The bound with the density averaged over `draws` draws before the logarithm
            (the same as `mean` for one draw).
        draws: Draws of dequantisation noise per image.
        images: Number of images.
        values: What bits are divided by.
    """

    mean: float
    error: float
    tighter: float
    draws: int
    images: int
    values: int


def bits_per_dim(
    model: Model,
    pixels: Pixels,
    images: ImageSet,
    scale: int | None = None,
    draws: int = 1,
    seed: int = 0,
    values: int | None = None,
) -> Bits:
    """Bits per dimension of images under a model.

    Args:
        model: The network.
        pixels: How grey levels become numbers.
        images: Held-out images.
        scale: Scale to which images are pooled; None: the finest.
        draws: Draws of noise per image.
        seed: Of the noise; the same seed gives the same noise to every model.
        values: What bits are divided by; None: the values of an image of `images`.
    """
    scale = model.scales if scale is None else scale
    checks.integer("draws", draws, 1)
    values = math.prod(images.shape) if values is None else values
    batch = batch_size(images)
    per_image = []
    for i, (block, count) in enumerate(fixed_batches(images, batch)):
        key = jr.fold_in(jr.key(seed), i)
        found = [
            _bits(model, pixels, block, jr.fold_in(key, k), scale, values) for k in range(draws)
        ]
        per_image.append(np.stack(found, 1)[:count])
    bits = np.concatenate(per_image).astype(np.float64)
    mean = bits.mean(1)
    unit = values * math.log(2)
    averaged = np.logaddexp.reduce(-bits * unit, axis=1) - math.log(draws)
    error = mean.std() / math.sqrt(len(mean))
    return Bits(
        float(mean.mean()), float(error), float(-averaged.mean() / unit), draws, len(mean), values
    )


def round_trip_error(
    model: Model, pixels: Pixels, images: np.ndarray, seed: int = 0
) -> tuple[float, float]:
    """Largest and root mean square error, in grey levels, of encoding and decoding images.

    Of dequantised images; fields and noise are in the precision of the weights (see `precise`).
    """
    v = field_of(model, pixels, images, seed)
    grey = np.asarray(pixels.grey(v), np.float64)
    again = jnp.asarray(precise.decode(model, precise.encode(model, v)))
    error = np.asarray(pixels.grey(again), np.float64) - grey
    return float(np.abs(error).max()), float(np.sqrt(np.mean(error**2)))


def field_of(model: Model, pixels: Pixels, images: np.ndarray, seed: int | None = None) -> Array:
    """Fields of images at the finest scale, with noise of a seed, or in the middle of each bin."""
    dtype = next(a.dtype for a in jax.tree.leaves(model.flows) if eqx.is_inexact_array(a))
    if seed is None:
        noise = jnp.full(images.shape, 0.5, dtype)
    else:
        noise = jr.uniform(jr.key(seed), images.shape, dtype)
    return fields_at(pixels, model, jnp.asarray(images), noise, model.scales)[0]


def independent_pixels_bits(train: np.ndarray, test: np.ndarray, levels: int) -> float:
    """Bits per dimension of test images under a histogram of each value of its own.

    The model that knows nothing of neighbours; counts start at one.
    """
    flat = train.reshape(len(train), -1)
    places = np.arange(flat.shape[1])
    counts = np.ones((flat.shape[1], levels))
    for row in flat:
        counts[places, row] += 1
    log_p = np.log2(counts / counts.sum(1, keepdims=True))
    return float(-np.mean([log_p[places, row].mean() for row in test.reshape(len(test), -1)]))


def batch_size(images: ImageSet) -> int:
    """Images at a time in passes without a derivative."""
    return max(1, min(len(images), BATCH_PIXELS // math.prod(images.shape[:2])))


@eqx.filter_jit
def _bits(
    model: Model, pixels: Pixels, images: Any, key: PRNGKeyArray, scale: int, values: int
) -> Array:
    images = jnp.asarray(images)
    noise = jr.uniform(key, images.shape)
    return bits_of(model, pixels, images, noise, scale, values)
