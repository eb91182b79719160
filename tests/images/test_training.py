"""Training: it learns, a stage at a time, and an interrupted run ends with the same numbers."""

import json
import pathlib

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from PIL import Image

from helpers import identical, in_float32, killed_after, refused, seeded
from msign.images import (
    PRESETS,
    Architecture,
    ImageRun,
    Setting,
    StoredImages,
    Training,
    bits_per_dim,
    build_model,
    independent_pixels_bits,
    load_images,
    round_trip_error,
    train,
)
from msign.images.sets import held_out
from msign.images.step import bits_of

pytestmark = pytest.mark.usefixtures("shared_compilation")
TINY = Setting().changed(
    blocks=1, hidden=4, batch=10, epochs=2, stage_epochs=1, warmup=2, validation=10
)


def blocks(n, seed):
    """Images of 4 x 4 pixels: four blocks of equal grey levels, all 256 of them equally likely."""
    levels = np.random.default_rng(seeded(seed)).integers(0, 256, (n, 2, 2, 1), dtype=np.uint8)
    return levels.repeat(2, 1).repeat(2, 2)


IMAGES = StoredImages([blocks(60, 0)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory, shared_compilation):
    """An uninterrupted run: its result and its directory."""
    out = tmp_path_factory.mktemp("finished")
    return train(IMAGES, TINY, out), out


@pytest.mark.parametrize("checkpoints", [3, 9])
def test_a_killed_run_goes_on_and_ends_with_the_same_numbers(checkpoints, finished, tmp_path):
    """Killed in the first stage (5 steps) and in the middle of an epoch of the second (10)."""
    every_step = TINY.changed(checkpoint_seconds=0.0)
    with killed_after(ImageRun, checkpoints):
        train(IMAGES, every_step, tmp_path)
    with refused("out holds a run already", tmp_path):
        train(IMAGES, every_step, tmp_path)
    with refused("seed", 0, "resume", 1):
        train(IMAGES, every_step, tmp_path, seed=1, resume=True)
    with refused("setting.training.batch", 10, 5):
        train(IMAGES, every_step.changed(batch=5), tmp_path, resume=True)
    resumed = train(IMAGES, every_step, tmp_path, resume=True)
    whole = finished[0]
    assert identical(resumed.model, whole.model)
    names = ("stage", "epoch", "step", "train_bits", "valid_bits")
    for a, b in zip(whole.records, resumed.records, strict=True):
        assert [a[n] for n in names] == [b[n] for n in names]


def test_what_a_run_leaves(finished):
    trained, out = finished
    run = ImageRun.existing(out)
    assert identical(run.model(), trained.model)
    assert [(r["stage"], r["epoch"]) for r in run.read_log()] == [(1, 1), (2, 1), (2, 2)]
    assert run.setting() == TINY and run.pixels() == trained.pixels
    assert not (out / "checkpoint.npz").exists()
    names = {p.name for p in (out / "samples").iterdir()}
    expected = {"stage1_epoch0001.png", "stage2_epoch0001.png", "stage2_epoch0002.png"}
    assert names == expected | {"latest.png"}
    with Image.open(out / "samples" / "latest.png") as picture:
        assert picture.mode == "L" and picture.width > 300
    assert not [p for p in pathlib.Path(out).rglob("*") if "npz." in p.name]
    # Nothing is trained in a run that is finished.
    assert identical(train(IMAGES, TINY, out, resume=True).model, trained.model)


def test_the_first_stage_learns_the_pooled_images(finished):
    """Its model is kept, and gives its own bits on the pooled validation images."""
    run = ImageRun.existing(finished[1])
    first = run.load_stage(1)
    record = run.read_log()[0]
    assert record["stage"] == 1 and run.read_config()["values"] == 16
    valid = held_out(IMAGES, 10, 0).test
    assert bits_per_dim(first, run.pixels(), valid, 1).mean == pytest.approx(record["valid_bits"])
    last = finished[0].model
    assert not identical(first.flows[0], last.flows[0])  # trained jointly afterwards


def test_a_run_that_diverges_says_so(tmp_path):
    with pytest.raises(RuntimeError, match=r"diverged at stage 1.*learning_rate than 1e"):
        train(IMAGES, TINY.changed(learning_rate=1e30, warmup=0), tmp_path)


def test_bits_are_between_the_entropy_and_those_of_independent_pixels(finished):
    """The entropy of four blocks is 32 bits, two for each of 16 pixels: no model needs fewer.

    That of each pixel is eight bits. A Gaussian of the standard deviation of a uniform density
    needs a quarter of a bit more than it does, so that the Haar prior, with which training begins,
    needs 2.3 bits at most: it knows that the pixels of a block are equal.
    """
    images = blocks(500, 1)
    alone = independent_pixels_bits(blocks(5000, 2), images, 256)
    found = bits_per_dim(finished[0].model, finished[0].pixels, StoredImages([images]))
    assert 2 - 5 * found.error < found.mean < 8 - 5 * found.error
    assert alone > 8  # whatever has been learned of uniform grey levels


def test_an_epoch_of_small_steps_lowers_the_bits_of_unseen_digits(tmp_path):
    """Of the same images with the same noise, from the Haar prior on.

    To first order in the learning rate each step of Adam lowers the bits of all digits by it times
    the sum of the sizes of all derivatives, wherever a batch has their signs right.
    """
    digits = load_images("digits")
    images = digits.test.read(range(297))
    assert independent_pixels_bits(digits.train.read(range(1500)), images, 17) == pytest.approx(
        2.42, abs=0.005
    )
    setting = Setting().changed(
        blocks=2, hidden=8, output="sigmoid", epochs=1, stage_epochs=0, average=0.5, warmup=0
    )
    trained = train(digits.train, setting, tmp_path, seed=seeded(0))
    start = build_model(setting.architecture, (8, 8, 1), ImageRun.existing(tmp_path).moments())
    noise = jr.uniform(jr.key(seeded(1)), images.shape)

    @eqx.filter_jit
    def bits(model):
        return bits_of(model, trained.pixels, jnp.asarray(images), noise, 2, 64)

    gain = np.asarray(bits(start) - bits(trained.model))
    assert gain.mean() > 5 * gain.std() / np.sqrt(len(gain))
    # With weights in float32 every grey level of real images comes back.
    worst, typical = round_trip_error(in_float32(trained.model), trained.pixels, images[:100])
    assert typical <= worst < 0.5


# --- settings -----------------------------------------------------------------------------------


def test_presets_are_the_papers_table():
    table = {
        "mnist": (400, 2, 32, 512, 2000),
        "cifar10": (400, 3, 32, 512, 2000),
        "celeba64": (200, 3, 32, 512, 1000),
        "imagenet32": (400, 3, 32, 512, 400),
        "imagenet64": (200, 3, 32, 512, 200),
        "celeba128": (200, 4, 32, (512, 512, 512, 128), 1000),
    }
    assert set(PRESETS) == set(table)
    for name, numbers in table.items():
        a, t = PRESETS[name].architecture, PRESETS[name].training
        assert (t.batch, a.scales, a.flow.blocks, a.flow.hidden, t.epochs) == numbers
        assert (t.learning_rate, t.stage_epochs, a.per_band, a.bits) == (1e-3, 125, False, None)


def test_a_setting_survives_json_and_changes_by_name():
    setting = PRESETS["celeba128"].changed(blocks=3, batch=7, output="sigmoid", flip=None)
    assert setting.architecture.flow.blocks == 3 and setting.architecture.flow.hidden[3] == 128
    assert (setting.training.batch, setting.architecture.output) == (7, "sigmoid")
    assert setting.training.flip
    assert Setting.from_description(json.loads(json.dumps(setting.describe()))) == setting


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: Architecture(model="vae"), ("model", "msign", "vae")),
        (lambda: Architecture(scales=0), ("scales", 0)),
        (lambda: Architecture(output="tanh"), ("output", "tanh")),
        (lambda: Architecture(bits=0), ("bits", 0)),
        (lambda: Setting().changed(blocks=0), ("blocks", 0)),
        (lambda: Setting().changed(hidden=(1, 2, 3)), ("hidden", 2, "(1, 2, 3)")),
        (lambda: Training(epochs=0), ("epochs", 0)),
        (lambda: Training(learning_rate=-1.0), ("learning_rate", -1.0)),
        (lambda: Training(average=1.5), ("average", 1.5)),
        (lambda: Training(part=7, batch=20), ("part", 20, 7)),
        (lambda: Training(recompute="all"), ("recompute", "blocks", "all")),
        (lambda: Training(patience=0), ("patience", 0)),
        (lambda: Training(checkpoint_seconds=-1), ("checkpoint_seconds", -1)),
    ],
)
def test_bad_settings(make, parts):
    with refused(*parts):
        make()


def test_bad_arguments_are_refused_before_anything_is_written(tmp_path):
    with refused("batch", 50, 100):
        train(IMAGES, TINY.changed(batch=100), tmp_path / "a")
    with refused("scales", "at most 3", 4):
        train(IMAGES, TINY.changed(scales=4), tmp_path / "b")
    with refused("bits", 17, 3):
        train(load_images("digits").train, TINY.changed(bits=3), tmp_path / "c")
    assert not (tmp_path / "b" / "config.json").exists()
