"""Image sets: a number of images of one shape, read by index.

A set never has to fit in memory: stored arrays may be memory-mapped, and the images of a folder
are decoded when they are asked for. What trains only ever calls `read`.
"""

import concurrent.futures
import functools
import os
import pathlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from msign import checks

MAX_DECODERS = 8
GREY_MODES = ("1", "L")


class ImageSet(ABC):
    """Images of one shape.

    Attributes:
        shape: Height, width and channels.
        levels: Number of grey levels; values are 0, ..., levels - 1.
    """

    shape: tuple[int, int, int]
    levels: int = 256

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """The images `(n, height, width, channels)` of these indices, as unsigned bytes."""


class Split(NamedTuple):
    """Images to learn from and images held out; the second are never trained on."""

    train: ImageSet
    test: ImageSet


class StoredImages(ImageSet):
    """Images in one or more arrays, in memory or mapped.

    Args:
        parts: Arrays of bytes `(n, height, width, channels)`; with `planar`, `(n, channels *
            height * width)` or wider, channel by channel, as CIFAR and small ImageNet have it.
        levels: Number of grey levels.
        planar: Shape of one image where it is stored channel by channel.
        skip: Bytes before each planar image (CIFAR's label).
    """

    def __init__(
        self,
        parts: Sequence[np.ndarray],
        levels: int = 256,
        planar: tuple[int, int, int] | None = None,
        skip: int = 0,
    ):
        self.parts = [p for p in parts if len(p)]
        if not self.parts:
            raise ValueError("parts must hold at least one image")
        self.levels = levels
        self.planar = planar
        self.skip = skip
        self.shape = planar or tuple(self.parts[0].shape[1:])
        self.starts = np.cumsum([0] + [len(p) for p in self.parts])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def read(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        indices = np.asarray(indices)
        images = np.empty((len(indices), *self.shape), np.uint8)
        owner = np.searchsorted(self.starts, indices, side="right") - 1
        for i in np.unique(owner):
            where = np.flatnonzero(owner == i)
            rows = self.parts[i][indices[where] - self.starts[i]]
            if self.planar is not None:
                h, w, c = self.planar
                rows = rows[:, self.skip : self.skip + h * w * c].reshape(-1, c, h, w)
                rows = rows.transpose(0, 2, 3, 1)
            images[where] = rows
        return images


class FolderImages(ImageSet):
    """Image files, decoded when read, by several threads.

    Args:
        paths: The files.
        side: Side of the square that each is cut and reduced to; None: all have one shape already.
        crop: Side of the centre square to cut before reducing; None: the largest.
        colour: Three channels, or one; None: as the first file has it.
    """

    def __init__(
        self,
        paths: Sequence[pathlib.Path],
        side: int | None = None,
        crop: int | None = None,
        colour: bool | None = None,
    ):
        if not paths:
            raise ValueError("paths must hold at least one image file")
        self.paths = list(paths)
        self.side, self.crop = side, crop
        self.colour = _open(self.paths[0]).mode not in GREY_MODES if colour is None else colour
        self.shape = self._decode(self.paths[0]).shape

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        chosen = [self.paths[int(i)] for i in indices]
        images = list(_decoders().map(self._decode, chosen))
        for path, image in zip(chosen, images, strict=True):
            if image.shape != self.shape:
                raise ValueError(
                    f"{path} must have shape {self.shape} like the first image of its folder, got "
                    f"{image.shape}; give a size to cut and reduce all of them"
                )
        return np.stack(images)

    def _decode(self, path: pathlib.Path) -> np.ndarray:
        image = _open(path).convert("RGB" if self.colour else "L")
        if self.side is not None:
            cut = min(*image.size, self.crop or max(image.size))
            left, top = (image.width - cut) // 2, (image.height - cut) // 2
            image = image.crop((left, top, left + cut, top + cut))
            image = image.resize((self.side, self.side), Image.Resampling.BOX)
        array = np.asarray(image, np.uint8)
        return array if self.colour else array[..., None]


class Subset(ImageSet):
    """Some images of a set."""

    def __init__(self, images: ImageSet, indices: Sequence[int] | np.ndarray):
        self.images, self.indices = images, np.asarray(indices)
        self.shape, self.levels = images.shape, images.levels

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        return self.images.read(self.indices[np.asarray(indices)])


class Padded(ImageSet):
    """Images with a border of zeros up to a side, the image in the middle."""

    def __init__(self, images: ImageSet, side: int):
        h, w, c = images.shape
        checks.integer("pad", side, max(h, w))
        self.images, self.levels = images, images.levels
        self.shape = (side, side, c)
        top, left = (side - h) // 2, (side - w) // 2
        self.border = ((0, 0), (top, side - h - top), (left, side - w - left), (0, 0))

    def __len__(self) -> int:
        return len(self.images)

    def read(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        return np.pad(self.images.read(indices), self.border)


def held_out(images: ImageSet, count: int, seed: int) -> Split:
    """The set without `count` images chosen at random, and these."""
    checks.integer("held-out images", count, 1, len(images) - 1)
    order = np.random.default_rng(seed).permutation(len(images))
    return Split(Subset(images, np.sort(order[count:])), Subset(images, np.sort(order[:count])))


def _open(path: pathlib.Path) -> Image.Image:
    """A decoded image file."""
    try:
        with Image.open(path) as file:
            file.load()
            return file
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"{path} is not an image that can be read: {error}") from None


@functools.cache
def _decoders() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(min(MAX_DECODERS, os.cpu_count() or 1))
