"""The compiled step: parts, devices, schedule, what it trains and what it leaves alone."""

import functools
import itertools
import json
import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from helpers import identical, moved, refused, seeded
from msign.images import Pixels, Setting, build_model
from msign.images.config import Training
from msign.images.model import join, split_trainable
from msign.images.mu import Moments
from msign.images.step import (
    Weights,
    bits_of,
    fields_at,
    make_step,
    on_all_devices,
    optimiser_of,
    part_size,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")
# Steps so small that the loss is linear on the way.
SETTING = Setting().changed(blocks=2, hidden=4, scales=1, batch=8, warmup=0, learning_rate=1e-6)
MOMENTS = Moments(0.0, 0.3, (), 10)
IMAGES = np.random.default_rng(seeded(0)).integers(0, 256, (8, 4, 4, 1), dtype=np.uint8)
PIXELS = Pixels()


@functools.cache
def model_of(kind="msign", scales=1):
    setting = SETTING.changed(model=kind, scales=scales)
    moments = MOMENTS._replace(mu=(np.asarray(0.2),) * (scales - 1))
    return moved(build_model(setting.architecture, (4, 4, 1), moments), 0.05)


@functools.cache
def one_step(kind="msign", scales=1, **options):
    training = SETTING.changed(**options).training
    optimiser = optimiser_of(training, 10, True)
    params, rest = split_trainable(model_of(kind, scales), 1)
    weights = on_all_devices(Weights(params, params, optimiser.init(params)))
    step = make_step(rest, 1, PIXELS, training, optimiser, 16)
    return step(weights, IMAGES, jr.key(5), 0)


def test_parts_and_recomputation_change_nothing():
    expected = one_step(part=8, recompute="nothing")
    for options in ({"part": 4, "recompute": "nothing"}, {"part": 8, "recompute": "blocks"}):
        found = one_step(**options)
        for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
            np.testing.assert_allclose(b, a, rtol=0, atol=1e-9)


def test_flipping_changes_the_loss_and_only_by_mirrored_images():
    """Each image's bits are those of itself or of its mirror image."""
    _, loss = one_step(part=8, recompute="nothing", flip=True)
    noise = jr.uniform(jr.fold_in(jr.fold_in(jr.key(5), 0), 0), IMAGES.shape)
    either = [
        bits_of(model_of(), PIXELS, jnp.asarray(images), noise, 1, 16)
        for images in (IMAGES, IMAGES[:, :, ::-1])
    ]
    choices = [np.mean(c) for c in itertools.product(*np.asarray(either).T.tolist())]
    assert min(abs(float(loss) - c) for c in choices) < 1e-9
    assert abs(float(loss) - choices[0]) > 1e-6 and abs(float(loss) - choices[-1]) > 1e-6


@pytest.mark.parametrize("kind", ["msign", "glow"])
def test_the_loss_is_bits_per_dimension_and_a_step_lowers_it(kind):
    """Of the same noise it must fall, as the gradient says."""
    weights, loss = one_step(kind, part=8, recompute="nothing")
    _, rest = split_trainable(model_of(kind), 1)
    noise = jr.uniform(jr.fold_in(jr.fold_in(jr.key(5), 0), 0), IMAGES.shape)

    @eqx.filter_jit
    def bits(model):
        return bits_of(model, PIXELS, jnp.asarray(IMAGES), noise, 1, 16).mean()

    before = float(bits(model_of(kind)))
    assert float(loss) == pytest.approx(before, rel=1e-9)
    assert float(bits(join(weights.params, rest, 1))) < before


def test_a_stage_trains_its_flows_and_no_finer_ones():
    model = model_of(scales=2)
    weights, _ = one_step(scales=2)
    _, rest = split_trainable(model, 1)
    after = join(weights.params, rest, 1)
    assert not identical(after.flows[0], model.flows[0])
    assert identical(after.flows[1], model.flows[1])
    assert identical(after.priors, model.priors)
    joint, rest = split_trainable(model, 2)
    assert identical(join(joint, rest, 2), model)


def test_fields_of_a_scale_are_pooled_dequantised_images():
    model = model_of(scales=2)
    noise = jnp.zeros(IMAGES.shape)
    v, log_det = fields_at(PIXELS, model, jnp.asarray(IMAGES), noise, 1)
    expected = (IMAGES / 256 - 0.5).reshape(8, 2, 2, 2, 2).mean((2, 4))
    np.testing.assert_allclose(v[..., 0], expected, rtol=1e-6)
    np.testing.assert_allclose(log_det, -4 * np.log(256))


def step_sizes(training, last):
    """Of 100 steps on a constant gradient, where Adam's step is the learning rate."""
    optimiser = optimiser_of(training, 100, last)

    def step(state, _):
        change, state = optimiser.update(jnp.ones(()), state)
        return state, -change

    return jax.jit(lambda: jax.lax.scan(step, optimiser.init(jnp.zeros(())), length=100)[1])()


def test_warmup_and_decay():
    training = Training(warmup=10, decay=0.5, learning_rate=0.1, clip=1e9)
    sizes = step_sizes(training, last=True)
    np.testing.assert_allclose(sizes[:11], np.arange(11) / 100, atol=1e-6)
    np.testing.assert_allclose(sizes[10:51], 0.1, rtol=1e-4)
    np.testing.assert_allclose(sizes[50:], 0.1 * (1 - np.arange(50) / 50), rtol=1e-3)
    np.testing.assert_allclose(step_sizes(training, last=False)[10:], 0.1, rtol=1e-4)


def test_a_gradient_that_is_not_finite_changes_nothing():
    optimiser = optimiser_of(Training(warmup=0), 100, True)
    x = jnp.zeros(3)
    change, _ = optimiser.update(jnp.asarray([1.0, jnp.nan, 1.0]), optimiser.init(x))
    np.testing.assert_array_equal(optax.apply_updates(x, change), x)


def test_part_sizes():
    assert part_size(Training(batch=100), 28 * 28, 1) == 10
    assert part_size(Training(batch=100), 8 * 8, 1) == 100
    assert part_size(Training(batch=200), 128 * 128, 1) == 1
    assert part_size(Training(batch=12), 128 * 128, 4) == 4
    assert part_size(Training(batch=12, part=6), 4, 1) == 6
    with refused("batch", "3 devices", 10):
        part_size(Training(batch=10), 64, 3)
    with refused("part", "2 devices", 3):
        part_size(Training(batch=12, part=3), 64, 2)


TWO_DEVICES = """
import json, sys
import jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)
sys.path[:0] = {path!r}
import test_step
weights, loss = test_step.one_step(part=4, recompute="nothing")
leaves = jax.tree.leaves(weights.params)
assert len(leaves[0].sharding.device_set) == jax.device_count() == 2
print(json.dumps([float(loss), [float(abs(leaf).sum()) for leaf in leaves]]))
"""


def test_two_devices_give_the_loss_of_one():
    """Also the same weights after the step; in a process that has two devices."""
    here = os.path.dirname(__file__)
    code = TWO_DEVICES.format(path=[here, os.path.dirname(here)])
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    environment = os.environ | {"XLA_FLAGS": flags}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loss, sums = json.loads(done.stdout.splitlines()[-1])
    weights, expected = one_step(part=4, recompute="nothing")
    assert loss == pytest.approx(float(expected), rel=1e-9)
    ours = [float(abs(leaf).sum()) for leaf in jax.tree.leaves(weights.params)]
    np.testing.assert_allclose(sums, ours, rtol=0, atol=1e-9)
