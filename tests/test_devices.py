"""Two devices of one process, and two processes, against one device: the same to rounding.

What is compared is computed by `computed` here, in a process of its own for each of the other two:
devices are what a process begins with.
"""

import functools
import os
import pathlib
import socket
import subprocess
import sys

import jax
import jax.random as jr
import numpy as np
import pytest

from conformance import FLOWS
from helpers import seeded, split_trainable
from inference.small import ring_problem, stage_of, started
from msign import (
    FitConfig,
    InverseProblem,
    Posterior,
    Simulator,
    devices,
    fit,
)
from msign.inference import Cells, Cellwise, Emulator, Fresh, Pool
from msign.inference.methods.objectives import PathwiseJeffreys
from msign.inference.simulate import simulate
from msign.variables import draw, log_ratio, pulled_back

pytestmark = pytest.mark.usefixtures("quick_compilation")

STEPS, BATCH, RATE = 3, 64, 1e-3
EPS = float(np.finfo(np.float64).eps)
# A row of a batch is computed from its own numbers alone, if in another order: each of fewer than
# 1000 parameters makes a few operations with an error of EPS, which these flows amplify by less
# than 1000.
ROW_ERROR = 1e6 * EPS
# A gradient is a sum over the batch, of terms below 100, whose error is at most EPS for each. Adam
# divides by the gradient's size plus 1e-8, so that it moves a parameter by at most RATE times this
# error over 1e-8 more or less. A device whose rows were lost would change the gradient itself.
UPDATE_ERROR = STEPS * RATE * 100 * BATCH * EPS / 1e-8

METHODS = {
    "Pool": (Pool(steps=STEPS, batch=BATCH), FLOWS["Informed"]),
    "Emulator": (Emulator(steps=STEPS, batch=BATCH), FLOWS["Informed"]),
    "Fresh": (Fresh(steps=STEPS, batch=BATCH, objective=PathwiseJeffreys()), FLOWS["Glow"]),
    "Cells": (Cells(steps=STEPS, batch=BATCH), Cellwise()),
}


SIMULATED = [0]  # rows that this process has simulated


def numpy_ring(x):
    x = np.asarray(x)
    SIMULATED[0] += len(x)
    a, b = x.sum(1), x[:, :2].sum(1) - x[:, 2:].sum(1)
    return np.stack([a**2 + b, b - 0.3 * a * b], -1)


def black_box(**options) -> InverseProblem:
    return ring_problem(forward=numpy_ring, **options)


