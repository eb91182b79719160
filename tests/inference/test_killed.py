"""A run killed by the system, as a shell or a cluster would, and a disk that takes no more."""

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

from msign import FitConfig, Posterior, fit
from msign.bijections import InformedConfig
from msign.problems import synthetic

CONFIG = {
    "informed": {"blocks": 2, "hidden": 8, "knots": 4},
    "steps": 20,
    "batch_size": 128,
    "rounds": 6,
    "tolerance": 1e-6,
    "patience": 8,
}
RUN = """
import pathlib, sys, json
from msign import FitConfig, fit
from msign.bijections import InformedConfig
from msign.problems import synthetic
options = json.loads(sys.argv[2])
config = FitConfig(**{**options, "informed": InformedConfig(**options["informed"])})
out = pathlib.Path(sys.argv[1])
fit(synthetic(4), 12_000, seed=5, out=out, resume=(out / "config.json").exists(), config=config)
"""


def start(out: pathlib.Path, cache: pathlib.Path) -> subprocess.Popen:
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_ENABLE_X64": "1",
    }
    command = [sys.executable, "-c", RUN, str(out), json.dumps(CONFIG)]
    return subprocess.Popen(command, env=environment)


def summary(out: pathlib.Path) -> dict:
    """What a run says of itself, but for the time that it took."""
    found = json.loads((out / "summary.json").read_text())
    found.pop("seconds")
    for stage in found["stages"]:
        stage.pop("seconds")
    return found


def written(out: pathlib.Path) -> tuple[int, int]:
    """Finished stages, and when the checkpoint of the running one was written."""
    checkpoint = out / "checkpoint.npz"
    try:
        moment = checkpoint.stat().st_mtime_ns
    except FileNotFoundError:
        moment = 0
    return len(list(out.glob("stage_*.npz"))), moment


def test_sigkill_at_random_moments_changes_nothing(tmp_path):
    whole, broken, cache = tmp_path / "whole", tmp_path / "broken", tmp_path / "cache"
    assert start(whole, cache).wait() == 0
    moments = random.Random(1)
    for _ in range(3):
        process = start(broken, cache)
        before = written(broken)
        # Wait until this process has got one checkpoint further, then strike at any moment.
        while written(broken) == before:
            assert process.poll() is None, "the run ended before it could be killed"
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.3))
        assert process.poll() is None, "the run ended before it could be killed"
        process.kill()
        process.wait()
    assert start(broken, cache).wait() == 0
    assert summary(broken) == summary(whole)
    a, b = Posterior.load(broken), Posterior.load(whole)
    np.testing.assert_array_equal(a.log_weights, b.log_weights)
    np.testing.assert_array_equal(a.sample(3), b.sample(3))


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    options = {**CONFIG, "informed": InformedConfig(**CONFIG["informed"])}
    config = FitConfig(**options)
    from msign.inference.rundir import RunDirectory

    original, saves = RunDirectory.save_checkpoint, 0
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def save(self, *arguments):
        nonlocal saves
        saves += 1
        if saves == 3:  # from here on the system refuses files of more than 1000 bytes
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        original(self, *arguments)

    monkeypatch.setattr(RunDirectory, "save_checkpoint", save)
    try:
        with pytest.raises(OSError, match=r"checkpoint.npz could not be written.* intact"):
            fit(synthetic(4), 12_000, seed=5, out=tmp_path, config=config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    monkeypatch.undo()
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("checkpoint.npz.")]
    resumed = fit(synthetic(4), 12_000, seed=5, out=tmp_path, resume=True, config=config)
    assert resumed.nfs <= 12_000
