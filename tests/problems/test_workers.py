"""Forward maps evaluated by workers: the same numbers, lost workers, crashes, counts."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import importlib
import inspect
import multiprocessing.pool
import os
import signal
import subprocess
import sys
import time

import distributed
import jax
import numpy as np
import pytest

from conformance import SMALL_INFORMED
from helpers import refused
from inference.small import ROW
from msign import FitConfig, Informed, InverseProblem, LaplacePrior, fit, lending
from msign.problems import SimulationError, Simulator, SimulatorUnavailable, likelihoods
from msign.problems import spread as spreading
from msign.problems import workers as working
from msign.problems.workers import opened
from problems import rowwise
from problems.rowwise import FatalOnce, both, forward, ring, vjp

pytestmark = pytest.mark.usefixtures("quick_compilation")

PRIOR = LaplacePrior((4, 4), alpha=0.5, beta=2.0)
DATA = [0.3, -0.2]
PLAIN = {"vjp": None, "forward_and_vjp": None}
U = np.random.default_rng(3).normal(size=(23, 16))


@pytest.fixture(autouse=True)
def all_arrays_are_large(monkeypatch):
    """Large enough to be read from memory, where workers can."""
    monkeypatch.setattr(lending, "LEAST_BYTES", 1)


def problem(**options):
    given = {"noise_std": 0.1, "vjp": vjp, "forward_and_vjp": both, **options}
    return InverseProblem(PRIOR, given.pop("forward", forward), DATA, **given)


@pytest.fixture(scope="module")
def processes():
    with opened(2) as workers:
        yield workers


@pytest.fixture(scope="module")
def cluster():
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**options) as made:
        yield made


@pytest.fixture(scope="module")
def client(cluster):
    with distributed.Client(cluster) as made:
        yield made


@pytest.fixture
def threads():
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        yield pool


@pytest.fixture
def pool():
    with multiprocessing.pool.ThreadPool(3) as made:
        yield made


EXECUTORS = ["threads", "pool", "processes", "client"]


def assert_equal(a, b):
    for ours, theirs in zip(a, b, strict=True):
        np.testing.assert_array_equal(ours, theirs)


# --- the same numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXECUTORS)
def test_numbers_and_counts_are_those_of_this_process(name, request):
    executor = request.getfixturevalue(name)
    here, there = Simulator(problem()), Simulator(problem(), executor=executor)
    for scale in (1, 2):
        u = U[:, : 4**scale]
        assert_equal(there.evaluate(u, scale, True), here.evaluate(u, scale, True))
        assert_equal([there.evaluate(u, scale)[0]], [here.evaluate(u, scale)[0]])
        assert_equal(there.jacobian(u[:3], scale), here.jacobian(u[:3], scale))
        x = np.asarray(there.problem.priors[scale - 1].unwhiten(u))
        assert_equal([there.observe(x, scale)], [here.observe(x, scale)])
    assert there.nfs == here.nfs
    there.check()


def test_functions_that_cannot_be_imported_are_sent(processes):
    factor = 0.5

    def scaled(x):
        return factor * forward(x)

    own = problem(forward=scaled, **PLAIN)
    here, there = Simulator(own), Simulator(own, executor=processes)
    assert_equal([there.evaluate(U, 2)[0]], [here.evaluate(U, 2)[0]])


def test_likelihoods_go_with_the_gradient(processes):
    counts = InverseProblem(
        PRIOR, forward, [2, 0], likelihood=likelihoods.Poisson(), vjp=vjp, forward_and_vjp=both
    )
    here, there = Simulator(counts), Simulator(counts, executor=processes)
    assert_equal(there.evaluate(U, 2, True), here.evaluate(U, 2, True))


def test_an_inflated_noise_is_estimated_by_the_workers(threads):
    made = problem(inflate=7)
    here, there = Simulator(made), Simulator(made, executor=threads)
    assert_equal(there.evaluate(U[:, :4], 1, True), here.evaluate(U[:, :4], 1, True))
    assert there.nfs == here.nfs == 2 * 7 + 2 * len(U)


class Overheard(concurrent.futures.ThreadPoolExecutor):
    """Knows the types of all arrays that are sent to it and that it sends back."""

    def __init__(self, threads):
        super().__init__(threads)
        self.sent, self.returned = set(), set()

    def submit(self, work, function, arrays):
        future = super().submit(work, function, arrays)
        self.sent |= {a.dtype for a in arrays if isinstance(a, np.ndarray)}
        self.returned.add(future.result().values[-1].dtype)
        return future


def test_fields_and_gradients_are_sent_as_jax_has_them_and_computed_in_double():
    seen = []

    def recorded(x, cotangents):
        seen.append(x.dtype)
        return both(x, cotangents)

    with Overheard(2) as executor, jax.enable_x64(False):
        there = Simulator(problem(forward_and_vjp=recorded), executor=executor)
        there.evaluate(U, 2, True)
    assert executor.sent == executor.returned == {np.dtype(np.float32)}
    assert set(seen) == {np.dtype(np.float64)}


# --- pieces ---------------------------------------------------------------------------------------


class Recorder:
    """A forward map that knows the batches that it was given."""

    def __init__(self, seconds=0.0):
        self.seconds, self.sizes = seconds, []

    def __call__(self, x):
        x = np.asarray(x)  # raises while it is traced
        self.sizes.append(len(x))
        time.sleep(self.seconds * len(x))
        return forward(x)


def test_pieces_suit_the_simulator(threads, monkeypatch):
    monkeypatch.setattr(spreading, "LEAST_SECONDS", 0.02)
    monkeypatch.setattr(spreading, "MOST_SECONDS", 0.05)
    quick, slow = Recorder(), Recorder(0.01)
    for recorder, seconds in ((quick, 0), (slow, 0.01)):
        made = Simulator(problem(forward=recorder, **PLAIN), None, threads)
        made.evaluate(U, 2)
        recorder.sizes.clear()
        made.evaluate(np.tile(U, (4, 1)), 2)
        assert sum(recorder.sizes) == 4 * len(U)
        if seconds:  # a piece of more fields would take longer than it should
            assert max(recorder.sizes) <= 5
    assert len(quick.sizes) < len(slow.sizes)


def test_no_call_has_more_fields_than_the_chunk(threads):
    recorder = Recorder()
    made = problem(forward=recorder, chunk=2, **PLAIN)
    Simulator(made, executor=threads).evaluate(U, 2)
    assert max(recorder.sizes) == 2 and sum(recorder.sizes) == len(U)


# --- failures -------------------------------------------------------------------------------------


CORNER = np.asarray(PRIOR.unwhiten(U))[:, 1, 1]
LOW = np.sort(CORNER)[2:4].mean()  # below it are three fields of U


REFUSING, CRASHING = (functools.partial(f, LOW) for f in (rowwise.refusing, rowwise.crashing))


def test_what_a_worker_raises_is_rejected_or_reported(threads):
    tolerant = Simulator(problem(forward=REFUSING, on_failure="reject", **PLAIN), None, threads)
    found = tolerant.evaluate(U, 2)
    np.testing.assert_array_equal(np.isneginf(found.log_likelihood), CORNER <= LOW)
    assert tolerant.failures == 3 and tolerant.nfs == len(U)
    strict = Simulator(problem(forward=REFUSING, **PLAIN), None, threads)
    with pytest.raises(SimulationError, match="raised ArithmeticError: too low") as caught:
        strict.evaluate(U, 2)
    assert "on a worker" in "".join(caught.value.__cause__.__notes__)


def raising_line(function, text):
    """Where a function of that file raises, as errors tell it."""
    lines, first = inspect.getsourcelines(function)
    line = first + next(i for i, own in enumerate(lines) if text in own)
    return f"rowwise.py, line {line}, in {function.__name__})"


@pytest.mark.parametrize("name", [None, *EXECUTORS])
def test_an_error_names_the_line_of_the_users_code(name, request):
    executor = None if name is None else request.getfixturevalue(name)
    strict = Simulator(problem(forward=REFUSING, **PLAIN), None, executor)
    with pytest.raises(SimulationError, match="raised ArithmeticError: too low") as caught:
        strict.evaluate(U, 2)
    assert str(caught.value).endswith(raising_line(rowwise.refusing, "raise "))
    for policy in ("raise", "reject"):
        options = {"vjp": rowwise.wrong_vjp, "forward_and_vjp": None, "on_failure": policy}
        with pytest.raises(SimulationError, match="raised KeyError: 'no pressure'") as caught:
            Simulator(problem(**options), None, executor).check()
        assert str(caught.value).endswith(raising_line(rowwise.wrong_vjp, "raise "))
        assert "\n" not in str(caught.value)


def test_a_field_that_ends_its_process_is_rejected():
    order = np.argsort(CORNER)
    u = U[order[[2, 3]]]  # one of the three, another
    with opened(1) as worker:
        tolerant = Simulator(problem(forward=CRASHING, on_failure="reject", **PLAIN), None, worker)
        found = tolerant.evaluate(u, 2)
    np.testing.assert_array_equal(np.isneginf(found.log_likelihood), [True, False])
    assert tolerant.failures == 1 and tolerant.nfs == 2


class Gone:
    """An executor whose cluster is no more."""

    def submit(self, *_):
        raise ConnectionError("nobody there")


@pytest.mark.parametrize("policy", ["raise", "reject"])
def test_an_executor_that_is_gone_ends_the_run_whatever_the_policy(policy, monkeypatch):
    monkeypatch.setattr(working, "PAUSE", 0)
    made = Simulator(problem(on_failure=policy), executor=Gone())
    with pytest.raises(SimulatorUnavailable, match=r"executor lost its workers: .*nobody there"):
        made.evaluate(U, 2)
    assert made.failures == 0


@pytest.mark.parametrize("name", ["processes", "client"])
@pytest.mark.parametrize("policy", ["raise", "reject"])
def test_a_forward_map_that_workers_cannot_load_ends_the_run(
    name, policy, request, tmp_path, monkeypatch
):
    """As where its module is not installed on the cluster; nothing waits for ever."""
    plain = Simulator(problem(), executor=request.getfixturevalue(name))
    plain.evaluate(U, 2)  # workers that begin later would have the path below
    (tmp_path / "installed_here_alone.py").write_text("def forward(x):\n    return x[:, 0, :2]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    here_alone = importlib.import_module("installed_here_alone")
    made = problem(forward=lambda x: here_alone.forward(np.asarray(x)), on_failure=policy, **PLAIN)
    there = Simulator(made, executor=request.getfixturevalue(name))
    with pytest.raises(SimulatorUnavailable, match=r"cannot load .* named 'installed_here_alone'"):
        there.evaluate(U, 2)
    assert there.failures == 0
    assert_equal(plain.evaluate(U, 2, True), Simulator(problem()).evaluate(U, 2, True))


class Forgetful(concurrent.futures.ThreadPoolExecutor):
    """Loses every third piece after it was computed."""

    sent = 0

    def submit(self, *arguments):
        self.sent += 1
        future = super().submit(*arguments)
        if self.sent % 3 == 0:
            future.result()
            future = concurrent.futures.Future()
            future.set_exception(ConnectionError("lost"))
        return future


def test_lost_pieces_are_computed_again_and_counted_once(monkeypatch):
    monkeypatch.setattr(working, "PAUSE", 0)
    here = Simulator(problem())
    with Forgetful(2) as executor:
        there = Simulator(problem(), budget=2 * len(U), executor=executor)
        assert_equal(there.evaluate(U, 2, True), here.evaluate(U, 2, True))
    assert there.nfs == here.nfs


def test_what_is_no_executor_is_refused():
    with refused("executor must be a number of processes, the address of a Dask scheduler"):
        Simulator(problem(), executor=[1])
    with refused("executor must be at least 1, got 0"):
        Simulator(problem(), executor=0)
    with refused("executor must be a whole number, got True"):
        Simulator(problem(), executor=True)
    with refused("executor must be the address of a Dask scheduler, as tcp://host:8786, got 'me'"):
        Simulator(problem(), executor="me")
    traceable = InverseProblem(PRIOR, lambda x: x[:, 0, :2], DATA, noise_std=0.1)
    with refused("executor must be None for a forward map in JAX"):
        fit(traceable, 1000, executor=2)


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr(working, "DASK_TIMEOUT", "0.2s")
    with refused("executor must be the address of a Dask scheduler that answers"):
        working.as_workers("tcp://127.0.0.1:9")


# --- arrays that are read from memory -------------------------------------------------------------


def recorded_pieces(workers, monkeypatch):
    """The pieces that are sent from now on."""
    sent, submit = [], workers.submit

    def recorded(function, arrays):
        sent.append(arrays)
        return submit(function, arrays)

    monkeypatch.setattr(workers, "submit", recorded)
    return sent


def are_lent(pieces):
    return {isinstance(piece[0], lending.Lent) for piece in pieces}


@pytest.mark.parametrize("name", ["processes", "client"])
def test_processes_of_this_machine_read_fields_from_memory(name, request, monkeypatch):
    with opened(working.as_workers(request.getfixturevalue(name))) as workers:
        monkeypatch.setattr(workers, "close", lambda: None)
        sent = recorded_pieces(workers, monkeypatch)
        Simulator(problem(), executor=workers).evaluate(U, 2)
        assert are_lent(sent) == {True}
        sent.clear()
        monkeypatch.setattr(lending, "LEAST_BYTES", U.nbytes + 1)
        Simulator(problem(), executor=workers).evaluate(U, 2)
        assert are_lent(sent) == {False}


def test_workers_elsewhere_are_sent_fields(client, monkeypatch):
    """They find another process, or none, where the memory of this one is said to be."""
    write = lending.Memory.write

    def elsewhere(memory, array, offset):
        return dataclasses.replace(write(memory, array, offset), name="msign-of-another-machine")

    monkeypatch.setattr(lending.Memory, "write", elsewhere)
    here, workers = Simulator(problem()), working.as_workers(client)
    there = Simulator(problem(), budget=4 * len(U), executor=workers)
    sent = recorded_pieces(workers, monkeypatch)
    assert_equal(there.evaluate(U, 2, True), here.evaluate(U, 2, True))
    assert are_lent(sent) == {True, False} and there.nfs == here.nfs
    sent.clear()
    there.evaluate(U, 2, True)
    assert are_lent(sent) == {False}


@pytest.fixture
def memories():
    """Says what memory this process lends, but for that of workers that others have open."""

    def names():
        found = set()
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # that of the listing itself
                found.add(os.readlink(f"/proc/self/fd/{number}"))
        return {name for name in found if name.startswith("/memfd:msign-")}

    before = names()
    return lambda: names() - before


def test_memory_is_given_back(client, memories):
    with opened(client) as workers:
        Simulator(problem(), executor=workers).evaluate(U, 2)
        assert len(memories()) == 1
    assert not memories()


def test_memory_of_a_batch_that_was_stopped_or_lost_is_not_written_again(memories, monkeypatch):
    """Whoever is lost may still read it."""
    monkeypatch.setattr(working, "PAUSE", 0)
    with opened(1) as workers:
        there = Simulator(problem(), executor=workers)
        there.evaluate(U, 2)
        first = memories()
        there.evaluate(U, 2)
        assert memories() == first and len(first) == 1
        sent = workers.sent

        def stopped(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(workers, "sent", stopped)
        with pytest.raises(KeyboardInterrupt):
            there.evaluate(U, 2)
        assert not memories()

        def once_lost(function, pieces):
            monkeypatch.setattr(workers, "sent", sent)
            return {}, dict.fromkeys(pieces, ConnectionError("lost"))

        monkeypatch.setattr(workers, "sent", once_lost)
        assert_equal(there.evaluate(U, 2, True), Simulator(problem()).evaluate(U, 2, True))
        assert not memories()


def test_a_process_that_is_killed_changes_nothing(tmp_path):
    """The piece is read from memory a second time."""
    fatal = FatalOnce(tmp_path, forward)
    here = Simulator(problem(**PLAIN)).evaluate(U, 2)
    with opened(2) as workers:
        there = Simulator(problem(forward=fatal, **PLAIN), executor=workers)
        assert_equal([there.evaluate(U, 2)[0]], [here[0]])
        fatal.armed.touch()
        assert_equal([there.evaluate(U, 2)[0]], [here[0]])
        assert fatal.spent.exists() and there.nfs == 2 * len(U)


# --- whole runs -----------------------------------------------------------------------------------


def small_fit(own, executor=None):
    flow = Informed(SMALL_INFORMED.config)
    config = FitConfig(flow=flow, round_size=100, rounds=2, steps=30)
    made = InverseProblem(ROW, own, [0.2, 0.1], noise_std=0.3, scales=2, chunk=25)
    return fit(made, 1500, 3, progress=False, config=config, executor=executor)


def test_a_dask_worker_killed_in_the_middle_changes_nothing(cluster, tmp_path):
    whole, fatal = small_fit(ring), FatalOnce(tmp_path)
    sent = []
    with opened(cluster.scheduler_address) as workers:
        submit = workers.submit

        def counted(*arguments):
            sent.append(1)
            if len(sent) == 20:  # half-way through the run
                fatal.armed.touch()
            return submit(*arguments)

        workers.submit = counted
        found = small_fit(fatal, workers)
    assert fatal.spent.exists() and len(sent) > 25
    assert found.nfs == whole.nfs
    x = np.random.default_rng(1).normal(size=(20, 4))
    np.testing.assert_array_equal(found.log_prob(x), whole.log_prob(x))
    weights = [p.certificates[2].log_weights for p in (found, whole)]
    np.testing.assert_array_equal(*weights)


# --- a run that ends ------------------------------------------------------------------------------

WITH_A_WORKER = """
import os, time
from msign.problems.workers import opened
with opened(1) as workers:
    print(workers.executor.submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_of_a_killed_run_end_too():
    """Nobody else would end them: they would wait for pieces for ever."""
    run = subprocess.Popen([sys.executable, "-c", WITH_A_WORKER], stdout=subprocess.PIPE, text=True)
    worker = int(run.stdout.readline())
    run.kill()
    run.wait()
    try:
        until = time.monotonic() + 60
        while is_running(worker) and time.monotonic() < until:
            time.sleep(0.1)
        assert not is_running(worker)
    finally:
        if is_running(worker):
            os.kill(worker, signal.SIGKILL)


def test_ctrl_c_is_for_the_run_and_not_for_its_workers():
    """A terminal sends it to all of them; the run itself says when it ends."""
    with opened(1) as workers:
        worker = workers.executor.submit(os.getpid).result()
        os.kill(worker, signal.SIGINT)
        assert workers.executor.submit(os.getpid).result() == worker
