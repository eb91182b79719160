"""Batches of a data set, read ahead of the training step by a thread of their own.

The order of an epoch depends on seed, stage and epoch only, so that a run that is resumed in the
middle of an epoch sees the images it would have seen.
"""

import queue
import threading
from collections.abc import Generator, Iterator

import numpy as np

from msign.images.sets import ImageSet

AHEAD = 4


def order_of_epoch(n: int, seed: int, stage: int, epoch: int) -> np.ndarray:
    """A permutation of n images."""
    return np.random.default_rng([seed, stage, epoch]).permutation(n)


def steps_per_epoch(images: ImageSet, batch: int) -> int:
    """Whole batches in an epoch; what is left over changes from epoch to epoch."""
    if batch > len(images):
        raise ValueError(f"batch must be at most the {len(images)} training images, got {batch}")
    return len(images) // batch


def indices_of_step(n: int, batch: int, seed: int, stage: int, first: int) -> Iterator[np.ndarray]:
    """Indices of the batches from step `first` of a stage on, without end."""
    per_epoch = n // batch
    epoch, within = divmod(first, per_epoch)
    while True:
        order = order_of_epoch(n, seed, stage, epoch)
        for i in range(within, per_epoch):
            yield np.sort(order[i * batch : (i + 1) * batch])
        epoch, within = epoch + 1, 0


def training_batches(
    images: ImageSet, batch: int, seed: int, stage: int, first: int, last: int
) -> Generator[np.ndarray, None, None]:
    """Batches of steps `first` to `last` - 1 of a stage, read ahead."""
    chosen = indices_of_step(len(images), batch, seed, stage, first)
    return read_ahead(images, (next(chosen) for _ in range(first, last)))


def read_ahead(
    images: ImageSet, indices: Iterator[np.ndarray]
) -> Generator[np.ndarray, None, None]:
    """The images of each entry of `indices`, at most `AHEAD` of them waiting."""
    waiting: queue.Queue[np.ndarray | BaseException | None] = queue.Queue(AHEAD)
    stopped = threading.Event()

    def put(item: np.ndarray | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                waiting.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for chosen in indices:
                if not put(images.read(chosen)):
                    return
            put(None)
        except BaseException as error:  # whatever it is belongs to the reader of the batches
            put(error)

    thread = threading.Thread(target=work, name="msign-images", daemon=True)
    thread.start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()


def fixed_batches(images: ImageSet, batch: int) -> Iterator[tuple[np.ndarray, int]]:
    """All images in order, in batches of one size; the second entry says how many are meant.

    The last batch is filled up with repetitions, so that one compiled function serves all.
    """
    starts = range(0, len(images), batch)
    chosen = (np.arange(s, s + batch) % len(images) for s in starts)
    for s, block in zip(starts, read_ahead(images, chosen), strict=True):
        yield block, min(batch, len(images) - s)
