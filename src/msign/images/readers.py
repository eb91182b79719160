"""Readers of the files that image data sets come in. Each checks sizes before anything is trained.

Nothing is downloaded: every error says which file was expected and where.
"""

import gzip
import math
import os
import pathlib
import struct
import tempfile
import zipfile
import zlib
from typing import Any

import numpy as np

from msign.images.sets import StoredImages
from msign.images.unpickle import read_batch

IDX_IMAGES = 0x00000803  # magic number of unsigned bytes with three axes
ARRAY_NAMES = ("images", "data", "x", "arr_0")
CIFAR_SHAPE = (32, 32, 3)
SPILL_BYTES = 1 << 28


def existing(folder: pathlib.Path, *names: str) -> pathlib.Path:
    """The first of these files that exists in a folder."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise ValueError(f"data_dir must hold {' or '.join(names)}, got {folder}")


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """Images `(n, height, width, 1)` of an idx file (MNIST's format), compressed or not."""
    opener = gzip.open if os.fspath(path).endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            content = file.read()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a complete gzip file: {error}") from None
    if len(content) < 16:
        raise ValueError(f"{path} is too short for an idx file: {len(content)} bytes")
    magic, n, height, width = struct.unpack(">4I", content[:16])
    if magic != IDX_IMAGES:
        raise ValueError(
            f"{path} must be an idx file of images (begin with {IDX_IMAGES:#x}), got {magic:#x}"
        )
    expected = n * height * width
    if len(content) - 16 != expected:
        raise ValueError(
            f"{path} must have {expected} bytes after its header for {n} images of {height} x "
            f"{width}, got {len(content) - 16}"
        )
    return np.frombuffer(content, np.uint8, offset=16).reshape(n, height, width, 1)


def read_cifar_binary(paths: list[pathlib.Path]) -> StoredImages:
    """CIFAR-10's binary batches: records of a label and 3072 bytes, mapped, not loaded."""
    record = 1 + math.prod(CIFAR_SHAPE)
    for path in paths:
        size = path.stat().st_size
        if size == 0 or size % record:
            raise ValueError(f"{path} must be records of {record} bytes, got {size} bytes")
    parts = [np.memmap(p, np.uint8, "r").reshape(-1, record) for p in paths]
    return StoredImages(parts, planar=CIFAR_SHAPE, skip=1)


def read_planar_batches(paths: list[pathlib.Path], shape: tuple[int, int, int]) -> StoredImages:
    """Batches with an array `data` of one row per image, channel by channel: pickled or npz."""
    parts = []
    for path in paths:
        npz = path.suffix == ".npz"
        array = map_npz(path, "data") if npz else spilled(read_batch(path).get("data"))
        if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
            raise ValueError(f"{path} must hold an array `data` of unsigned bytes")
        if array.ndim != 2 or array.shape[1] != math.prod(shape):
            raise ValueError(
                f"{path} must have rows of {math.prod(shape)} bytes for images of shape {shape}, "
                f"got {array.shape}"
            )
        parts.append(array)
    return StoredImages(parts, planar=shape)


def read_npz(path: pathlib.Path, names: tuple[str, ...] = ARRAY_NAMES) -> StoredImages | None:
    """The first of the named arrays of an npz file as images; None if it has none of them.

    Axes `(n, height, width)` or `(n, height, width, channels)`, or rows of 3 x side x side bytes.
    """
    found = [name for name in names if name in npz_names(path)]
    if not found:
        return None
    array = map_npz(path, found[0])
    if array.dtype != np.uint8:
        raise ValueError(f"{path}: {found[0]} must be of unsigned bytes, got {array.dtype}")
    if array.ndim == 2:
        side = math.isqrt(array.shape[1] // 3)
        if 3 * side**2 == array.shape[1]:
            return StoredImages([array], planar=(side, side, 3))
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or array.shape[-1] > 4:
        raise ValueError(
            f"{path}: {found[0]} must have axes (n, height, width[, channels]) or rows of 3 side "
            f"side bytes, got {array.shape}"
        )
    return StoredImages([array])


def npz_names(path: pathlib.Path) -> list[str]:
    """Names of the arrays in an npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [n[:-4] for n in archive.namelist() if n.endswith(".npy")]
    except (zipfile.BadZipFile, OSError) as error:
        raise ValueError(f"{path} is not a complete npz file: {error}") from None


def map_npz(path: pathlib.Path, name: str) -> np.ndarray:
    """An array of an npz file: mapped where it is stored plainly, unpacked where compressed."""
    try:
        with zipfile.ZipFile(path) as archive:
            entry = archive.getinfo(f"{name}.npy")
            if entry.compress_type == zipfile.ZIP_STORED:
                return _map_member(path, entry)
            with archive.open(entry) as member:
                return spilled(np.lib.format.read_array(member, allow_pickle=False))
    except KeyError:
        raise ValueError(f"{path} must hold an array {name!r}, got {npz_names(path)}") from None
    except (zipfile.BadZipFile, ValueError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is not a complete npz file: {error}") from None


def spilled(array: Any) -> Any:
    """A large array in an unnamed, mapped file, so that many of them need no memory."""
    if not isinstance(array, np.ndarray) or array.nbytes < SPILL_BYTES:
        return array
    with tempfile.TemporaryFile(prefix="msign-") as file:
        mapped = np.memmap(file, array.dtype, "w+", shape=array.shape)
        mapped[:] = array
        mapped.flush()
        return mapped


def _map_member(path: pathlib.Path, entry: zipfile.ZipInfo) -> np.ndarray:
    """The array of a member that is stored without compression, without reading it."""
    with open(path, "rb") as file:
        file.seek(entry.header_offset + 26)  # lengths of name and extra field in the local header
        name_length, extra_length = struct.unpack("<2H", file.read(4))
        file.seek(entry.header_offset + 30 + name_length + extra_length)
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0
        header = read(file) if version == (1, 0) else np.lib.format.read_array_header_2_0(file)
        shape, fortran, dtype = header
        if dtype.hasobject:
            raise ValueError(f"{entry.filename} holds Python objects")
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")
