"""UM-Bridge over loopback: our client against its package's server, its client against ours."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import umbridge as package
from typer.testing import CliRunner

from conformance import SMALL_INFORMED
from helpers import refused
from msign import FitConfig, Informed, InverseProblem, LaplacePrior, fit
from msign.cli import app
from msign.problems import SimulationError, Simulator, SimulatorUnavailable, elliptic, umbridge

pytestmark = pytest.mark.usefixtures("quick_compilation")

PRIOR = LaplacePrior((2, 2), alpha=0.5, beta=3.0)
DATA = [0.2, 0.1, 0.3]
WEIGHTS = np.random.default_rng(2).normal(size=(3, 4))
U = np.random.default_rng(4).normal(size=(9, 4))

# A process that knows nothing of msign: two input vectors, two output vectors.
SERVER = """
import os, sys, time
import numpy as np
import umbridge

WEIGHTS = np.array({weights})

class Model(umbridge.Model):
    calls = 0
    def get_input_sizes(self, config): return [1, 3]
    def get_output_sizes(self, config): return [2, 1]
    def supports_evaluate(self): return True
    def supports_gradient(self): return {gradient}
    def __call__(self, parameters, config):
        x = np.concatenate(parameters)
        if config.get("picky") and x[0] < 0:
            raise ArithmeticError("negative")
        if config.get("strange") and x[0] < 0:
            return [[float("nan"), 0.0], [0.0]]
        time.sleep(config.get("seconds", 0.0))
        self.calls += 1
        if "ends" in config and self.calls > 400 and not os.path.exists(config["ends"]):
            open(config["ends"], "w").close()
            os._exit(1)
        y = WEIGHTS @ x
        y = y if config.get("linear") else np.tanh(y)
        return [y[:2].tolist(), y[2:].tolist()]
    def gradient(self, out_wrt, in_wrt, parameters, sens, config):
        x = np.concatenate(parameters)
        own = slice(0, 2) if out_wrt == 0 else slice(2, 3)
        slope = 1.0 if config.get("linear") else 1 - np.tanh(WEIGHTS[own] @ x) ** 2
        slope = slope * np.array(sens)
        pulled = WEIGHTS[own].T @ slope
        return (pulled[:1] if in_wrt == 0 else pulled[1:]).tolist()

