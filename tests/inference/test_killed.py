"""Runs that end early, at any moment: killed by the system, a disk that takes no more."""

import errno
import functools
import json
import os
import pathlib
import random
import resource
import subprocess
import sys
import time

import numpy as np
import pytest

from conformance import FLOWS, METHODS
from helpers import Killed, killed_after, refused, seeded
from inference.small import growing_problem, inflated, ring_problem
from msign import FitConfig, Posterior, fit
from msign.experiments.run import read_summary
from msign.inference.files import FitFiles

pytestmark = pytest.mark.usefixtures("quick_compilation")

BUDGET = 3000
PROBLEMS = {
    "two scales": growing_problem(),
    "inflated": inflated(growing_problem(), 30),
    "one scale": ring_problem(),
}
X = {
    name: np.random.default_rng(seeded(1)).normal(size=(20, p.dim)) for name, p in PROBLEMS.items()
}


def config_of(method: str = "Pool", flow: str = "Informed", rounds: int = 3) -> FitConfig:
    return FitConfig(
        flow=FLOWS[flow],
        method=METHODS[method],
        round_size=150,
        rounds=rounds,
        tolerance=1e-9,
        bridge_ess=1 - 1e-9,
        patience=9,
    )


def run(name: str, config: FitConfig, out=None, resume: bool = False) -> Posterior:
    return fit(PROBLEMS[name], BUDGET, seeded(5), out, resume, False, config, report=False)


@functools.cache
def uninterrupted(name: str, config: FitConfig) -> Posterior:
    return run(name, config)


def plain(records):
    """Records and stages but for the time that they took."""
    return [{k: v for k, v in r.items() if k != "seconds"} for r in records]


def assert_same(found: Posterior, name: str, config: FitConfig) -> None:
    """To the last bit, as if nothing had happened."""
    whole = uninterrupted(name, config)
    assert found.nfs == whole.nfs
    np.testing.assert_array_equal(found.log_prob(X[name]), whole.log_prob(X[name]))
    for scale in whole.scales:
        a, b = found.certificates[scale], whole.certificates[scale]
        np.testing.assert_array_equal(a.log_weights, b.log_weights)
        np.testing.assert_array_equal(a.coordinates, b.coordinates)
        assert a[2:] == b[2:]
    np.testing.assert_equal(plain(found.records), plain(whole.records))
    np.testing.assert_equal(plain(found.stages), plain(whole.stages))


@pytest.mark.parametrize(
    ("method", "flow"),
    [
        ("Pool", "Informed"),
        ("Emulator", "Informed"),
        ("Emulator of directions", "Glow"),
        ("Emulator of directions", "Informed"),
        ("Fresh pathwise", "Glow"),
        ("Fresh from chains", "Glow"),
    ],
)
def test_every_method_goes_on_as_if_nothing_had_happened(method, flow, tmp_path):
    config = config_of(method, flow)
    with killed_after(FitFiles, 2):
        run("one scale", config, tmp_path)
    assert_same(run("one scale", config, tmp_path, resume=True), "one scale", config)
    assert_same(Posterior.load(tmp_path), "one scale", config)


def test_a_best_model_that_few_fields_assessed_is_resumed(tmp_path):
    """Rounds of the finest stage begin with fewer fields than they may have."""
    config = FitConfig(
        flow=FLOWS["Informed"],
        method=METHODS["Pool"],
        certificate=1200,
        rounds=3,
        tolerance=1e-9,
        patience=9,
    )
    given = PROBLEMS["two scales"], 12_000, seeded(5)
    whole = fit(*given, progress=False, config=config)
    coarse = sum(record["scale"] == 1 for record in whole.records)
    with killed_after(FitFiles, coarse + 1):
        fit(*given, tmp_path, False, False, config, report=False)
    saved = FitFiles(tmp_path).read_checkpoint()
    assert saved["assessed"] < saved["stage"]["size"]
    found = fit(*given, tmp_path, True, False, config, report=False)
    np.testing.assert_equal(plain(found.records), plain(whole.records))
    np.testing.assert_array_equal(*(p.log_prob(X["two scales"]) for p in (found, whole)))


