"""Files: bit for bit, readable, without pickle, and refused where they do not fit."""

import functools
import io
import json
import zipfile

import equinox as eqx
import jax.random as jr
import numpy as np
import pytest
from flowjax.bijections import Sigmoid

from conformance import PRIORS, laplace
from helpers import identical, in_float32, moved, refused
from msign import GlowConfig, MsIGN, archive

pytestmark = pytest.mark.usefixtures("quick_compilation")
SMALL = GlowConfig(blocks=(1, 2), hidden=4)


@functools.cache
def network(output=None):
    return moved(MsIGN(laplace((4, 4), mean=0.2), 2, SMALL, output=Sigmoid()))


@pytest.fixture
def path(tmp_path):
    network().save(tmp_path / "it.msign")
    return tmp_path / "it.msign"


def rewrite(path, change):
    """Write the archive again with members changed: `change(name, bytes) -> bytes or None`."""
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, content in members.items():
            content = change(name, content)
            if content is not None:
                new.writestr(name, content)


def as_npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def test_the_same_numbers_bit_for_bit(path):
    loaded = MsIGN.load(path)
    assert identical(loaded, network())
    x, log_p = network().sample_and_log_prob(jr.key(0), 3)
    for a, b in zip(loaded.sample_and_log_prob(jr.key(0), 3), (x, log_p), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("name", "conditioning"),
    [
        ("Dense downsampling", "exact"),
        ("Dense 2-D", "nearest"),
        ("Scalar bands 2-D", "exact"),
        ("Scalar bands 2-D", "nearest"),
    ],
)
def test_every_kind_of_prior(name, conditioning, tmp_path):
    it = MsIGN(PRIORS[name](), 2, GlowConfig(blocks=0), conditioning=conditioning)
    it.save(tmp_path / "it")
    assert identical(MsIGN.load(tmp_path / "it"), it)


def test_float32_network(tmp_path):
    it = in_float32(network())
    it.save(tmp_path / "it")
    assert identical(MsIGN.load(tmp_path / "it", like=it), it)
    with refused("another architecture", "float32", "float64"):
        MsIGN.load(tmp_path / "it", like=network())


def test_the_description_is_readable(path):
    with zipfile.ZipFile(path) as file:
        description = json.loads(file.read("description.json"))
    assert description["format"] == archive.FORMAT
    assert description["prior"]["kind"] == "LaplacePrior"
    assert description["prior"]["alpha"] == 0.3
    assert description["flow"]["blocks"] == [1, 2]
    assert description["lattices"] == [[2, 2], [4, 4]]
    assert description["output"] == "Sigmoid"
    assert description["arrays"]["priors/1/std/tree"] == [[16], "float64"]


@pytest.mark.parametrize(
    "change, named",
    [
        (lambda: MsIGN(laplace((4, 4)), 2, GlowConfig((1, 3), 4), output=Sigmoid()), "flow"),
        (lambda: MsIGN(laplace((4, 4)), 1, GlowConfig(2, 4), output=Sigmoid()), "scales"),
        (lambda: MsIGN(laplace((4, 8)), 2, SMALL, output=Sigmoid()), "prior"),
        (lambda: MsIGN(laplace((4, 4)), 2, SMALL), "output"),
        (
            lambda: MsIGN(laplace((4, 4)), 2, SMALL, output=Sigmoid(), conditioning="nearest"),
            "conditioning",
        ),
    ],
)
def test_another_architecture_is_refused(path, change, named):
    with refused(path, "another architecture", named):
        MsIGN.load(path, like=change())


def test_files_of_lattices_that_were_only_halved():
    """Those whose modes have the same order now do not say it, as ever; others are refused."""
    for shape in ((8, 16), (28, 28), (24, 40), (6, 10), (4, 4, 12)):
        assert "pooling" not in laplace(shape).describe()
    prior = laplace((30, 48), "periodic")
    description = prior.describe()
    assert description["pooling"] == [[2, 2], [3, 2], [5, 2]]
    assert identical(archive.rebuild_prior(description, prior.arrays()), prior)
    del description["pooling"]
    with refused("(30, 48)", "another order", "halved"):
        archive.rebuild_prior(description, prior.arrays())


def test_arrays_that_do_not_fit_are_refused(path):
    name = "flows/1/inner/bijection/actnorm/shift"
    rewrite(path, lambda n, b: as_npy(np.zeros(3)) if n == f"{name}.npy" else b)
    with refused(path, "another architecture", name, "(3,)"):
        MsIGN.load(path)
    rewrite(path, lambda n, b: None if n == f"{name}.npy" else b)
    with refused(path, "lacks", name):
        MsIGN.load(path)


def test_nan_parameters_are_neither_written_nor_read(path, tmp_path):
    where = lambda n: n.flows[1].inner.bijection.actnorm.shift  # noqa: E731
    broken = eqx.tree_at(where, network(), where(network()).at[0, 1].set(np.nan))
    with refused("flows/1/inner/bijection/actnorm/shift", "nan", "(0, 1)"):
        broken.save(tmp_path / "broken")
    assert not (tmp_path / "broken").exists()
    bad = as_npy(np.full((2, 4), np.nan))
    rewrite(
        path, lambda n, b: bad if n.endswith("flows/1/inner/bijection/actnorm/shift.npy") else b
    )
    with refused(path, "shift", "nan"):
        MsIGN.load(path)


def test_an_object_array_is_never_unpickled(path):
    evil = as_npy(np.array([print], dtype=object))
    rewrite(path, lambda n, b: evil if n == "prior.mean.npy" else b)
    with refused(path, "prior.mean", "allow_pickle"):
        MsIGN.load(path)


def test_damaged_files_are_refused(path):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with refused(path, "not a file written by msign, or damaged"):
        MsIGN.load(path)
    path.write_bytes(b"something else")
    with refused(path, "not a file written by msign") as caught:
        MsIGN.load(path)
    assert str(caught.value).count("not a file") == 1
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    path.write_bytes(flipped)
    with refused(path):
        MsIGN.load(path)


def test_another_format_is_refused(path):
    def change(name, content):
        if name != "description.json":
            return content
        return json.dumps(json.loads(content) | {"format": 99})

    rewrite(path, change)
    with refused(path, "format 99"):
        MsIGN.load(path)


def test_an_interrupted_write_leaves_the_old_file(path):
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt), archive.atomic_write(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
