"""Data sets by name: which files each one has, and what is train and what is test."""

import os
import pathlib
from collections.abc import Callable

import numpy as np

from msign import checks
from msign.images.readers import (
    CIFAR_SHAPE,
    existing,
    read_cifar_binary,
    read_idx,
    read_npz,
    read_planar_batches,
)
from msign.images.sets import FolderImages, ImageSet, Padded, Split, StoredImages, held_out

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
CELEBA_CROP = 148  # the usual centre square of aligned 178 x 218 faces
DIGITS_TEST = 297
TRAIN_FOLDERS = ("train", "train_32x32", "train_64x64")
TEST_FOLDERS = ("test", "val", "valid", "valid_32x32", "valid_64x64")


def load_images(
    data: str,
    data_dir: str | os.PathLike[str] | None = None,
    size: int | None = None,
    pad: int | None = None,
) -> Split:
    """Train and test images of a data set.

    Args:
        data: A name of `NAMES`, or the path of an npz file or of a folder of images.
        data_dir: Folder of the files of a named data set (`digits` needs none).
        size: Side to which the images of a folder are cut and reduced.
        pad: Side up to which images get a border of zeros (32 for MNIST with three scales).
    """
    if size is not None:
        checks.integer("size", size, 2, 4096)
    if data in NAMES:
        split = NAMES[data](_folder(data, data_dir))
        if size is not None and split.train.shape[:2] != (size, size):
            raise ValueError(f"size is an option of folders of images, got {size} for {data}")
    else:
        path = pathlib.Path(data)
        if path.is_dir():
            split = _any_folder(path, size)
        elif path.suffix == ".npz" and path.is_file():
            split = _any_npz(path)
        else:
            known = ", ".join(NAMES)
            raise ValueError(
                f"data must be one of {known}, or an npz file or folder that exists, got {data!r}"
            )
    if split.train.shape != split.test.shape:
        raise ValueError(
            f"train and test images must have one shape, got {split.train.shape} and "
            f"{split.test.shape}"
        )
    return split if pad is None else Split(Padded(split.train, pad), Padded(split.test, pad))


def _folder(data: str, data_dir: str | os.PathLike[str] | None) -> pathlib.Path:
    if data == "digits":
        return pathlib.Path()
    if data_dir is None:
        raise ValueError(f"data_dir must name the folder with the files of {data}, got None")
    folder = pathlib.Path(data_dir)
    if not folder.is_dir():
        raise ValueError(f"data_dir must be a folder that exists, got {folder}")
    return folder


def _digits(_: pathlib.Path) -> Split:
    """1797 handwritten digits of 8 x 8 pixels with 17 grey levels, shipped with scikit-learn."""
    from sklearn.datasets import load_digits

    images = load_digits().images.astype(np.uint8)[..., None]
    return held_out(StoredImages([images], levels=17), DIGITS_TEST, seed=0)


def _idx(folder: pathlib.Path) -> Split:
    stored = []
    for stem in ("train", "t10k"):
        names = [f"{stem}-images-idx3-ubyte", f"{stem}-images.idx3-ubyte"]
        path = existing(folder, *names, *(f"{name}.gz" for name in names))
        stored.append(StoredImages([read_idx(path)]))
    return Split(*stored)


def _cifar10(folder: pathlib.Path) -> Split:
    for inner in ("cifar-10-batches-bin", "cifar-10-batches-py"):
        folder = folder / inner if (folder / inner).is_dir() else folder
    names = [f"data_batch_{i}" for i in range(1, 6)]
    paths = [existing(folder, f"{n}.bin", n) for n in names]
    test = existing(folder, "test_batch.bin", "test_batch")

    def read(files: list[pathlib.Path]) -> ImageSet:
        if files[0].suffix == ".bin":
            return read_cifar_binary(files)
        return read_planar_batches(files, CIFAR_SHAPE)

    return Split(read(paths), read([test]))


def _imagenet(side: int) -> Callable[[pathlib.Path], Split]:
    def load(folder: pathlib.Path) -> Split:
        batches = sorted(folder.glob("train_data_batch_*"))
        if not batches:
            if any((folder / name).is_dir() for name in TRAIN_FOLDERS):
                return _any_folder(folder, side)
            raise ValueError(
                f"data_dir must hold train_data_batch_1[.npz], ... and val_data[.npz], or folders "
                f"train and val of images, got {folder}"
            )
        shape = (side, side, 3)
        test = existing(folder, "val_data.npz", "val_data")
        return Split(read_planar_batches(batches, shape), read_planar_batches([test], shape))

    return load


def _celeba(side: int) -> Callable[[pathlib.Path], Split]:
    """Aligned faces; the published partition where its file is there, else the last tenth."""

    def load(folder: pathlib.Path) -> Split:
        inner = folder / "img_align_celeba"
        paths = _image_files(inner if inner.is_dir() else folder)
        listing = folder / "list_eval_partition.txt"
        if listing.is_file():
            part = dict(line.split()[:2] for line in listing.read_text().splitlines() if line)
            train = [p for p in paths if part.get(p.name) == "0"]
            test = [p for p in paths if part.get(p.name) == "2"]
            if not train or not test:
                raise ValueError(f"{listing} names no training or no test images of {folder}")
        else:
            train, test = _last_tenth(paths)
        return Split(FolderImages(train, side, CELEBA_CROP), FolderImages(test, side, CELEBA_CROP))

    return load


def _any_folder(folder: pathlib.Path, size: int | None) -> Split:
    """A folder with folders `train` and `test`, or with images of which the last tenth is held out.

    With two or more folders of other names (one per class, say) images are sought below them.
    """
    train = [folder / n for n in TRAIN_FOLDERS if (folder / n).is_dir()]
    test = [folder / n for n in TEST_FOLDERS if (folder / n).is_dir()]
    if train and test:
        return Split(
            FolderImages(_image_files(train[0]), size), FolderImages(_image_files(test[0]), size)
        )
    first, last = _last_tenth(_image_files(folder))
    return Split(FolderImages(first, size), FolderImages(last, size))


def _any_npz(path: pathlib.Path) -> Split:
    train = read_npz(path, ("train", "x_train", "train_images"))
    test = read_npz(path, ("test", "x_test", "test_images"))
    if train is not None and test is not None:
        return Split(train, test)
    images = read_npz(path)
    if images is None:
        raise ValueError(
            f"{path} must hold arrays `x_train` and `x_test`, or one array `images` or `data`"
        )
    return held_out(images, max(1, len(images) // 10), seed=0)


def _image_files(folder: pathlib.Path) -> list[pathlib.Path]:
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)
    if len(paths) < 2:
        raise ValueError(
            f"{folder} must hold image files ({', '.join(SUFFIXES)}), got {len(paths)}"
        )
    return paths


def _last_tenth(paths: list[pathlib.Path]) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    count = max(1, len(paths) // 10)
    return paths[:-count], paths[-count:]


NAMES: dict[str, Callable[[pathlib.Path], Split]] = {
    "digits": _digits,
    "mnist": _idx,
    "fashion-mnist": _idx,
    "cifar10": _cifar10,
    "celeba64": _celeba(64),
    "celeba128": _celeba(128),
    "imagenet32": _imagenet(32),
    "imagenet64": _imagenet(64),
}