class Killer:
    """Ends a run when it has put a number of files in their place."""

    def __init__(self, patch: pytest.MonkeyPatch, moment: int | None = None):
        self.files: list[str] = []
        self.moment = moment
        patch.setattr("os.replace", functools.partial(self.replace, os.replace))

    def replace(self, replace, source, target):
        replace(source, target)
        self.files.append(pathlib.Path(target).name)
        if len(self.files) == self.moment:
            raise Killed


@functools.cache
def files_written() -> tuple[str, ...]:
    """What a run of two stages writes, in its order."""
    import tempfile

    with tempfile.TemporaryDirectory() as out, pytest.MonkeyPatch.context() as patch:
        killer = Killer(patch)
        run("two scales", config_of(rounds=2), out)
    return tuple(killer.files)


def test_killed_after_any_file_that_it_writes(tmp_path):
    """Between rounds, between stages, between the files of one checkpoint, at the very end."""
    config, written = config_of(rounds=2), files_written()
    assert {"config.json", "checkpoint.npz", "stages.jsonl", "stage_1.npz", "stage_2.npz",
            "posterior.json"} <= set(written)  # fmt: skip
    # Each file once for each stage: what a round writes is the same in all of them.
    moments = sorted({(name, written[:i].count("stage_1.npz")): i + 1
                      for i, name in enumerate(written)}.values())  # fmt: skip
    for moment in moments:
        out = tmp_path / str(moment)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            Killer(patch, moment)
            run("two scales", config, out)
        started = (out / "config.json").exists()
        assert_same(run("two scales", config, out, resume=started), "two scales", config)


def test_killed_twice(tmp_path):
    config = config_of(rounds=2)
    with killed_after(FitFiles, 1):
        run("two scales", config, tmp_path)
    with killed_after(FitFiles, 2):
        run("two scales", config, tmp_path, resume=True)
    assert_same(run("two scales", config, tmp_path, resume=True), "two scales", config)


def test_resuming_does_not_count_the_inflated_noise_again(tmp_path):
    config = config_of(rounds=2)
    for checkpoints in (1, 3):  # in the first stage, in the second
        out = tmp_path / str(checkpoints)
        with killed_after(FitFiles, checkpoints):
            run("inflated", config, out)
        assert_same(run("inflated", config, out, resume=True), "inflated", config)
    whole, plain = (uninterrupted(name, config) for name in ("inflated", "two scales"))
    assert whole.nfs == plain.nfs + 2 * 30
    # On four cells the third observation is a constant, which inflated noise makes more likely.
    assert whole.records[0]["log_evidence"] > plain.records[0]["log_evidence"] + 0.1


def test_another_run_is_not_resumed(tmp_path):
    config = config_of(rounds=2)
    with killed_after(FitFiles, 1):
        run("two scales", config, tmp_path)
    with pytest.raises(ValueError, match="out holds a run already"):
        run("two scales", config, tmp_path)
    with pytest.raises(ValueError, match=rf"seed must be {seeded(5)} to resume .* got 4"):
        fit(PROBLEMS["two scales"], BUDGET, 4, tmp_path, True, config=config)
    with pytest.raises(ValueError, match=r"fit.rounds must be 2 to resume .* got 3"):
        run("two scales", config_of(rounds=3), tmp_path, resume=True)
    with pytest.raises(ValueError, match="budget must be 3000 to resume"):
        fit(PROBLEMS["two scales"], BUDGET + 1, seeded(5), tmp_path, True, config=config)
    with pytest.raises(ValueError, match="problem must be 'growing' to resume"):
        run("one scale", config, tmp_path, resume=True)