umbridge.serve_models([Model("forward")], int(sys.argv[1]), max_workers=4)
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """A server process that can be killed and started again on its port."""

    def __init__(self, arguments):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.arguments = arguments
        self.start()

    def start(self):
        command = [sys.executable, *self.arguments, str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self.process.poll() is None and time.monotonic() < until
            time.sleep(0.05)

    def kill(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def serving(arguments):
    server = Server(arguments)
    try:
        yield server
    finally:
        server.kill()


def script(gradient):
    return ["-c", SERVER.format(weights=WEIGHTS.tolist(), gradient=gradient)]


@pytest.fixture(scope="module")
def server():
    with serving(script(True)) as made:
        yield made


def forward(x):
    """The same row by row, so that a field's numbers do not depend on its batch."""
    return np.array([np.tanh(WEIGHTS @ f.reshape(-1)) for f in np.asarray(x)])


def vjp(x, c):
    pairs = zip(np.asarray(x), np.asarray(c), forward(x), strict=True)
    return np.array([(WEIGHTS.T @ ((1 - y**2) * own)).reshape(f.shape) for f, own, y in pairs])


def local(**options):
    return InverseProblem(PRIOR, forward, DATA, noise_std=0.2, **options)


# --- a server of others ---------------------------------------------------------------------------


def test_values_and_gradients_are_those_of_the_model(server):
    remote = Simulator(umbridge(server.url, "forward", PRIOR, DATA, 0.2))
    ours = Simulator(local(vjp=vjp))
    a, b = (s.evaluate(U, 1, gradient=True) for s in (remote, ours))
    for one, other in zip(a, b, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    assert remote.nfs == ours.nfs
    remote.check()


def test_many_requests_are_under_way_at_a_time(server):
    taken = {}
    for parallel in (1, 4):
        options = {"config": {"seconds": 0.2}, "parallel": parallel}
        made = Simulator(umbridge(server.url, "forward", PRIOR, DATA, 0.2, **options))
        made.evaluate(U[:1], 1)
        began = time.perf_counter()
        made.evaluate(U[:8], 1)
        taken[parallel] = time.perf_counter() - began
    assert taken[1] >= 8 * 0.2
    assert taken[4] < 0.7 * taken[1]


@pytest.mark.parametrize("config", [{"picky": True}, {"strange": True}])
def test_a_model_that_fails_is_a_simulation_that_fails(config, server):
    given = (server.url, "forward", PRIOR, DATA, 0.2)
    bad = np.asarray(PRIOR.unwhiten(U))[:, 0, 0] < 0
    assert 0 < bad.sum() < len(U)
    tolerant = Simulator(umbridge(*given, config=config, on_failure="reject"))
    found = tolerant.evaluate(U, 1).log_likelihood
    np.testing.assert_array_equal(np.isneginf(found), bad)
    assert tolerant.failures == bad.sum()
    with pytest.raises(SimulationError, match="forward answered"):
        Simulator(umbridge(*given, config=config)).evaluate(U, 1)


def test_a_simulation_without_an_answer_fails(server):
    options = {"config": {"seconds": 0.5}, "timeout": 0.1}
    made = umbridge(server.url, "forward", PRIOR, DATA, 0.2, **options)
    with pytest.raises(SimulationError, match=r"forward gave no answer in 0.1 s, 3 times"):
        Simulator(made).evaluate(U[:1], 1)


def test_what_does_not_fit_is_refused(server):
    with refused("prior must have as many values as 'forward' has inputs, [1, 3], got 8"):
        umbridge(server.url, "forward", LaplacePrior((8,), alpha=0.5, beta=1.0), DATA, 0.2)
    with refused("data must be as many as 'forward' has outputs, [2, 1], got 2"):
        umbridge(server.url, "forward", PRIOR, DATA[:2], 0.2)
    with refused("url must begin with http:// or https://, got 'localhost'"):
        umbridge("localhost", "forward", PRIOR, DATA, 0.2)
    with pytest.raises(RuntimeError, match="ModelNotFound"):
        umbridge(server.url, "backward", PRIOR, DATA, 0.2)
    with pytest.raises(SimulatorUnavailable, match="url must be that of a UM-Bridge server"):
        umbridge(f"http://127.0.0.1:{free_port()}", "forward", PRIOR, DATA, 0.2, patience=0.3)


# --- a server that goes away ----------------------------------------------------------------------


def small_fit(problem):
    flow = Informed(SMALL_INFORMED.config)
    config = FitConfig(flow=flow, round_size=60, rounds=2, steps=30)
    return fit(problem, 700, 3, progress=False, config=config)


def test_a_server_killed_and_started_again_costs_a_pause_only():
    whole, asked = small_fit(local()), 0
    with serving(script(False)) as server:
        remote = umbridge(server.url, "forward", PRIOR, DATA, 0.2, chunk=50)
        model = remote.forward.__self__
        asking = model._asked

        def counted(*arguments):
            nonlocal asked
            asked += 1
            if asked == 300:
                server.kill()
                threading.Timer(0.5, server.start).start()
            return asking(*arguments)

        model._asked = counted
        found = small_fit(remote)
    assert asked > 400
    assert found.nfs == whole.nfs and found.failures == 0
    x = np.random.default_rng(1).normal(size=(20, 2, 2))
    np.testing.assert_array_equal(found.log_prob(x), whole.log_prob(x))


REMOTE = """
import msign
prior = msign.LaplacePrior((2, 2), alpha=0.5, beta=3.0)
config = {config!r}
data = [0.2, 0.1, 0.3]
problem = msign.problems.umbridge({url!r}, "forward", prior, data, 0.2, config=config, chunk=50)
"""


def test_msign_run_solves_what_another_process_simulates_and_outlives_its_end(tmp_path):
    mark, file, out = tmp_path / "ended", tmp_path / "remote.py", tmp_path / "run"
    with serving(script(True)) as server:
        file.write_text(REMOTE.format(url=server.url, config={"linear": True, "ends": str(mark)}))
        options = ["--budget", "1500", "--seed", "3", "--out", str(out)]
        with started_again(server):
            ended = CliRunner().invoke(app, ["run", f"{file}:problem", *options])
    assert ended.exit_code == 0, ended.output
    found = json.loads((out / "summary.json").read_text())
    assert mark.exists() and found["failures"] == 0
    assert found["verdict"].startswith("GOOD")


@contextlib.contextmanager
def started_again(server):
    """A block in which a server whose process ends is started again, half a second later."""
    over = threading.Event()

    def watch():
        while not over.wait(0.5):
            if server.process.poll() is not None:
                server.start()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def test_a_server_that_stays_away_ends_the_run_whatever_the_policy():
    with serving(script(False)) as server:
        options = {"on_failure": "reject", "patience": 0.5}
        made = Simulator(umbridge(server.url, "forward", PRIOR, DATA, 0.2, **options))
    with pytest.raises(SimulatorUnavailable, match=r"away for 0.5 seconds"):
        made.evaluate(U, 1)
    assert made.failures == 0


# --- our server -----------------------------------------------------------------------------------

PROBLEM = """
import jax.numpy as jnp, msign
prior = msign.LaplacePrior((2, 2), alpha=0.5, beta=3.0)
def forward(x):
    return jnp.tanh(x.reshape(len(x), 4) @ jnp.asarray({weights}).T)
problem = msign.InverseProblem(prior, forward, [0.2, 0.1, 0.3], noise_std=0.2, name="tanh")
"""


def test_the_packages_client_evaluates_what_msign_serves(tmp_path):
    file = tmp_path / "signal.py"  # as Python's own module
    file.write_text(PROBLEM.format(weights=WEIGHTS.tolist()))
    command = "from msign.cli import app; app()"
    with serving(["-c", command, "serve", f"{file}:problem", "--port"]) as server:
        client = package.HTTPModel(server.url, "tanh")
        assert client.get_input_sizes() == [4] and client.get_output_sizes() == [3]
        x, c = U[0], np.array([0.3, -1.0, 2.0])
        single = {"rtol": 1e-5, "atol": 1e-5}  # its process computes in float32
        np.testing.assert_allclose(client([x.tolist()])[0], forward(x[None])[0], **single)
        pulled = client.gradient(0, 0, [x.tolist()], c.tolist())
        np.testing.assert_allclose(pulled, vjp(x[None], c[None])[0], **single)


def test_the_packages_client_evaluates_the_elliptic_model():
    command = "from msign.cli import app; app()"
    with serving(["-c", command, "serve", "elliptic", "--size", "16", "--port"]) as server:
        client = package.HTTPModel(server.url, "elliptic")
        assert client.get_input_sizes() == [256] and client.get_output_sizes() == [15]
        x, c = np.random.default_rng(5).normal(size=(1, 16, 16)), np.arange(15.0)
        here = elliptic(16)
        observed = client([x.ravel().tolist()])[0]
        np.testing.assert_allclose(observed, here.forward(x)[0], rtol=1e-12)
        pulled = client.gradient(0, 0, [x.ravel().tolist()], c.tolist())
        np.testing.assert_allclose(pulled, here.vjp(x, c[None])[0].ravel(), rtol=1e-9)
