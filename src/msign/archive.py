"""Saving and loading modules without pickle: a zip file of arrays and a readable description.

The file holds `description.json` (what the thing is, and shape and type of each array) and one
`.npy` member per array. It is written under a temporary name and renamed when complete. Loading
never runs code from the file: the structure comes from the description or from a template, and
every array is checked against it.
"""

import contextlib
import dataclasses
import io
import json
import os
import struct
import tempfile
import zipfile
from collections.abc import Iterable
from typing import Any, TypeVar

import equinox as eqx
import flowjax.bijections as flowjax_bijections
import jax
import numpy as np
import paramax
from jaxtyping import PyTree

from msign import checks
from msign.bijections import GlowConfig
from msign.devices import writes_files
from msign.noise import as_array
from msign.priors import DensePrior, LaplacePrior, Prior, ScalarPrior, SpectralPrior

FORMAT = 1
OUTPUTS = ("Identity", "Sigmoid", "Tanh", "SoftPlus", "Exp")
T = TypeVar("T")

# What Python's reader of zip files raises for damaged ones, beside its own error.
DAMAGE = (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError, struct.error)


def save(
    path: str | os.PathLike[str],
    module: PyTree,
    description: dict[str, Any],
    extra: dict[str, np.ndarray] | None = None,
    finite: bool = True,
) -> None:
    """Write all arrays of a module, and of `extra`, with their description.

    Entries that are not finite are refused unless `finite` is False.
    """
    arrays = _arrays(module) | (extra or {})
    if finite:
        for name, array in arrays.items():
            checks.finite_entries(name, array)
    listing = {name: [list(a.shape), str(a.dtype)] for name, a in arrays.items()}
    text = json.dumps({"format": FORMAT, **description, "arrays": listing}, indent=1)
    with atomic_write(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("description.json", text)
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            archive.writestr(f"{name}.npy", buffer.getvalue())


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Any:
    """A binary file that takes its name only when the block has ended without an error.

    Of several processes that work together one writes.
    """
    if not writes_files():
        yield io.BytesIO()
        return
    path = os.fspath(path)
    folder = os.path.dirname(path) or "."
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=os.path.basename(path) + ".", dir=folder)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            raise OSError(
                f"{path} could not be written, what it held before is intact: {error}"
            ) from error
        raise


def read_description(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The description in a file, and its arrays named `prior.*`."""
    with _opened(path) as archive:
        try:
            description = json.loads(archive.read("description.json"))
            names = [n for n in archive.namelist() if n.startswith("prior.")]
            given = {n[6:-4]: _read(archive, n) for n in names}
            checks.instance("description.json", description, dict)
        except (*DAMAGE, KeyError, RecursionError) as error:
            raise ValueError(
                f"{path} is not a file written by msign, or damaged: {error}"
            ) from None
    if description.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {description.get('format')!r}, this version reads {FORMAT}"
        )
    return description, given


def read_arrays(path: str | os.PathLike[str], names: Iterable[str]) -> dict[str, np.ndarray]:
    """Arrays of these names in a file, of whatever shape and type."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: _read(archive, f"{name}.npy") for name in names}
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a file written by msign, or damaged: {error}") from None


def load(path: str | os.PathLike[str], like: T, finite: bool = True) -> T:
    """A copy of `like` with the arrays of a file; names, shapes and types must be the same.

    Entries that are not finite are refused unless `finite` is False.
    """
    expected = _arrays(like)
    with _opened(path) as archive:
        names = {n[:-4] for n in archive.namelist() if n.endswith(".npy")}
        stored = {n for n in names if not n.startswith("prior.")}
        missing, surplus = sorted(set(expected) - stored), sorted(stored - set(expected))
        if missing or surplus:
            what = f"lacks {missing[0]}" if missing else f"has an unknown array {surplus[0]}"
            raise ValueError(f"{path} is of another architecture: it {what}")
        try:
            arrays = {name: _read(archive, f"{name}.npy") for name in expected}
        except DAMAGE as error:
            raise ValueError(f"{path} is damaged: {error}") from None
    for name, array in arrays.items():
        want = expected[name]
        if array.shape != want.shape or array.dtype != want.dtype:
            raise ValueError(
                f"{path} is of another architecture: {name} is {array.dtype}{array.shape}, "
                f"expected {want.dtype}{want.shape}"
            )
        if finite:
            checks.finite_entries(f"{path}: {name}", array)
    ordered = iter(arrays.values())

    def restored(leaf: Any) -> Any:
        if not _is_array(leaf):
            return leaf
        array = next(ordered)
        return array if isinstance(leaf, np.ndarray) else as_array(array)

    return jax.tree.map(restored, like)


def rebuild(cls: Any, path: Any, description: dict[str, Any], given: dict[str, np.ndarray]) -> Any:
    """A network of the described architecture, with initial weights."""
    if description["flow"] is None:
        raise ValueError(f"{path} holds flows of its maker's own: pass a network as `like`")
    if description["output"] not in OUTPUTS:
        raise ValueError(f"{path} has an output activation {description['output']!r}: pass `like`")
    output = getattr(flowjax_bijections, description["output"])()
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in description["flow"].items()
    }
    return cls(
        rebuild_prior(description["prior"], given),
        description["scales"],
        GlowConfig(**options),
        conditioning=description["conditioning"],
        output=output,
    )


