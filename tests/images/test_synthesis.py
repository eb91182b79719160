"""Samples, interpolation, snapshots and pictures, on an untrained network moved off its start."""

import jax.random as jr
import numpy as np
import pytest
from PIL import Image

from helpers import moved, refused, seeded
from msign.images import (
    Pixels,
    Setting,
    StoredImages,
    bits_per_dim,
    build_model,
    generated_snapshots,
    independent_pixels_bits,
    interpolate,
    recovered_snapshots,
    round_trip_error,
    sample_images,
)
from msign.images.mu import Moments
from msign.report.images import image_grid, save_png, snapshot_grid

pytestmark = pytest.mark.usefixtures("quick_compilation")
PIXELS = Pixels()
MOMENTS = Moments(0.0, 0.05, (np.asarray(0.05),), 10)  # all far from black and white
SETTING = Setting().changed(blocks=3, hidden=4, scales=2)
MODEL = moved(build_model(SETTING.architecture, (8, 8, 1), MOMENTS), 0.05)
IMAGES = np.random.default_rng(seeded(0)).integers(60, 190, (6, 8, 8, 1), dtype=np.uint8)


def test_samples_are_images_that_depend_on_seed_and_temperature():
    images = sample_images(MODEL, PIXELS, 5, seed=1)
    assert images.shape == (5, 8, 8, 1) and images.dtype == np.uint8
    np.testing.assert_array_equal(images, sample_images(MODEL, PIXELS, 5, seed=1))
    assert (images != sample_images(MODEL, PIXELS, 5, seed=2)).any()
    cold = sample_images(MODEL, PIXELS, 5, seed=1, temperature=1e-6)
    assert np.ptp(cold, 0).max() <= 1 < np.ptp(images, 0).max()
    assert sample_images(MODEL, PIXELS, 5, scale=1).shape == (5, 4, 4, 1)


def test_interpolation_begins_and_ends_with_the_given_images():
    line = interpolate(MODEL, PIXELS, IMAGES[0], IMAGES[1], steps=5)
    assert line.shape == (5, 8, 8, 1)
    np.testing.assert_array_equal(line[0], IMAGES[0])
    np.testing.assert_array_equal(line[-1], IMAGES[1])
    back = interpolate(MODEL, PIXELS, IMAGES[1], IMAGES[0], steps=5)
    assert abs(back[::-1].astype(int) - line).max() <= 1
    # What lies between is neither of the two.
    for end in (IMAGES[0], IMAGES[1]):
        assert (line[2] != end).any()


def test_snapshots_end_with_the_image_and_grow_from_scale_to_scale():
    rows = recovered_snapshots(MODEL, PIXELS, IMAGES[:2])
    assert [s.shape[0] for s in rows[0]] == [4] * 4 + [8] * 4
    np.testing.assert_array_equal(rows[0][-1], IMAGES[0])
    np.testing.assert_array_equal(rows[1][-1], IMAGES[1])
    rows = generated_snapshots(MODEL, PIXELS, 2, seed=3)
    z = MODEL.noise(jr.key(3), 2)
    np.testing.assert_array_equal(rows[1][-1], PIXELS.image(MODEL.decode(z))[1])
    # The head of F_2 is the coarse image, refined by noise: pooled it is the tail of F_1.
    coarse, head = rows[0][3].astype(float), rows[0][4].astype(float)
    pooled = head.reshape(4, 2, 4, 2, 1).mean((1, 3))
    assert abs(pooled - coarse).max() < 1.5
    glow = build_model(Setting().changed(model="glow", blocks=1).architecture, (8, 8, 1), MOMENTS)
    with refused("snapshots need an MsIGN run"):
        generated_snapshots(glow, PIXELS, 2)


def test_round_trip_is_exact_up_to_rounding():
    worst, typical = round_trip_error(MODEL, PIXELS, IMAGES)
    assert typical <= worst < 1e-9


