"""fit on the synthetic problem, whose posterior is known exactly: accuracy, budget, certificate."""

import dataclasses
import json

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import msign
from helpers import seeded
from inference.small import exact_ess
from msign import (
    FitConfig,
    Informed,
    InformedConfig,
    InverseProblem,
    LaplacePrior,
    Pool,
    Posterior,
    Simulator,
    fit,
)
from msign.diagnostics import evaluate_against_reference
from msign.inference.certificate import Certificate
from msign.problems import SimulationError, synthetic
from msign.weights import normalised
from report.untrained import untrained

pytestmark = pytest.mark.usefixtures("quick_compilation")

SMALL = Informed(InformedConfig(blocks=4, hidden=16))
METHOD = Pool(steps=100, batch=512)
QUICK = FitConfig(flow=SMALL, method=METHOD, rounds=4)
BUDGET = 8_000
PROBLEM = synthetic(4, inflate=0)
KEYS = {
    "problem",
    "dimension",
    "nfs",
    "seconds",
    "reverse_kl",
    "forward_kl",
    "jeffreys",
    "jeffreys_stderr",
    "ess_fraction",
    "khat",
    "log_evidence",
    "log_evidence_stderr",
    "mode_fractions",
    "rmse",
    "stages",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    return fit(PROBLEM, BUDGET, seed=seeded(3), out=out, config=QUICK), out


def worth_of(posterior: Posterior, n: int = 2000) -> float:
    """Effective sample size per draw of the model, by exact samples of its posterior."""
    problem, scale = posterior.problem, posterior.scale
    u = problem.reference.sample(jr.key(seeded(2)), n, scale)
    log_q = Simulator(problem).evaluate(u, scale).log_likelihood
    return exact_ess(posterior, u, log_q - problem.reference.log_evidence(scale))


def test_the_certificate_is_right_about_divergence_and_evidence(run):
    posterior, _ = run
    exact = evaluate_against_reference(posterior, n=2000, moment_samples=500, seed=seeded(1))
    summary, n = posterior.summary(), posterior.certificate().n
    assert summary.keys() >= KEYS
    assert set(exact["rmse"]) == {"1", "2"}
    # Exact samples confirm the divergence that weights of the model's own samples estimate; these
    # have a bias of the order of one over what they are worth.
    worth = n * worth_of(posterior)
    error = 5 * np.hypot(exact["jeffreys_stderr"], summary["jeffreys_stderr"]) + 1 / worth
    assert abs(summary["jeffreys"] - exact["jeffreys"]) < error
    error = np.expm1(summary["log_evidence"] - exact["log_evidence_exact"])
    assert abs(error) < 5 / np.sqrt(worth)
    # Something was learned: the prior is where training began.
    assert exact["jeffreys"] + 5 * exact["jeffreys_stderr"] < exact["jeffreys_prior"]


def test_weights_give_both_modes_their_mass(run):
    """Equal, by symmetry: a coin has standard deviation one half."""
    posterior, n = run[0], 4000
    u, log_weights = posterior.importance(n, seeded(4))
    right = PROBLEM.reference.critical_values(u) > 0
    error = 5 * 0.5 / np.sqrt(n * worth_of(posterior))
    assert abs(normalised(log_weights) @ right - 0.5) < error


def test_the_summary_counts_modes_with_and_without_weights():
    """Of a model that has both modes, in the wrong shares: weights know the right ones.

    Exact samples stand for the model's, so that no training decides what is there to be counted.
    """
    posterior, n, share = untrained(PROBLEM), 2000, 0.8
    u = np.array(PROBLEM.reference.sample(jr.key(seeded(5)), n))
    index = PROBLEM.reference.critical_index()
    right = np.arange(n) < share * n
    u[:, index] = np.where(right, 1, -1) * np.abs(u[:, index])
    log_weights = np.log(np.where(right, 0.5 / share, 0.5 / (1 - share)))
    # Some of the variables, so that samples alone show the valley, not the model's density.
    some = np.append(index, np.delete(np.arange(16), index)[:3])
    posterior.certificates[2] = Certificate(log_weights, u[:, some])
    summary = posterior.summary()
    np.testing.assert_allclose(sorted(summary["mode_fractions"]), [1 - share, share], atol=0.01)
    np.testing.assert_allclose(summary["mode_fractions_weighted"], [0.5, 0.5], atol=0.02)
    assert summary["verdict"].startswith("GOOD")
    assert summary["ess_fraction"] == pytest.approx(1 / (0.25 / share + 0.25 / (1 - share)))


def test_a_directory_gets_figures_and_a_page_that_starts_with_the_verdict(run):
    posterior, out = run
    assert f">{posterior.certificate().grade}</span>" in (out / "report.html").read_text()
    names = {path.stem for path in (out / "figures").iterdir()}
    assert {"estimate", "samples", "modes", "marginal", "predictive", "weights"} <= names


def test_every_stage_comes_nearer_to_its_own_posterior(run):
    """By exact samples and exact evidence; it began at the prior, log p - log prior = 0."""
    posterior, _ = run
    reference = PROBLEM.reference
    for scale in (1, 2):
        stage = posterior.stage(scale)
        u = reference.sample(jr.key(seeded(2)), 2000, scale)
        gained = stage.log_ratio(u)  # of KL(q||p), in nats
        assert gained.mean() > 5 * gained.std() / np.sqrt(len(u))
        # The certificate of a stage is of the model that it chose by it: a little optimistic.
        held_out = stage.certificate()
        error = np.expm1(held_out.log_evidence - reference.log_evidence(scale))
        assert abs(error) < 6 / np.sqrt(held_out.n * worth_of(stage))


def test_budget_is_a_hard_limit_and_is_reported(run):
    posterior, out = run
    assert 0 < posterior.nfs <= BUDGET
    lines = [json.loads(line) for line in (out / "stages.jsonl").read_text().splitlines()]
    assert [(r["scale"], r["round"]) for r in lines] == sorted(
        (r["scale"], r["round"]) for r in lines
    )
    assert np.all(np.diff([r["nfs"] for r in lines]) > 0)
    certificate, checked = posterior.certificate().n, 2 * PROBLEM.scales
    assert posterior.nfs == checked + sum(s["nfs"] for s in posterior.stages) + certificate
    for stage in posterior.stages:
        own = [r for r in lines if r["scale"] == stage["scale"]]
        assert stage["rounds"] == len(own)
        assert stage["jeffreys"] == min(r["jeffreys"] for r in own) or stage["scale"] == 2
        assert stage["jeffreys_start"] == own[0]["jeffreys"]


def test_the_same_seed_gives_the_same_numbers():
    short = dataclasses.replace(QUICK, rounds=2)
    one, again, other = (fit(PROBLEM, 2000, seed=seeded(s), config=short) for s in (3, 3, 4))
    np.testing.assert_array_equal(again.sample(4), one.sample(4))
    assert again.certificate() == one.certificate() != other.certificate()


def test_corrections_are_of_the_posterior_and_count_their_samples(run):
    """T^2 has the exact mean, up to the error that the worth of the model's draws allows."""
    posterior, n = run[0], 300
    reference = PROBLEM.reference
    exact = reference.critical_values(reference.sample(jr.key(seeded(0)), 20_000)) ** 2
    corrected, chain = posterior.resample(n, seeded(1)), posterior.metropolis(n, seeded(1))
    # Chains of independent proposals are worth at least half of what weighted proposals are.
    for found, worth in ((corrected, 4 * n), (chain, n / 2)):
        assert found.fields.shape == (n, 4, 4)
        assert found.distinct == len(np.unique(found.fields, axis=0))
        t = reference.critical_values(PROBLEM.prior.whiten(jnp.asarray(found.fields)))
        error = np.sqrt(1 / n + 1 / (worth * worth_of(posterior)))
        assert abs(np.mean(t**2) - exact.mean()) < 6 * exact.std() * error


def test_read_again_with_its_problem(run):
    posterior, out = run
    again = Posterior.load(out, PROBLEM)
    assert again.summary() == posterior.summary()
    np.testing.assert_array_equal(again.resample(5).fields, posterior.resample(5).fields)


def test_certificate_says_no_to_an_untrained_model():
    """And is right in what it says: its evidence is that of the problem."""
    problem = synthetic(4, gamma=0.05, inflate=0)
    config = dataclasses.replace(QUICK, rounds=1, certificate=4000)
    posterior = fit(problem, 6000, seed=seeded(4), config=config)
    report, worth = posterior.certificate(), worth_of(posterior)
    assert worth < 0.05  # nothing was trained
    assert not report.verdict.startswith("GOOD")
    error = np.expm1(report.log_evidence - problem.reference.log_evidence())
    assert abs(error) < 5 / np.sqrt(report.n * worth)


# --- other forward maps ---------------------------------------------------------------------------


def test_rejected_simulations_have_no_mass(tmp_path):
    """One of the two modes cannot be simulated: the model leaves it, the evidence is halved.

    The forward map is a NumPy function without a derivative.
    """
    box = synthetic(4, black_box=True)
    weights = np.asarray(PROBLEM.reference._phi)

    def forward(x):
        observed = box.forward(x)
        return np.where(np.sum(weights * x, (1, 2))[:, None] > 0, np.nan, observed)

    problem = InverseProblem(
        box.prior, forward, box.data, noise_cov=box.noise_cov, scales=2, on_failure="reject"
    )
    posterior = fit(problem, BUDGET, seed=seeded(6), out=tmp_path, config=QUICK, report=False)
    assert posterior.failures > 0
    report, log_weights = posterior.certificate(), posterior.certificates[2].log_weights
    # Of the prior's draws half are rejected, up to five standard errors of a coin.
    assert np.mean(np.isneginf(log_weights)) < 0.5 - 5 * 0.5 / np.sqrt(report.n)
    exact = PROBLEM.reference.log_evidence() - np.log(2)
    worth = report.n * report.ess_fraction
    assert abs(np.expm1(report.log_evidence - exact)) < 5 / np.sqrt(worth)
    assert Posterior.load(tmp_path).certificate() == report


def test_failed_simulation_leaves_its_field(tmp_path):
    prior, calls = LaplacePrior((4,), 0.5, 1.0), 0

    def forward(x):
        nonlocal calls
        calls += 1
        out = np.asarray(x)[:, :1].copy()
        return out if calls < 5 else np.full_like(out, np.nan)

    problem = InverseProblem(prior, forward, [0.1], 0.1, scales=1)
    with pytest.raises(SimulationError, match="returned NaN") as failure:
        fit(problem, 2000, out=tmp_path, config=QUICK)
    field = np.load(tmp_path / "failed_field.npy")
    np.testing.assert_array_equal(field, failure.value.field)
    assert field.shape == (4,)


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"budget": 2.5}, "budget must be a whole number, got 2.5"),
        ({"resume": True, "out": "empty"}, "out must hold a run to resume"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        fit(PROBLEM, **{"budget": 2000, **arguments})


def test_directory_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    with pytest.raises(OSError, match="out must be a directory that can be written"):
        fit(PROBLEM, 5000, out=blocked)


def test_public_names():
    for name in msign.__all__:
        assert hasattr(msign, name)