def flat(tree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def updated(name: str) -> np.ndarray:
    """Parameters of a model after a few steps of a method."""
    method, kind = METHODS[name]
    problem = ring_problem()
    variables = started(problem, kind).variables(1)
    simulator = Simulator(problem)
    stage = stage_of(variables, simulator, round_size=BATCH, learning_rate=RATE)
    drawn = simulate(simulator, variables, 1, jr.key(seeded(1)), BATCH)
    state = method.observe(stage, method.init(stage), variables, drawn)
    model = method.update(stage, state, variables, 1.0, jr.key(seeded(2)))[1]
    return flat(split_trainable(model)[0])


def rows() -> dict[str, np.ndarray]:
    """Draws, densities, gradients and simulations of a given model, each row for itself."""
    variables = started(ring_problem(), FLOWS["Informed"]).variables(1)
    rng = np.random.default_rng(seeded(3))
    noise, slope = rng.normal(size=(2, 150, 4))  # more than a piece, and no multiple of one
    u, s, ratio = draw(variables, noise)
    found = {"u": u, "ratio": ratio, "again": log_ratio(variables, s)}
    found["pulled"] = pulled_back(variables, noise, slope)
    for name, problem in (("jax", ring_problem()), ("numpy", black_box())):
        evaluated = Simulator(problem).evaluate(u[:7], 1, gradient=problem.differentiable)
        found[f"log-likelihood, {name}"] = evaluated.log_likelihood
        if evaluated.gradient is not None:
            found[f"gradient, {name}"] = evaluated.gradient
    return found


def small_fit(out: pathlib.Path | None) -> Posterior:
    method = Pool(steps=STEPS, batch=BATCH)
    config = FitConfig(
        flow=FLOWS["Informed"], method=method, round_size=150, rounds=2, tolerance=1e-9, patience=9
    )
    return fit(black_box(), 800, seeded(5), out, progress=False, config=config, report=False)


def computed(methods: list[str], out: pathlib.Path | None = None) -> dict[str, np.ndarray]:
    """All that is compared: rows, updates by some methods, a fit."""
    with devices.together():
        found = {f"row {name}": value for name, value in rows().items()}
        found |= {f"update {name}": updated(name) for name in methods}
    posterior = small_fit(out)
    found["fit samples"] = posterior.sample(20, seed=1)
    found["fit weights"] = posterior.certificates[1].log_weights
    # Of the start, and of the model after an update.
    found["fit divergences"] = np.asarray([r["jeffreys"] for r in posterior.records])
    found["fit losses"] = np.asarray([r["loss"] for r in posterior.records[:-1]])
    found["fit count"] = np.asarray([posterior.nfs])
    return found


@functools.cache
def on_one_device() -> dict[str, np.ndarray]:
    before = SIMULATED[0]
    return computed(list(METHODS)) | {"simulated": np.asarray(SIMULATED[0] - before)}


CODE = """
import pathlib, sys
import jax
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)
port, index, folder = sys.argv[1:]
if port:
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(index))
import numpy as np
import test_devices
assert jax.device_count() == 2
rows = np.zeros((4, 3))
with test_devices.devices.together():
    assert test_devices.devices.spread(rows).addressable_shards[0].data.shape == (2, 3)
    assert test_devices.devices.spread(rows, axis=1).is_fully_replicated  # 3 columns on 2 devices
folder = pathlib.Path(folder)
np.savez(folder / f"found_{index}.npz", **test_devices.computed(METHODS, folder / "run"))
print("simulated", *test_devices.SIMULATED)
"""


def processes(folder: pathlib.Path, count: int, code: str) -> list[str]:
    """What processes with two devices in all print, one after the other."""
    here = str(pathlib.Path(__file__).parent)
    source = str(pathlib.Path(devices.__file__).parents[1])
    each = f"--xla_force_host_platform_device_count={2 // count}"
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {each}",
        "PYTHONPATH": os.pathsep.join([here, source]),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # compiling takes longer than running
    }
    port = "" if count == 1 else str(free_port())
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, port, str(index), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(count)
    ]
    try:
        told = [process.communicate(timeout=900)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    for process, text in zip(running, told, strict=True):
        assert process.returncode == 0, text
    return told


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


def assert_as_on_one_device(path: pathlib.Path, methods: list[str]) -> None:
    others = {"simulated", *(f"update {name}" for name in METHODS if name not in methods)}
    expected = {k: v for k, v in on_one_device().items() if k not in others}
    with np.load(path) as found:
        assert set(found) == set(expected)
        for name, value in expected.items():
            error = ROW_ERROR if name.startswith("row") else UPDATE_ERROR
            scale = np.maximum(1.0, np.abs(value))
            assert np.max(np.abs(found[name] - value) / scale) < error, name


def test_two_devices_of_one_process(tmp_path):
    methods = list(METHODS)
    processes(tmp_path, 1, f"METHODS = {methods}\n{CODE}")
    assert_as_on_one_device(tmp_path / "found_0.npz", methods)


def test_two_processes(tmp_path):
    """Each has a share of all batches and simulations; the first alone writes files.

    Of methods a pool, in the fit, and fresh fields: batches are shared out alike in all.
    """
    methods = ["Fresh"]
    for index, told in enumerate(processes(tmp_path, 2, f"METHODS = {methods}\n{CODE}")):
        assert int(told.split()[-1]) < 0.6 * on_one_device()["simulated"]
        assert_as_on_one_device(tmp_path / f"found_{index}.npz", methods)
    kept = Posterior.load(tmp_path / "run", black_box())
    np.testing.assert_allclose(
        kept.sample(20, seed=1), on_one_device()["fit samples"], atol=10 * UPDATE_ERROR
    )


FAILING = """
import sys
import jax
jax.config.update("jax_enable_x64", True)
port, index, folder = sys.argv[1:]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(index))
import numpy as np
from msign import Simulator, devices
from test_devices import black_box, numpy_ring
u = np.random.default_rng(0).normal(size=(5, 4))

def second_half_fails(x):
    if jax.process_index():
        raise ArithmeticError("no pressure")
    return numpy_ring(x)

problem = black_box()
simulator = Simulator(problem)
simulator._maps.at_scale(1).forward = second_half_fails
with devices.together():
    try:
        simulator.evaluate(u, 1)
    except RuntimeError as error:
        print("told:", error)
"""


def test_a_simulation_that_raises_in_one_process_stops_all(tmp_path):
    first, second = processes(tmp_path, 2, FAILING)
    assert "told: process 1 of 2 failed; its own error says why" in first
    assert "told: the forward simulation of one of samples 3 to 4 at scale 1 raised" in second
    assert "no pressure" in second


def test_with_one_device_nothing_changes():
    array = np.arange(6.0).reshape(3, 2)
    assert devices.mesh().size == devices.processes() == 1
    assert devices.writes_files()
    placed = devices.spread(array)
    assert devices.local(placed) is placed
    assert devices.spread_here(placed) is placed
    assert devices.copied_here(placed) is placed
    np.testing.assert_array_equal(devices.gathered(placed), array)
    assert not placed.committed