def test_resuming_unpickles_nothing(tmp_path, monkeypatch):
    config = config_of(rounds=2)
    with killed_after(FitFiles, 3):  # in the second stage
        run("two scales", config, tmp_path)

    def unpickled(*_, **__):
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(f"pickle.{name}", unpickled)
    run("two scales", config, tmp_path, resume=True)


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    config, saves, held = config_of(rounds=2), 0, {}
    save, limits = FitFiles.save_checkpoint, resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(self, *arguments):
        nonlocal saves
        saves += 1
        if saves == 2:  # from here on the system refuses files of more than 1000 bytes
            held.update({p.name: p.read_bytes() for p in tmp_path.iterdir()})
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        save(self, *arguments)

    monkeypatch.setattr(FitFiles, "save_checkpoint", full)
    try:
        with pytest.raises(OSError, match=r"checkpoint.npz could not be written.* intact"):
            run("two scales", config, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    monkeypatch.undo()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == held
    assert_same(run("two scales", config, tmp_path, resume=True), "two scales", config)


def test_a_directory_made_read_only_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    config, saves, held = config_of(rounds=2), 0, {}
    save = FitFiles.save_checkpoint

    def read_only(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    def protected(self, *arguments):
        nonlocal saves
        saves += 1
        if saves == 2:
            held.update({p.name: p.read_bytes() for p in tmp_path.iterdir()})
            monkeypatch.setattr("tempfile.mkstemp", read_only)  # root may write wherever it likes
        save(self, *arguments)

    monkeypatch.setattr(FitFiles, "save_checkpoint", protected)
    with pytest.raises(OSError, match=r"checkpoint.npz could not be written.* intact.*Read-only"):
        run("two scales", config, tmp_path)
    monkeypatch.undo()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == held
    assert_same(run("two scales", config, tmp_path, resume=True), "two scales", config)


def test_a_truncated_checkpoint_is_named_and_what_was_before_it_is_not_lost(tmp_path):
    config = config_of(rounds=2)
    with killed_after(FitFiles, 3):  # in the second stage
        run("two scales", config, tmp_path)
    checkpoint = tmp_path / "checkpoint.npz"
    whole = checkpoint.read_bytes()
    for length in (0, 100, len(whole) // 2, len(whole) - 1):
        checkpoint.write_bytes(whole[:length])
        with refused(checkpoint, "damaged", "delete it to go on from the last finished stage"):
            run("two scales", config, tmp_path, resume=True)
    checkpoint.unlink()
    assert_same(run("two scales", config, tmp_path, resume=True), "two scales", config)


def test_a_run_is_read_without_a_trace(tmp_path, monkeypatch):
    """As one in a directory that cannot be written."""
    run("one scale", config_of(rounds=1), tmp_path)

    def refuse(*_, **__):
        raise PermissionError("read-only")

    for name in ("pathlib.Path.touch", "pathlib.Path.mkdir", "os.replace", "tempfile.mkstemp"):
        monkeypatch.setattr(name, refuse)
    Posterior.load(tmp_path).sample(2)
    assert read_summary(tmp_path)["nfs"] > 0
    with pytest.raises(OSError, match="out must be a directory that can be written"):
        run("one scale", config_of(rounds=1), tmp_path, resume=True)


# --- a true process -------------------------------------------------------------------------------

PROCESS = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
from inference.test_killed import config_of, run
run("two scales", config_of(rounds=2), pathlib.Path(sys.argv[2]))
"""


def test_killed_by_the_system_at_a_random_moment(tmp_path):
    config, out = config_of(rounds=2), tmp_path / "run"
    settings = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "JAX_ENABLE_X64": "1"}
    command = [sys.executable, "-c", PROCESS, str(pathlib.Path(__file__).parents[1]), str(out)]
    process = subprocess.Popen(command, env={**os.environ, **settings})
    try:
        while not (out / "checkpoint.npz").exists():
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.01)
        time.sleep(random.Random(seeded(1)).uniform(0, 0.5))
    finally:
        process.kill()
        process.wait()
    json.loads((out / "config.json").read_text())
    assert_same(run("two scales", config, out, resume=True), "two scales", config)
