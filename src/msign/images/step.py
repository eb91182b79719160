"""One step of maximum likelihood, compiled as a whole: dequantise, pool, derivative, Adam, average.

The batch is cut in parts whose activations fit in the cache (or in memory) and whose gradients are
added. With several devices every part is spread over them, and weights are copies: the loss is
that of one device.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from msign.bijections.recompute import recomputing
from msign.devices import copies, mesh, rows_spread
from msign.images.config import Training
from msign.images.model import Model, join
from msign.images.pixels import Pixels
from msign.training import adam, running_average

CACHE_PIXELS = 8192  # of the images of a part, on a CPU


class Weights(eqx.Module):
    """All that a step changes.

    Attributes:
        params: The weights being trained.
        average: Their running average.
        optimiser: State of Adam.
    """

    params: PyTree
    average: PyTree
    optimiser: PyTree


def fields_at(
    pixels: Pixels, model: Model, images: Array, noise: Array, scale: int
) -> tuple[Array, Array]:
    """Fields v_l of a batch of images pooled to a scale, and log-determinants of dequantisation.

    Below the last scale fields are means of dequantised values and have no grey levels to count;
    the log-determinant is that of the plain scaling, so that bits are in units of one grey level.
    """
    v, log_det = jax.vmap(pixels.field)(pixels.reduce(images), noise)
    for lattice in reversed(model.lattices[scale:]):
        v = lattice.pool(v)
    if scale < model.scales:
        log_det = jnp.full(v.shape[:1], -model.lattices[scale - 1].dim * math.log(pixels.levels))
    return v, log_det.astype(v.dtype)


def bits_of(
    model: Model, pixels: Pixels, images: Array, noise: Array, scale: int, values: int
) -> Array:
    """Bits per dimension of each image of a batch, with one draw of noise.

    Args:
        model: The network.
        pixels: How grey levels become numbers.
        images: `(n, height, width, channels)` as the files have them.
        noise: Uniform noise of the same shape.
        scale: Scale l to which images are pooled.
        values: What bits are divided by at the last scale: the values of an image without border.
    """
    v, log_det = fields_at(pixels, model, images, noise, scale)
    count = values if scale == model.scales else model.lattices[scale - 1].dim
    return pixels.bits_per_dim(model.log_prob(v, scale), log_det, count)


def optimiser_of(training: Training, steps: int, last: bool) -> optax.GradientTransformation:
    """Adam with warm-up, clipping and, at the last stage, decay; a step not finite is skipped."""
    rate: Any = training.learning_rate
    warm = training.warmup
    down = round(training.decay * steps) if last else 0
    pieces = [optax.linear_schedule(0.0, rate, warm)] if warm else []
    pieces += [optax.constant_schedule(rate)]
    boundaries = [warm] if warm else []
    if down:
        pieces.append(optax.linear_schedule(rate, 0.0, down))
        boundaries.append(max(warm, steps - down))
    return adam(training.clip, optax.join_schedules(pieces, boundaries))


def part_size(training: Training, pixels_per_image: int, devices: int) -> int:
    """Images whose gradient is taken at a time; a divisor of the batch, a multiple of devices."""
    batch = training.batch
    if batch % devices:
        raise ValueError(f"batch must be a multiple of the {devices} devices, got {batch}")
    if training.part is not None:
        if training.part % devices:
            raise ValueError(
                f"part must be a multiple of the {devices} devices, got {training.part}"
            )
        return training.part
    if jax.default_backend() != "cpu":
        return batch
    limit = max(1, devices * CACHE_PIXELS // pixels_per_image)
    return max(
        n for n in range(devices, batch + 1, devices) if batch % n == 0 and n <= max(limit, devices)
    )


class Step:
    """The compiled step of a stage: weights, batch, key and step number to weights and loss."""

    def __init__(self, function: Any, arrays: PyTree, parts: int):
        self.function, self.arrays, self.parts = function, arrays, parts

    def __call__(
        self, weights: Weights, images: np.ndarray, key: PRNGKeyArray, number: int
    ) -> tuple[Weights, Array]:
        return self.function(*self._arguments(weights, images, key, number))

    def compiled(self, weights: Weights, images: np.ndarray, key: PRNGKeyArray, number: int) -> Any:
        """The compiled program, to be looked at (its memory, say)."""
        return self.function.lower(*self._arguments(weights, images, key, number)).compile()

    def _arguments(self, weights: Weights, images: np.ndarray, key: Any, number: int) -> Any:
        shape = (self.parts, len(images) // self.parts, *images.shape[1:])
        batch = jax.device_put(images.reshape(shape), rows_spread(len(shape), axis=1))
        return weights, self.arrays, batch, key, jnp.asarray(number, jnp.int32)


def make_step(
    rest: Model,
    stage: int,
    pixels: Pixels,
    training: Training,
    optimiser: optax.GradientTransformation,
    values: int,
) -> Step:
    """The step of a stage.

    Args:
        rest: The model without the trained weights.
        stage: Its scale.
        pixels: How grey levels become numbers.
        training: Options.
        optimiser: Of `optimiser_of`.
        values: What bits are divided by at the last scale.
    """
    part = part_size(training, math.prod(rest.lattices[stage - 1].shape), mesh().size)
    parts = training.batch // part
    arrays, static = eqx.partition(rest, eqx.is_array)
    arrays = jax.device_put(arrays, copies())

    def loss(params: PyTree, arrays: PyTree, images: Array, noise: Array) -> Array:
        model = join(params, eqx.combine(arrays, static), stage)
        model = recomputing(model, training.recompute)
        return bits_of(model, pixels, images, noise, stage, values).mean()

    def step(
        weights: Weights, arrays: PyTree, images: Array, key: PRNGKeyArray, number: Array
    ) -> tuple[Weights, Array]:
        key = jr.fold_in(key, number)
        noise = jr.uniform(jr.fold_in(key, 0), images.shape)
        if training.flip:
            mirrored = jr.bernoulli(jr.fold_in(key, 1), 0.5, images.shape[:2])
            images = jnp.where(mirrored[..., None, None, None], images[..., ::-1, :], images)

        def add(total: Any, batch: tuple[Array, Array]) -> tuple[Any, None]:
            value = jax.value_and_grad(loss)(weights.params, arrays, *batch)
            return jax.tree.map(jnp.add, total, value), None

        if parts == 1:
            value, gradient = jax.value_and_grad(loss)(weights.params, arrays, images[0], noise[0])
        else:
            zero = jax.eval_shape(
                jax.value_and_grad(loss), weights.params, arrays, images[0], noise[0]
            )
            zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), zero)
            total, _ = jax.lax.scan(add, zero, (images, noise))
            value, gradient = jax.tree.map(lambda a: a / parts, total)
        change, optimised = optimiser.update(gradient, weights.optimiser, weights.params)
        params = optax.apply_updates(weights.params, change)
        decay = jnp.minimum(training.average, (1.0 + number) / (10.0 + number))
        average = running_average(weights.average, params, decay)
        return Weights(params, average, optimised), value

    return Step(jax.jit(step, donate_argnums=0), arrays, parts)


def on_all_devices(tree: PyTree) -> PyTree:
    """The arrays of a tree, copied to every device; never the buffers that were given."""
    return jax.tree.map(lambda a: jax.device_put(jnp.array(a, copy=True), copies()), tree)
