"""Damaged and malicious run directories, shown, sampled, listed, reported: errors must be clean.

    python bench/fuzz.py [--times 1000] [--seed 0] [--reported 10]

Every trial damages one file of a small finished run and gives the directory to `msign show`,
`msign sample` and `msign runs`, one in ten of them to `msign report`, too, which takes seconds to
draw where it draws at all. A clean end is success, or one line that begins with `error:` and
exit code 1. Anything else, a file that code in the directory left behind above all, is printed.
"""

import argparse
import copy
import io
import json
import os
import pathlib
import pickle
import random
import shutil
import signal
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from typer.testing import CliRunner

import msign
from msign.cli import app

FILES = (
    "summary.json",
    "config.json",
    "posterior.json",
    "environment.json",
    "problem.json",
    "prior.npz",
    "stage_1.npz",
    "stage_2.npz",
    "predictive.npz",
    "known.npz",
)
VALUES = (None, True, -1, 0, 7, 10**5, 2**63, 0.5, 1e308, float("nan"), "", "\x1b[2J", [], {}, [[]])
SECONDS = 120  # that a command may take
Mutation = Callable[[pathlib.Path, random.Random, pathlib.Path], None]


def make_run(out: pathlib.Path) -> None:
    """A small finished run of two stages."""
    config = msign.FitConfig(steps=20, rounds=1, round_size=100, certificate=100)
    problem = msign.problems.synthetic(size=4)
    msign.fit(problem, 1000, 0, out, progress=False, config=config, report=False)
    origin = {"problem": "synthetic", "options": {"size": 4}}
    (out / "problem.json").write_text(json.dumps(origin))


# --- mutations ------------------------------------------------------------------------------------


def flip_bytes(path: pathlib.Path, rng: random.Random, canary: pathlib.Path) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 4, 64))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    path.write_bytes(data)


def truncate(path: pathlib.Path, rng: random.Random, canary: pathlib.Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def cut_or_repeat(path: pathlib.Path, rng: random.Random, canary: pathlib.Path) -> None:
    data = path.read_bytes()
    a, b = sorted(rng.randrange(len(data)) for _ in range(2))
    path.write_bytes(data[:b] + data[a:] if rng.random() < 0.5 else data[:a] + data[b:])


def take_away(path: pathlib.Path, rng: random.Random, canary: pathlib.Path) -> None:
    path.unlink()
    if rng.random() < 0.3:
        path.mkdir()


def change_value(path: pathlib.Path, rng: random.Random, canary: pathlib.Path) -> None:
    """Another value somewhere in the JSON, of another type as likely as not."""
    if path.suffix == ".json":
        path.write_text(json.dumps(_changed(json.loads(path.read_text()), rng)))
        return
    members = _members(path)
    description = json.loads(members["description.json"])
    members["description.json"] = json.dumps(_changed(description, rng)).encode()
    _pack(path, members)


def deep_json(path: pathlib.Path, rng: random.Random, canary: pathlib.Path) -> None:
    text = "[" * 100_000
    if path.suffix == ".json":
        path.write_text(text)
    else:
        _pack(path, {**_members(path), "description.json": text.encode()})


def bad_array(path: pathlib.Path, rng: random.Random, canary: pathlib.Path) -> None:
    """An array of another shape or type, one that unpickles, one whose header lies."""
    if path.suffix == ".json":
        return change_value(path, rng, canary)
    members = _members(path)
    name = rng.choice([n for n in members if n.endswith(".npy")])
    buffer = io.BytesIO()
    kind = rng.randrange(4)
    if kind == 0:
        np.save(buffer, np.array([_Harmful(str(canary))], object), allow_pickle=True)
    elif kind == 1:
        buffer.write(pickle.dumps(_Harmful(str(canary))))
    elif kind == 2:
        np.save(buffer, np.full(rng.choice([(3,), (2, 2), ()]), np.nan))
    else:
        np.save(buffer, np.zeros(3))
        buffer = io.BytesIO(buffer.getvalue().replace(b"(3,)", b"(9999999999999,)"))
    members[name] = buffer.getvalue()
    return _pack(path, members)


def odd_archive(path: pathlib.Path, rng: random.Random, canary: pathlib.Path) -> None:
    """Packed members, members with paths, members of code."""
    if path.suffix == ".json":
        return change_value(path, rng, canary)
    members = _members(path)
    code = f"open({str(canary)!r}, 'w')".encode()
    extra = {f"../{canary.name}": b"x", "__init__.py": code, "prior.x.npy": code}
    name = rng.choice(list(extra))
    return _pack(path, {**members, name: extra[name]}, rng.choice((0, zipfile.ZIP_DEFLATED)))


MUTATIONS: tuple[Mutation, ...] = (
    flip_bytes,
    truncate,
    cut_or_repeat,
    take_away,
    change_value,
    change_value,
    change_value,
    deep_json,
    bad_array,
    odd_archive,
)


class _Harmful:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def _changed(value: Any, rng: random.Random) -> Any:
    """The value with one change somewhere inside."""
    value = copy.deepcopy(value)
    at = value
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return rng.choice(VALUES)
        key = rng.choice(keys)
        if isinstance(at[key], dict | list) and at[key] and rng.random() < 0.7:
            at = at[key]
            continue
        if rng.random() < 0.3:
            del at[key]
        else:
            at[key] = rng.choice(VALUES)
        return value


def _members(path: pathlib.Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _pack(path: pathlib.Path, members: dict[str, bytes], compression: int = 0) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


# --- trials ---------------------------------------------------------------------------------------


def faults(
    whole: pathlib.Path, folder: pathlib.Path, rng: random.Random, reported: bool
) -> tuple[str, list[str]]:
    """What was done to a copy of a run, and what was not clean about what commands made of it."""
    run, canary = folder / "run", folder / "canary"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(whole, run)
    name, mutation = rng.choice(FILES), rng.choice(MUTATIONS)
    mutation(run / name, rng, canary)
    found = []
    commands = [
        ["show", str(run)],
        ["sample", str(run), "-n", "3", "-o", str(folder / "x.npy")],
        ["runs", str(folder)],
    ]
    for arguments in commands + [["report", str(run)]] * reported:
        signal.alarm(SECONDS)
        result = CliRunner().invoke(app, arguments)
        signal.alarm(0)
        text = result.output
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            found.append(f"{arguments[0]}: {type(result.exception).__name__} {result.exception}")
        elif result.exit_code not in (0, 1) or "Traceback" in text or "\x1b[2J" in text:
            found.append(f"{arguments[0]}: exit {result.exit_code} {text[-300:]}")
        elif result.exit_code == 1 and not text.startswith("error: "):
            found.append(f"{arguments[0]}: {text[-300:]}")
    if canary.exists():
        found.append("CODE OF THE DIRECTORY WAS RUN")
        canary.unlink()
    return f"{mutation.__name__} of {name}", found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reported", type=int, default=10, help="One in how many has a page.")
    options = parser.parse_args()
    os.environ["MSIGN_CACHE"] = "off"
    kinds: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_run(folder.parent / f"{folder.name}-whole")
        whole = folder.parent / f"{folder.name}-whole"
        try:
            for i in range(options.times):
                rng = random.Random(f"{options.seed} {i}")
                what, found = faults(whole, folder, rng, i % options.reported == 0)
                kinds["clean" if not found else "NOT CLEAN"] += 1
                for text in found:
                    print(f"{i}: {what}: {text}", flush=True)
        finally:
            shutil.rmtree(whole)
    print(f"{options.times} mutated files: " + ", ".join(f"{n} {k}" for k, n in kinds.items()))


if __name__ == "__main__":
    main()
