"""Files in the formats that people have, whole and damaged; written here byte by byte."""

import gzip
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
from PIL import Image

from helpers import refused
from msign.images import load_images, readers
from msign.images.readers import read_idx
from msign.images.unpickle import read_batch

RNG = np.random.default_rng(3)


def write_idx(path, images, magic=0x803, cut=0):
    header = struct.pack(">4I", magic, *images.shape)
    content = header + images.tobytes()
    content = content[: len(content) - cut]
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as file:
        file.write(content)


def some(n, *shape):
    return RNG.integers(0, 256, (n, *shape), dtype=np.uint8)


def planar(images):
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


# --- idx ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte"),
        ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"),
        ("train-images.idx3-ubyte", "t10k-images.idx3-ubyte.gz"),
    ],
)
def test_mnist(tmp_path, train, test):
    images = some(7, 28, 28), some(3, 28, 28)
    for name, array in zip((train, test), images, strict=True):
        write_idx(tmp_path / name, array)
    split = load_images("mnist", tmp_path)
    assert (len(split.train), len(split.test), split.train.shape) == (7, 3, (28, 28, 1))
    np.testing.assert_array_equal(split.train.read([4, 0])[..., 0], images[0][[4, 0]])
    np.testing.assert_array_equal(split.test.read([2])[..., 0], images[1][[2]])
    padded = load_images("fashion-mnist", tmp_path, pad=32).train.read([5])
    assert padded.shape == (1, 32, 32, 1)
    np.testing.assert_array_equal(padded[0, 2:-2, 2:-2, 0], images[0][5])
    assert padded.sum() == images[0][5].sum()


def test_idx_damaged(tmp_path):
    path = tmp_path / "images"
    write_idx(path, some(4, 5, 5), cut=3)
    with refused(path, "100 bytes", "4 images of 5 x 5", "got 97"):
        read_idx(path)
    write_idx(path, some(4, 5, 5), magic=0x801)
    with refused(path, "0x803", "0x801"):
        read_idx(path)
    path.write_bytes(b"ab")
    with refused(path, "too short", "2 bytes"):
        read_idx(path)
    packed = tmp_path / "images.gz"
    write_idx(packed, some(50, 5, 5))
    packed.write_bytes(packed.read_bytes()[:-40])
    with refused(packed, "not a complete gzip file"):
        read_idx(packed)


# --- CIFAR-10 and small ImageNet ----------------------------------------------------------------


def write_cifar(folder, binary, batches):
    for i, images in enumerate(batches):
        name = "test_batch" if i == 5 else f"data_batch_{i + 1}"
        if binary:
            labels = np.full((len(images), 1), i, np.uint8)
            np.hstack([labels, planar(images)]).tofile(folder / f"{name}.bin")
        else:  # as Python 2 wrote them: protocol 2, names of bytes
            content = {b"data": planar(images), b"labels": [1, 2], b"filenames": [b"a.png"]}
            (folder / name).write_bytes(pickle.dumps(content, protocol=2))


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_cifar10(tmp_path, binary, inside):
    folder = tmp_path / ("cifar-10-batches-bin" if binary else "cifar-10-batches-py")
    folder = folder if inside else tmp_path
    folder.mkdir(exist_ok=True)
    batches = [some(2, 32, 32, 3) for _ in range(6)]
    write_cifar(folder, binary, batches)
    split = load_images("cifar10", tmp_path)
    assert (len(split.train), len(split.test), split.train.shape) == (10, 2, (32, 32, 3))
    everything = np.concatenate(batches[:5])
    np.testing.assert_array_equal(split.train.read([9, 0, 3, 3]), everything[[9, 0, 3, 3]])
    np.testing.assert_array_equal(split.test.read([1]), batches[5][[1]])


def test_cifar10_damaged_or_missing(tmp_path):
    write_cifar(tmp_path, True, [some(2, 32, 32, 3) for _ in range(6)])
    path = tmp_path / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with refused(path, "3073", "6145 bytes"):
        load_images("cifar10", tmp_path)
    path.unlink()
    with refused("data_dir", "data_batch_3.bin", tmp_path):
        load_images("cifar10", tmp_path)


