"""fit and Posterior on small problems: accuracy, budget, files, interruption, certificate."""

import json

import arviz as az
import jax.numpy as jnp
import numpy as np
import pytest

import msign
from helpers import killed_after
from msign import FitConfig, InverseProblem, LaplacePrior, Posterior, fit
from msign.diagnostics import evaluate_against_reference
from msign.inference.rundir import RunDirectory
from msign.problems import SimulationError, synthetic

QUICK = FitConfig(steps=150, batch_size=512, tolerance=0.003, rounds=8)
BUDGET = 8_000
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
    problem = synthetic(4)
    return fit(problem, BUDGET, seed=3, out=out, config=QUICK), out


def test_divergence_evidence_and_modes(run):
    posterior, _ = run
    exact = evaluate_against_reference(posterior, n=2000, moment_samples=500)
    assert exact["jeffreys"] < 0.05
    summary = posterior.summary()
    assert summary.keys() >= KEYS
    error = abs(summary["log_evidence"] - exact["log_evidence_exact"])
    assert error < 4 * summary["log_evidence_stderr"] + 1e-3
    np.testing.assert_allclose(summary["mode_fractions"], 0.5, atol=0.08)
    assert summary["verdict"].startswith("GOOD")
    assert set(exact["rmse"]) == {"1", "2"}


def test_budget_is_a_hard_limit_and_is_reported(run):
    posterior, out = run
    assert 0 < posterior.nfs <= BUDGET
    lines = [json.loads(line) for line in (out / "stages.jsonl").read_text().splitlines()]
    assert [r["scale"] for r in lines] == sorted(r["scale"] for r in lines)
    assert max(r["nfs"] for r in lines) <= BUDGET
    assert sum(s["nfs"] for s in posterior.stages) <= posterior.nfs
    assert all(s["jeffreys"] <= s["jeffreys_start"] for s in posterior.stages)


def test_density_is_that_of_the_network(run):
    posterior, _ = run
    x, log_p = posterior.sample_and_log_prob(20, seed=1)
    np.testing.assert_allclose(posterior.log_prob(x), log_p, atol=2e-2)
    np.testing.assert_allclose(posterior.network().log_prob(x), log_p, atol=2e-2)
    np.testing.assert_array_equal(posterior.sample(20, seed=1), x)
    assert not np.array_equal(posterior.sample(20, seed=2), x)
    assert posterior.at_scale(1).sample(3).shape == (3, 2, 2)


def test_corrections_rest_on_distinct_samples(run):
    posterior, _ = run
    corrected = posterior.resample(200, seed=1)
    assert corrected.fields.shape == (200, 4, 4)
    assert 150 <= corrected.distinct <= 200
    chain = posterior.metropolis(300, seed=1)
    assert chain.fields.shape == (300, 4, 4)
    assert chain.acceptance > 0.8
    t = posterior.problem.reference.critical_values(
        posterior.problem.prior.whiten(jnp.asarray(chain.fields))
    )
    assert np.std(t) == pytest.approx(1.0, abs=0.15)


def test_save_and_load(run, tmp_path):
    posterior, out = run
    again = Posterior.load(out, synthetic(4))
    np.testing.assert_array_equal(again.sample(5), posterior.sample(5))
    assert again.summary() == posterior.summary()
    blind = Posterior.load(out)
    np.testing.assert_array_equal(blind.sample(5), posterior.sample(5))
    with pytest.raises(ValueError, match="problem must be given"):
        blind.resample(3)
    with pytest.raises(ValueError, match="problem must be that of the run: dimension 16, got 64"):
        Posterior.load(out, synthetic(8))
    posterior.save(tmp_path / "copy")
    np.testing.assert_array_equal(Posterior.load(tmp_path / "copy").sample(5), posterior.sample(5))


def test_arviz(run, tmp_path):
    data = run[0].to_arviz(30)
    assert data.posterior["x"].shape == (1, 30, 4, 4)
    data.to_netcdf(str(tmp_path / "samples.nc"))
    assert az.from_netcdf(str(tmp_path / "samples.nc")).posterior["x"].shape == (1, 30, 4, 4)


@pytest.mark.parametrize("moment", [2, 4])
def test_killed_and_resumed_gives_the_same_numbers(run, tmp_path, moment):
    """The moments are after the write of a checkpoint; in between, the last one counts."""
    complete, _ = run
    with killed_after(RunDirectory, moment):
        fit(synthetic(4), BUDGET, seed=3, out=tmp_path, config=QUICK)
    with pytest.raises(ValueError, match="out holds a run already"):
        fit(synthetic(4), BUDGET, seed=3, out=tmp_path, config=QUICK)
    with pytest.raises(ValueError, match="seed must be that of the run to resume: it was 3, got 4"):
        fit(synthetic(4), BUDGET, seed=4, out=tmp_path, resume=True, config=QUICK)
    resumed = fit(synthetic(4), BUDGET, seed=3, out=tmp_path, resume=True, config=QUICK)
    np.testing.assert_array_equal(resumed.log_weights, complete.log_weights)
    np.testing.assert_array_equal(resumed.sample(4), complete.sample(4))
    assert resumed.nfs == complete.nfs