def rebuild_prior(description: dict[str, Any], arrays: dict[str, np.ndarray]) -> Prior:
    """The prior that `describe` and `arrays` describe."""
    prior = _constructed_prior(description, arrays)
    check_order(prior, description)
    return prior


def check_order(prior: Prior, description: dict[str, Any]) -> None:
    """Refuse a file of flows that move the prior's whitened coordinates in another order."""
    if prior.describe().get("pooling") != description.get("pooling"):
        raise ValueError(
            f"prior on shape {prior.lattice.shape} has its modes in another order than this file, "
            f"which was written when sides were only halved: run it again"
        )


def _constructed_prior(description: dict[str, Any], arrays: dict[str, np.ndarray]) -> Prior:
    kind, shape = description["kind"], tuple(description["shape"])
    channels, mean = description["channels"], arrays["mean"]
    if kind == "LaplacePrior":
        names = ("alpha", "beta", "boundary", "kappa")
        given = {name: description[name] for name in names}
        extent = tuple(description["extent"])
        return LaplacePrior(shape, **given, mean=mean, extent=extent, channels=channels)
    if kind == "SpectralPrior":
        return SpectralPrior(shape, arrays["variances"], description["boundary"], mean, channels)
    if kind == "DensePrior":
        count = description["downsampling"]
        matrices = None if count is None else [arrays[f"downsampling{i}"] for i in range(count)]
        return DensePrior(arrays["covariance"], shape, mean, channels, matrices)
    if kind == "ScalarPrior":
        mu = [arrays[f"mu{l}"] for l in range(2, description["scales"] + 1)]
        return ScalarPrior(shape, mu, description["std"], mean, channels)
    raise ValueError(f"prior of kind {kind!r} is not known: pass a network as `like`")


def check_same(path: Any, expected: dict[str, Any], found: dict[str, Any]) -> None:
    """Refuse a description that differs from the expected one, naming the first difference."""
    for name, value in json.loads(json.dumps(expected)).items():
        if found.get(name) != value:
            raise ValueError(
                f"{path} is of another architecture: {name} is "
                f"{checks.shortened(found.get(name), 200)}, expected {checks.shortened(value, 200)}"
            )


def describe_config(config: GlowConfig | None) -> dict[str, Any] | None:
    """Flow hyper-parameters as plain JSON values."""
    return None if config is None else dataclasses.asdict(config)


def describe_flow(flow: Any) -> str:
    """A flow in words: nested class names."""
    inner = getattr(flow, "inner", None) or getattr(flow, "bijection", None)
    name = type(flow).__name__
    return name if inner is None else f"{name}({describe_flow(inner)})"


def count_parameters(module: PyTree) -> int:
    """Number of trainable parameters: floating-point entries not marked as fixed."""
    leaves = jax.tree.leaves(module, is_leaf=lambda leaf: isinstance(leaf, paramax.NonTrainable))
    return sum(leaf.size for leaf in leaves if eqx.is_inexact_array(leaf))


def _arrays(module: PyTree) -> dict[str, np.ndarray]:
    """All arrays of a module by their path, in the order of its leaves."""
    leaves = jax.tree_util.tree_leaves_with_path(module)
    return {
        "/".join(_part(key) for key in path): np.asarray(leaf)
        for path, leaf in leaves
        if _is_array(leaf)
    }


def _is_array(leaf: Any) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, np.ndarray)


def _part(key: Any) -> str:
    for attribute in ("name", "idx", "key"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _opened(path: str | os.PathLike[str]) -> zipfile.ZipFile:
    """A file of ours, whose members are stored as they are: a small one cannot hold large ones."""
    try:
        archive = zipfile.ZipFile(path)
    except DAMAGE as error:
        raise ValueError(f"{path} is not a file written by msign, or damaged: {error}") from None
    for member in archive.infolist():
        if member.compress_type != zipfile.ZIP_STORED:
            archive.close()
            raise ValueError(f"{path} is not a file written by msign: {member.filename} is packed")
    return archive


def _read(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    try:
        return np.load(io.BytesIO(archive.read(name)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{name}: {error}") from None