def test_bits_do_not_depend_on_batches_and_more_draws_tighten_the_bound(monkeypatch):
    monkeypatch.setattr("msign.images.evaluate.BATCH_PIXELS", 6 * 64)
    images = StoredImages([IMAGES])
    found = bits_per_dim(MODEL, PIXELS, images, draws=4)
    assert found.images == 6 and found.values == 64 and found.draws == 4
    assert found.tighter < found.mean
    one = bits_per_dim(MODEL, PIXELS, images)
    assert one.tighter == pytest.approx(one.mean, rel=1e-12)
    # A border of zeros costs bits, which are divided by the values without it.
    assert bits_per_dim(MODEL, PIXELS, images, values=32).mean == pytest.approx(2 * one.mean)
    # Batches of one size, the last filled up with repetitions that do not count.
    cut = bits_per_dim(MODEL, PIXELS, StoredImages([IMAGES, IMAGES[:2]]))
    assert cut.images == 8
    pair = (8 * cut.mean - 6 * one.mean) / 2
    pairs = StoredImages([IMAGES[:2]] * 3)
    means = [bits_per_dim(MODEL, PIXELS, pairs, seed=k).mean for k in range(1, 11)]
    assert abs(pair - np.mean(means)) < 8 * np.sqrt(3) * np.std(means, ddof=1)


def test_independent_pixels_of_a_fair_coin_have_one_bit():
    coins = np.random.default_rng(seeded(0)).integers(0, 2, (4000, 2, 2, 1))
    assert independent_pixels_bits(coins[:2000], coins[2000:], 2) == pytest.approx(1, abs=0.01)
    assert independent_pixels_bits(coins * 0, coins * 0, 2) < 0.01


# --- pictures -----------------------------------------------------------------------------------


def test_a_grid_shows_every_image_once(tmp_path):
    images = np.arange(1, 6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 3, 1), np.uint8)
    grid = image_grid(images, columns=2, zoom=4)
    assert grid.shape == (3 * (2 * 4 + 2) + 2, 2 * (3 * 4 + 2) + 2, 1)
    values, counts = np.unique(grid[grid != 128], return_counts=True)
    assert values.tolist() == [1, 2, 3, 4, 5] and set(counts) == {2 * 3 * 16}
    assert grid[3, 3, 0] == 1 and grid[3, -4, 0] == 2 and grid[-4, 3, 0] == 5
    save_png(grid, tmp_path / "grid.png")
    with Image.open(tmp_path / "grid.png") as picture:
        np.testing.assert_array_equal(np.asarray(picture), grid[..., 0])
    colour = image_grid(np.zeros((1, 4, 4, 3), np.uint8), 8)
    save_png(colour, tmp_path / "colour.png")
    with Image.open(tmp_path / "colour.png") as picture:
        assert picture.mode == "RGB"


def test_snapshots_are_shown_at_one_side():
    rows = [[np.full((2, 2, 1), 5, np.uint8), np.full((4, 4, 1), 9, np.uint8)]] * 3
    grid = snapshot_grid(rows, zoom=1)
    assert grid.shape == (3 * 6 + 2, 2 * 6 + 2, 1)
    assert (grid == 5).sum() == (grid == 9).sum() == 3 * 16


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: image_grid(np.zeros((2, 4, 4), np.uint8), 2), ("images", "(2, 4, 4)")),
        (lambda: image_grid(np.zeros((2, 4, 4, 1), np.uint8), 0), ("columns", 0)),
        (lambda: sample_images(MODEL, PIXELS, 0), ("n", 0)),
        (lambda: sample_images(MODEL, PIXELS, 1, temperature=0.0), ("temperature", 0.0)),
        (lambda: interpolate(MODEL, PIXELS, IMAGES[0], IMAGES[1], 1), ("steps", 1)),
    ],
)
def test_bad_arguments(call, parts):
    with refused(*parts):
        call()