def test_resuming_after_a_stage_does_not_count_the_inflated_noise_again(tmp_path):
    def made():
        prior = LaplacePrior((8,), 0.5, 1.0)
        return InverseProblem(prior, lambda x: x[:, :2] ** 3, [0.1, 0.2], 0.1, inflate=30)

    config = FitConfig(rounds=2, steps=5, tolerance=1e-9, subspace_samples=20)
    whole = fit(made(), 3000, config=config)
    with killed_after(RunDirectory, 3):  # in the first round of the second stage
        fit(made(), 3000, out=tmp_path, config=config)
    resumed = fit(made(), 3000, out=tmp_path, resume=True, config=config)
    assert resumed.nfs == whole.nfs
    np.testing.assert_array_equal(resumed.log_weights, whole.log_weights)


def test_certificate_says_no_to_an_untrained_model():
    posterior = fit(synthetic(4, gamma=0.03), 3000, config=FitConfig(rounds=1))
    assert posterior.summary()["verdict"].startswith("NOT RELIABLE")


def test_failed_simulation_leaves_its_field(tmp_path):
    prior = LaplacePrior((8,), 0.5, 1.0)
    calls = 0

    def forward(x):
        nonlocal calls
        calls += 1
        out = np.asarray(x)[:, :1].copy()
        return out if calls < 6 else np.full_like(out, np.nan)

    with pytest.raises(SimulationError, match="returned NaN"):
        fit(InverseProblem(prior, forward, [0.1], 0.1), 2000, out=tmp_path, config=QUICK)
    assert np.load(tmp_path / "failed_field.npy").shape == (8,)


def test_linear_gaussian_posterior_is_exact():
    prior = LaplacePrior((8,), alpha=0.5, beta=2.0)
    cells = (np.arange(8) + 0.5) / 8
    blur = np.exp(-((cells - np.array([[0.3], [0.7]])) ** 2) / (2 * 0.1**2))
    blur /= blur.sum(1, keepdims=True)
    data, noise = np.array([0.5, -0.4]), 0.1
    problem = InverseProblem(
        prior, lambda x: x @ jnp.asarray(blur.T, x.dtype), data, noise, scales=1
    )
    posterior = fit(problem, 6000, config=QUICK)
    lift = np.asarray(prior.unwhiten(jnp.eye(8)))
    slope = blur @ lift.T / noise
    covariance = np.linalg.inv(np.eye(8) + slope.T @ slope)
    mean = covariance @ slope.T @ data / noise
    u, _ = posterior.whitened_samples(20_000)
    np.testing.assert_allclose(u.mean(0), mean, atol=0.05)
    np.testing.assert_allclose(u.var(0), np.diag(covariance), atol=0.06)
    assert posterior.certificate().jeffreys < 0.005


def test_black_box():
    box = fit(synthetic(4, black_box=True), 8000, config=QUICK)
    assert evaluate_against_reference(box, 1000, 200)["jeffreys"] < 0.2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 10}, "budget must be at least 1000, got 10"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"resume": True, "out": "{tmp}"}, "out must hold a run to resume"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path):
    if "out" in arguments:
        arguments = {**arguments, "out": tmp_path}
    with pytest.raises(ValueError, match=message):
        fit(synthetic(4), **arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flow": "spline"}, "flow must be one of 'informed', 'glow', 'both', got 'spline'"),
        ({"objective": "mse"}, "objective must be one of"),
        ({"averaging": 1.0}, r"averaging must be in \[0, 1\), got 1.0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"conditioning": "nearest"}, "flow must be 'glow' with conditioning='nearest'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        FitConfig(**options)


def test_objectives_that_need_a_derivative_are_refused_before_any_work():
    problem = synthetic(4, black_box=True)
    with pytest.raises(ValueError, match="objective must not be 'pathwise'"):
        fit(problem, 5000, config=FitConfig(flow="glow", objective="pathwise"))
    assert problem.nfs == 0


def test_directory_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    with pytest.raises(OSError, match="out must be a directory that can be written"):
        fit(synthetic(4), 5000, out=blocked)


def test_public_names():
    for name in msign.__all__:
        assert hasattr(msign, name)