def test_a_pickle_runs_nothing(tmp_path):
    class Harmful:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": Harmful()}))
    with refused(path, "mkdir", "not data"):
        read_batch(path)
    assert not (tmp_path / "ran").exists()
    for harmless in (np.array([{}], object), np.float64(1.0), {1, 2}.union, np.ma.array([1])):
        path.write_bytes(pickle.dumps({"data": harmless}))
        with refused(path):
            read_batch(path)
    path.write_bytes(pickle.dumps([1]))
    with refused(path, "dictionary", "list"):
        read_batch(path)
    path.write_bytes(pickle.dumps({"data": some(3, 9)})[:-20])
    with refused(path, "not a complete pickled batch"):
        read_batch(path)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_arrays_of_every_protocol_are_read(tmp_path, protocol, dtype):
    content = {"data": some(3, 4).astype(dtype), "labels": [1, 2], "name": b"x", "mean": 0.5}
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    found = read_batch(path)
    np.testing.assert_array_equal(found.pop("data"), content.pop("data"))
    assert found == content


@pytest.mark.parametrize("kind", ["pickle", "npz", "compressed"])
def test_imagenet_batches(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(readers, "SPILL_BYTES", 1)
    batches = {"train_data_batch_1": some(3, 32, 32, 3), "train_data_batch_2": some(2, 32, 32, 3)}
    batches["val_data"] = some(2, 32, 32, 3)
    for name, images in batches.items():
        content = {"data": planar(images), "labels": np.arange(len(images))}
        if kind == "pickle":
            (tmp_path / name).write_bytes(pickle.dumps(content))
        else:
            save = np.savez if kind == "npz" else np.savez_compressed
            save(tmp_path / f"{name}.npz", **content)
    split = load_images("imagenet32", tmp_path)
    everything = np.concatenate(list(batches.values())[:2])
    np.testing.assert_array_equal(split.train.read([4, 2]), everything[[4, 2]])
    np.testing.assert_array_equal(split.test.read([0, 1]), batches["val_data"])
    # Nothing of it is held in memory: parts are mapped files.
    assert all(isinstance(part, np.memmap) for part in split.train.parts)
    with refused("12288 bytes", "(64, 64, 3)", "(3, 3072)"):
        load_images("imagenet64", tmp_path)


# --- npz and folders --------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_any_npz(tmp_path, save):
    train, test = some(8, 6, 4, 3), some(2, 6, 4, 3)
    save(tmp_path / "two.npz", x_train=train, x_test=test)
    split = load_images(str(tmp_path / "two.npz"))
    np.testing.assert_array_equal(split.train.read(range(8)), train)
    np.testing.assert_array_equal(split.test.read(range(2)), test)
    save(tmp_path / "one.npz", some(20, 6, 4))
    split = load_images(str(tmp_path / "one.npz"))
    assert (len(split.train), len(split.test), split.train.shape) == (18, 2, (6, 4, 1))


def test_npz_damaged(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, images=some(8, 6).astype(float))
    with refused(path, "images", "unsigned bytes", "float64"):
        load_images(str(path))
    np.savez(path, images=some(8, 6, 4, 9))
    with refused(path, "images", "(8, 6, 4, 9)"):
        load_images(str(path))
    np.savez(path, pictures=some(8, 6, 4))
    with refused(path, "x_train", "images"):
        load_images(str(path))
    np.savez(path, x_train=some(8, 6, 4), x_test=some(8, 4, 6))
    with refused("one shape", "(6, 4, 1)", "(4, 6, 1)"):
        load_images(str(path))
    np.savez(path, images=np.array([{}], object))
    with refused(path):
        load_images(str(path))
    np.savez_compressed(path, images=some(80, 6, 4))
    path.write_bytes(path.read_bytes()[:400])
    with refused(path, "not a complete npz file"):
        load_images(str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00v\x00 nonsense")
    with refused(path, "not a complete npz file"):
        load_images(str(path))


def write_image(path, size, value=0, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (value,) * 3 if mode == "RGB" else value).save(path)


def test_celeba_is_cut_reduced_and_split_as_published(tmp_path):
    faces = tmp_path / "img_align_celeba"
    faces.mkdir()
    for i in range(4):
        face = np.full((218, 178, 3), 250, np.uint8)  # all of this border is cut away
        face[35:183, 15:163] = 40 * i
        Image.fromarray(face).save(faces / f"00000{i + 1}.jpg", quality=100)
    lines = ["000001.jpg 0", "000002.jpg 1", "000003.jpg 0", "000004.jpg 2"]
    (tmp_path / "list_eval_partition.txt").write_text("\n".join(lines))
    for side in (64, 128):
        split = load_images(f"celeba{side}", tmp_path)
        assert (len(split.train), len(split.test)) == (2, 1)
        assert split.train.shape == (side, side, 3)
        # Away from the rim, where the file format smears.
        assert abs(split.train.read([1])[0, 2:-2, 2:-2].astype(int) - 80).max() <= 3
        assert abs(split.test.read([0])[0, 2:-2, 2:-2].astype(int) - 120).max() <= 3


def test_any_folder(tmp_path):
    for i in range(20):
        write_image(tmp_path / "all" / f"class{i % 2}" / f"{i:02d}.png", (8, 6), i)
    split = load_images(str(tmp_path / "all"))
    assert (len(split.train), len(split.test), split.train.shape) == (18, 2, (6, 8, 3))
    values = split.train.read(range(18))[:, 0, 0, 0].tolist()
    values += split.test.read(range(2))[:, 0, 0, 0].tolist()
    assert sorted(values) == list(range(20))
    assert load_images(str(tmp_path / "all"), size=4).train.shape == (4, 4, 3)
    for name, count in (("train", 3), ("val", 2)):
        for i in range(count):
            write_image(tmp_path / "split" / name / f"{i}.png", (4, 4), i, "L")
    split = load_images(str(tmp_path / "split"))
    assert (len(split.train), len(split.test), split.train.shape) == (3, 2, (4, 4, 1))
    assert load_images("imagenet32", tmp_path / "split").test.shape == (32, 32, 1)


def test_folder_damaged(tmp_path):
    for i in range(12):
        write_image(tmp_path / f"{i:02d}.png", (4, 4))
    write_image(tmp_path / "05.png", (4, 5))
    images = load_images(str(tmp_path)).train
    with refused("05.png", "(4, 4, 3)", "(5, 4, 3)", "size"):
        images.read(range(8))
    (tmp_path / "06.png").write_bytes((tmp_path / "07.png").read_bytes()[:40])
    with refused("06.png", "not an image"):
        images.read([6])
    (tmp_path / "empty").mkdir()
    with refused("empty", "must hold image files"):
        load_images(str(tmp_path / "empty"))


# --- names ------------------------------------------------------------------------------------


def test_digits_need_no_files():
    split = load_images("digits")
    assert (len(split.train), len(split.test)) == (1500, 297)
    assert (split.train.shape, split.train.levels) == ((8, 8, 1), 17)
    images = np.concatenate([split.train.read(range(1500)), split.test.read(range(297))])
    assert images.max() == 16 and len(np.unique(images, axis=0)) > 1790


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("nonsense",), ("data must be one of digits, mnist", "nonsense")),
        (("mnist",), ("data_dir", "mnist", "None")),
        (("mnist", "/nowhere"), ("data_dir", "/nowhere")),
        (("digits", None, 16), ("size", 16, "digits")),
        (("digits", None, None, 4), ("pad", 8, 4)),
    ],
)
def test_bad_arguments(arguments, parts):
    with refused(*parts):
        load_images(*arguments)


def test_missing_files_are_named(tmp_path):
    with refused("data_dir", "train-images-idx3-ubyte", "gz", tmp_path):
        load_images("mnist", tmp_path)
    with refused("data_dir", "train_data_batch_1", "val_data", tmp_path):
        load_images("imagenet64", tmp_path)
