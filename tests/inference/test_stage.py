"""The rules of a stage: which model it keeps, when it goes back, when it ends; for every method."""

import dataclasses
import functools
import types
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from conformance import METHODS, SMALL_INFORMED
from helpers import identical, ring
from inference.small import ring_problem, stage_of, start_at
from msign import Emulator, FitConfig, Pool, Simulator
from msign.bijections import TriangularMap
from msign.inference import stage as module
from msign.inference.files import FitFiles, prior_network
from msign.inference.methods import Method, MethodState, Stage
from msign.inference.simulate import Simulated
from msign.inference.stage import initial_state, train_stage
from msign.inference.target import Tempered
from msign.variables import Variables
from msign.weights import WeightReport, weight_report

pytestmark = pytest.mark.usefixtures("quick_compilation")
SIZE = 100  # fields of a round
TOLERANCE = 1e-3


# --- scripted stages: what rounds find is given, nothing is simulated or trained ------------------


class Call(NamedTuple):
    """One update that a stage asked for."""

    model: int
    rate: float


class ScriptState(MethodState):
    target: Tempered
    evidence: tuple[float, float] | None

    def log_evidence(self):
        return self.evidence


@dataclasses.dataclass(frozen=True)
class Script(Method):
    """Knows only how often it was called; its models are numbered."""

    temperatures: tuple[float, ...] = (1.0,)
    evidence: tuple[float, float] | None = None
    calls: list[Call] = dataclasses.field(default_factory=list)

    def init(self, stage: Stage) -> ScriptState:
        return ScriptState(Tempered(self.temperatures[0]), self.evidence)

    def observe(self, stage, state, model, drawn) -> ScriptState:
        done = min(stage.simulator.nfs // SIZE, len(self.temperatures) - 1)
        return ScriptState(Tempered(self.temperatures[done]), self.evidence)

    def update(self, stage, state, model, rate, key):
        self.calls.append(Call(number(model), rate))
        return state, numbered(len(self.calls)), 0.0


def numbered(i: int) -> Variables:
    return Variables(TriangularMap.from_matrix(np.eye(1), np.array([float(i)])), None, 1)


def number(model: Variables) -> int:
    return int(model.flow.shift[0])


@dataclasses.dataclass
class Round:
    """What the fields of a round say of the model."""

    jeffreys: float
    khat: float = 0.9
    stderr: float = 0.0
    log_evidence: float = 0.0
    bound: float | None = None  # on the log evidence; by default as much lower as J is higher
    few: float | None = None  # J as fewer fields than a whole round see it


class Outcome(NamedTuple):
    state: Any
    calls: list[Call]
    records: list[dict[str, Any]]
    simulations: int


@pytest.fixture
def played(monkeypatch):
    """A stage whose rounds find what a script says; the last round repeats itself."""

    def play(
        script: list[Round],
        method: Script | None = None,
        limit: int = 10**6,
        rounds: int = 16,
        first: int = SIZE,
        **options: Any,
    ) -> Outcome:
        method, records = method or Script(), []
        problem = types.SimpleNamespace(noise_cov=None)
        simulator = types.SimpleNamespace(nfs=0, problem=problem)

        def simulate(simulator, model, scale, key, n):
            simulator.nfs += n
            r = script[min(len(records), len(script) - 1)]
            log_ratio = np.full(n, r.jeffreys if r.bound is None else -r.bound)
            return Simulated(
                np.full((n, 1), number(model)), log_ratio, np.zeros(n), np.zeros((n, 0))
            )

        def report(log_weights) -> WeightReport:
            r = script[min(len(records), len(script) - 1)]
            partial = r.few is not None and len(log_weights) < SIZE
            return dataclasses.replace(
                weight_report(log_weights),
                jeffreys=r.few if partial else r.jeffreys,
                khat=r.khat,
                jeffreys_stderr=r.stderr,
                log_evidence=r.log_evidence,
            )

        monkeypatch.setattr(module, "simulate", simulate)
        monkeypatch.setattr(module, "weight_report", report)
        stage = stage_of(
            numbered(0),
            simulator,
            limit=limit,
            round_size=SIZE,
            first_round=first,
            rounds=rounds,
            learning_rate=1.0,
            tolerance=TOLERANCE,
        )
        config = FitConfig(tolerance=TOLERANCE, **options)
        state = initial_state(stage, method)
        state = train_stage(stage, state, method, config, lambda _, r: records.append(r))
        return Outcome(state, method.calls, records, simulator.nfs)

    return play


def test_the_model_of_the_lowest_divergence_is_kept(played):
    found = played([Round(0.5), Round(0.2), Round(0.3)], rounds=3)
    assert number(found.state.best) == 1 and found.state.divergence == 0.2
    assert found.state.shown[0, 0] == 1  # fields of that model
    assert [r["jeffreys"] for r in found.records] == [0.5, 0.2, 0.3]


def test_tails_of_the_weights_do_not_choose_the_model(played):
    """Nor prolong a stage: below the tolerance it ends, whatever k-hat is."""
    script = [Round(0.5, 0.1), Round(0.4, 0.9), Round(TOLERANCE / 2, 0.9)]
    found = played(script)
    assert [call.model for call in found.calls] == [0, 1]
    assert number(found.state.best) == 2 and found.state.khat == 0.9
    stopped = played(script, rounds=2)
    assert number(stopped.state.best) == 1 and stopped.state.khat == 0.9


def test_no_stage_ends_worse_than_it_began(played):
    found = played([Round(0.5), Round(0.6), Round(0.9)], rounds=3)
    assert number(found.state.best) == 0 and found.state.divergence == 0.5


def test_a_stage_ends_when_its_model_is_good_enough(played):
    found = played([Round(0.5, 0.1), Round(TOLERANCE / 2, 0.1)])
    assert found.state.round == 2 and len(found.calls) == 1


def test_evidence_that_a_model_lacks_counts_as_divergence(played):
    """The second model has perfect weights on the mode that is left to it."""
    known = Script(evidence=(0.0, 0.01))
    found = played([Round(0.2), Round(0.01, log_evidence=-0.7)], known, rounds=2)
    assert number(found.state.best) == 0
    assert found.records[1]["jeffreys"] == pytest.approx(0.71)


@pytest.mark.parametrize("patience", [1, 3])
def test_a_stage_ends_without_an_update_when_its_patience_does(played, patience):
    found = played([Round(0.5)], patience=patience)
    assert found.state.round == 1 + patience + 1
    # Every round is simulated and assessed; the last one is not followed by training.
    assert found.simulations == SIZE * found.state.round
    assert len(found.calls) == found.state.round - 1
    assert np.isnan(found.records[-1]["loss"]) and not np.isnan(found.records[0]["loss"])


@pytest.mark.parametrize(("limit", "rounds"), [(450, 16), (400, 16), (10**6, 4)])
def test_a_stage_ends_without_an_update_when_its_means_do(played, limit, rounds):
    script = [Round(1 / (1 + i)) for i in range(20)]
    found = played(script, limit=limit, rounds=rounds)
    assert found.state.round == 4 and len(found.calls) == 3
    assert found.simulations == 4 * SIZE <= limit


def test_small_gains_are_kept_but_do_not_go_on_for_ever(played):
    script = [Round(0.5 - 0.001 * i, stderr=0.01) for i in range(20)]
    found = played(script, patience=3)
    assert found.state.round < 10
    assert number(found.state.best) == found.state.round - 1
    larger = played([Round(0.5 * 0.85**i, stderr=0.001) for i in range(20)], rounds=16)
    assert larger.state.round == 16


def test_rounds_without_progress_slow_the_learning_down(played):
    found = played([Round(0.5 ** (i // 2)) for i in range(20)], rounds=6)
    assert [1 / call.rate for call in found.calls] == pytest.approx([1, 2, 2, 3, 3])


def test_a_bridge_is_never_stale(played):
    """While the target still moves, divergences from the posterior itself do not count."""
    bridge = Script(temperatures=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 1.0))
    found = played([Round(3.0)], bridge, patience=2)
    assert found.state.round == 7 + 2 + 1  # seven of them begin below the posterior
    assert [r["temperature"] for r in found.records[:7]] == [*bridge.temperatures[1:]]


@pytest.mark.parametrize(
    ("jeffreys", "back"), [(0.19, False), (0.25, False), (0.35, True), (1e9, True)]
)
def test_a_stage_goes_back_from_a_model_that_is_worse(played, jeffreys, back):
    """By more than the error of the estimate, which is 0.1 here."""
    script = [Round(0.2), Round(jeffreys, stderr=0.1), Round(0.1)]
    found = played(script, rounds=3)
    assert [r["went_back"] for r in found.records] == [False, back, False]
    first, second = found.calls
    assert second.model == (0 if back else 1)
    if back:
        assert second.rate == 0.5 * first.rate
    assert played(script, rounds=3, go_back=False).calls[1].model == 1
    # Weights that see too little may say so of a model that is better: the evidence bound tells.
    script[1] = dataclasses.replace(script[1], bound=1.0)
    assert played(script, rounds=3).calls[1].model == 1


@pytest.mark.parametrize(("bound", "back"), [(-0.5, False), (-600.0, True)])
def test_on_a_bridge_the_evidence_bound_tells_what_went_wrong(played, bound, back):
    """Divergences may rise on the way, as poor weights see them; the bound of the first is -1."""
    bridge = Script(temperatures=(0.1, 0.5, 0.5))
    found = played([Round(1.0), Round(1.2, bound=bound), Round(0.5)], bridge, rounds=3)
    assert [call.model for call in found.calls] == [0, 0 if back else 1]
    assert found.calls[1].rate == (0.5 if back else 1.0)


def test_there_is_no_way_back_before_anything_was_assessed(played):
    assert not played([Round(1e9)], rounds=1).records[0]["went_back"]


def test_rounds_begin_small_and_double(played):
    found = played([Round(8.0), Round(4.0), Round(2.0), Round(1.0)], rounds=4, first=SIZE // 4)
    used = np.diff([0, *(record["nfs"] for record in found.records)])
    assert used.tolist() == [SIZE // 4, SIZE // 2, SIZE, SIZE]


@pytest.mark.parametrize("whole", [0.5 * TOLERANCE, 5 * TOLERANCE])
def test_a_whole_round_decides_whether_a_model_is_good_enough(played, whole):
    script = [Round(1.0), Round(whole, few=0.5 * TOLERANCE), Round(0.1 * TOLERANCE)]
    found = played(script, first=SIZE // 4)
    assert found.records[1]["nfs"] == SIZE // 4 + SIZE
    assert found.records[1]["jeffreys"] == whole
    assert len(found.records) == (2 if whole < TOLERANCE else 3)


# --- every method on a true problem ---------------------------------------------------------------


@functools.cache
def stage() -> Stage:
    """The ring, as an informed flow starts it."""
    problem = ring_problem()
    network = prior_network(problem, FitConfig(flow=SMALL_INFORMED))
    network = start_at(network, 1, SMALL_INFORMED, problem)
    start = network.variables(1)
    return stage_of(start, Simulator(problem), round_size=SIZE, bridge_ess=0.01, tolerance=1e-9)


@dataclasses.dataclass(frozen=True)
class Ruining(Method):
    """A method whose second update goes wrong; it remembers what it was asked."""

    inner: Method = dataclasses.field(default_factory=lambda: METHODS["Pool"])
    calls: list = dataclasses.field(default_factory=list)

    def init(self, stage):
        return self.inner.init(stage)

    def observe(self, stage, state, model, drawn):
        return self.inner.observe(stage, state, model, drawn)

    def update(self, stage, *given):
        state, model, loss = self.inner.update(stage, *given)
        self.calls.append((given, model))
        if len(self.calls) == 2:
            last = lambda m: m.flow.bijections[-1].shift  # noqa: E731
            model = eqx.tree_at(last, model, last(model) + jnp.array([4.0, 0.0]))
        return state, model, loss


@pytest.mark.parametrize("name", METHODS)
def test_a_stage_goes_back_to_its_best_model_with_smaller_steps(name):
    method, records, states = Ruining(inner=METHODS[name]), [], []

    def after_round(state, record):
        records.append(record)
        states.append(state)

    given = stage()._replace(limit=stage().simulator.nfs + 4000)
    train_stage(given, initial_state(given, method), method, FitConfig(patience=9), after_round)
    assert records[2]["went_back"]
    asked, trained = method.calls[2]
    assert identical(asked[1], states[2].best)
    assert asked[2] < method.calls[1][0][2]
    assert records[3]["jeffreys"] < records[2]["jeffreys"]
    # Optimisers begin anew: asked the same again, out of the blue, a method does the same.
    later = given._replace(limit=given.simulator.nfs + 10**5)
    again = METHODS[name].update(later, *asked)[1]
    assert identical(again, trained) and not identical(again, asked[1])


@pytest.mark.parametrize("name", METHODS)
def test_no_method_exceeds_the_share_of_a_stage(name):
    for room in (SIZE, SIZE + 60, 3 * SIZE + 70):
        begin = stage().simulator.nfs
        given = stage()._replace(begin=begin, limit=begin + room)
        train_stage(
            given, initial_state(given, METHODS[name]), METHODS[name], FitConfig(), lambda *_: None
        )
        assert SIZE <= given.simulator.nfs - begin <= room


@pytest.mark.parametrize("method", [Pool(steps=300, batch=128), Emulator(steps=60)])
def test_a_stage_learns_where_some_simulations_are_rejected(method, tmp_path):
    """In every round some are; they neither hide what is learned nor spoil a checkpoint."""

    def forward(x):
        return np.where(np.asarray(x)[:, :1] > 0.2, np.nan, ring(jnp.asarray(x)))

    problem = ring_problem(forward=forward, on_failure="reject")
    network = prior_network(problem, FitConfig(flow=SMALL_INFORMED))
    network = start_at(network, 1, SMALL_INFORMED, problem)
    given = stage()._replace(
        start=network.variables(1), simulator=Simulator(problem), round_size=300, learning_rate=5e-3
    )
    records, files = [], FitFiles(tmp_path)
    files.save_prior(problem)

    def after_round(state, record):
        records.append(record)
        files.save_checkpoint(state, network, {})
        again = files.load_checkpoint(state, network)[0]
        np.testing.assert_array_equal(again.memory.pool.features, state.memory.pool.features)

    state = train_stage(given, initial_state(given, method), method, FitConfig(), after_round)
    assert given.simulator.failures > 4
    assert np.any(np.isneginf(state.log_weights))
    assert np.all(np.isfinite([r["jeffreys"] for r in records]))
    # What the weights of the start see of its divergence can be too little to be beaten in a few
    # rounds. The evidence bound of a round, of the fields that could be simulated, is unbiased.
    pool, bounds = state.memory.pool, []
    for i, own in enumerate(np.split(np.arange(pool.size), pool.size // 300)):
        own = own[np.isfinite(pool.features[own]).all(1)]
        log_weights = pool.log_likelihood[own] - pool.log_ratio[i, own]
        bounds.append((log_weights.mean(), log_weights.std() / np.sqrt(len(own))))
    (first, error), (best, _) = bounds[0], max(bounds[1:])
    assert best > first + 2 * error  # by chance one time in forty, had nothing been learned
