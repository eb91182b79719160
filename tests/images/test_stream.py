"""Batches in an order that can be taken up again, read ahead by a thread."""

import threading

import numpy as np
import pytest

from helpers import refused
from msign.images import StoredImages
from msign.images.sets import held_out
from msign.images.stream import fixed_batches, steps_per_epoch, training_batches

IMAGES = StoredImages(
    [
        np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1) + np.uint8(0),
        np.arange(6, 11, dtype=np.uint8).reshape(5, 1, 1, 1),
    ]
)


def values(batches):
    return [batch.ravel().tolist() for batch in batches]


def test_an_epoch_has_every_image_at_most_once_and_epochs_differ():
    batches = values(training_batches(IMAGES, 5, seed=0, stage=1, first=0, last=4))
    first, second = batches[0] + batches[1], batches[2] + batches[3]
    assert len(set(first)) == len(set(second)) == 10
    assert first != second
    other = values(training_batches(IMAGES, 5, seed=0, stage=2, first=0, last=4))
    assert other != batches


@pytest.mark.parametrize("first", [1, 2, 3, 5])
def test_resuming_in_the_middle_gives_the_same_batches(first):
    whole = values(training_batches(IMAGES, 3, seed=4, stage=2, first=0, last=7))
    assert (
        values(training_batches(IMAGES, 3, seed=4, stage=2, first=first, last=7)) == whole[first:]
    )


def test_fixed_batches_cover_all_images_in_order():
    found = [
        (block.ravel()[:count].tolist(), len(block)) for block, count in fixed_batches(IMAGES, 4)
    ]
    assert found == [([0, 1, 2, 3], 4), ([4, 5, 6, 7], 4), ([8, 9, 10], 4)]


def test_an_error_of_the_reader_reaches_the_caller_and_no_thread_stays():
    class Failing(StoredImages):
        def read(self, indices):
            raise ValueError("file 7 is damaged")

    with refused("file 7 is damaged"):
        next(training_batches(Failing(IMAGES.parts), 2, 0, 1, 0, 9))
    batches = training_batches(IMAGES, 2, 0, 1, 0, 1000)
    next(batches)
    batches.close()
    assert not [t for t in threading.enumerate() if t.name == "msign-images"]


def test_held_out_images_are_not_trained_on():
    split = held_out(IMAGES, 4, seed=1)
    train, valid = (s.read(range(len(s))).ravel().tolist() for s in split)
    assert sorted(train + valid) == list(range(11)) and len(valid) == 4
    again = held_out(IMAGES, 4, seed=1)
    assert again.test.read(range(4)).ravel().tolist() == valid


def test_too_large_a_batch():
    with refused("batch", 11, 12):
        steps_per_epoch(IMAGES, 12)
