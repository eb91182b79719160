"""fit on lattices of one to three dimensions, with channels, and on the elliptic problem."""

import jax.numpy as jnp
import numpy as np
import pytest

from conformance import SMALL_INFORMED
from helpers import seeded
from inference.small import exact_ess, gaussian_log_ratio, gaussian_posterior, linear_problem
from msign import FitConfig, Informed, InformedConfig, InverseProblem, LaplacePrior, Simulator, fit
from msign.problems import elliptic
from msign.weights import normalised, weight_report

pytestmark = pytest.mark.usefixtures("quick_compilation")


def assert_exact(posterior) -> None:
    """Every stage is the exact Gaussian of its scale, and is reported with one mode."""
    problem = posterior.problem
    for scale in posterior.scales:
        stage = posterior.stage(scale)
        u, ratio = stage.whitened_samples(200, seeded(1))
        exact = gaussian_log_ratio(problem, scale, u)
        np.testing.assert_allclose(ratio, exact, rtol=0, atol=1e-5)
        assert np.ptp(exact) > 0.5
        assert stage.certificate().jeffreys < 1e-6
        summary = stage.summary()
        assert len(summary["mode_fractions"]) == len(summary["mode_fractions_weighted"]) == 1
    assert [s["rounds"] for s in posterior.stages] == [1] * len(posterior.stages)


def signal(scales: int) -> InverseProblem:
    """The tutorial's problem: five blurred values of a signal of 32 cells."""
    cells = (np.arange(32) + 0.5) / 32
    blur = np.exp(-0.5 * ((cells - np.linspace(0.1, 0.9, 5)[:, None]) / 0.08) ** 2)
    blur /= blur.sum(axis=1, keepdims=True)
    truth = np.where((cells > 0.3) & (cells < 0.6), 1.0, 0.0)
    data = blur @ truth + 0.05 * np.random.default_rng(seeded(0)).normal(size=5)
    prior = LaplacePrior((32,), alpha=0.5, beta=4.0)
    forward = lambda x: x @ jnp.asarray(blur.T, x.dtype)  # noqa: E731
    return InverseProblem(prior, forward, data, noise_std=0.05, scales=scales)


def test_the_tutorials_signal():
    problem = signal(3)
    for seed in range(4):
        posterior = fit(problem, 4000, seed=seeded(seed), config=FitConfig(flow=SMALL_INFORMED))
        assert_exact(posterior)
    mean, covariance = gaussian_posterior(problem, 3)
    u, _ = posterior.whitened_samples(4000)
    error = np.sqrt(np.diag(covariance) / 4000)
    np.testing.assert_array_less(np.abs(u.mean(0) - mean), 5 * error)


def test_three_dimensions_and_channels():
    prior = LaplacePrior((2, 4, 4), alpha=0.5, beta=2.0, channels=2, boundary="neumann", kappa=1.0)
    problem = linear_problem(prior, 3, noise=0.05, scales=2)
    posterior = fit(problem, 3000, seed=seeded(0), config=FitConfig(flow=SMALL_INFORMED))
    assert posterior.sample(3).shape == (3, 2, 4, 4, 2)
    assert posterior.sample(3, scale=1).shape == (3, 1, 2, 2, 2)
    assert_exact(posterior)


@pytest.mark.parametrize("shape, scales", [((6, 10), 2), ((15,), 2)], ids=str)
def test_sides_of_factors_3_and_5(shape, scales):
    """By default as many scales as leave two cells per side; all of them exact."""
    boundary = "dirichlet" if len(shape) == 1 else "periodic"
    prior = LaplacePrior(shape, alpha=0.5, beta=2.0, boundary=boundary, kappa=1.0)
    problem = linear_problem(prior, 3, noise=0.05)
    assert problem.scales == scales
    posterior = fit(problem, 3000, seed=seeded(0), config=FitConfig(flow=SMALL_INFORMED))
    assert_exact(posterior)


def test_the_elliptic_problem():
    """In one stage, from the prior; by many draws of the prior, of which 1.6 percent count.

    They have the evidence, both divergences and what a draw of the model is worth.
    """
    flow = Informed(InformedConfig(max_rank=6, blocks=2, hidden=8))
    config = FitConfig(
        flow=flow, method="emulator", steps=60, single_stage=True, round_size=600, rounds=4
    )
    problem, n = elliptic(16, gamma=0.1, inflate=0), 40_000
    posterior = fit(problem, 6000, seed=seeded(0), config=config)
    assert posterior.scales == [4] and posterior.nfs <= 6000
    assert posterior.stages[0]["variables"] == 6
    u = np.random.default_rng(seeded(1)).normal(size=(n, problem.dim))
    values = Simulator(problem).evaluate(u, 4).log_likelihood
    prior, q, gained = weight_report(values), normalised(values), posterior.log_ratio(u)
    # Nearer to the posterior than the prior is, by KL(q||p) and by KL(p||q), which is the log
    # evidence but for the mean log-weight.
    assert q @ gained > 5 * np.sqrt(q**2 @ (gained - q @ gained) ** 2)
    log_weights = posterior.certificates[4].log_weights
    errors = [x.std() / np.sqrt(len(x)) for x in (log_weights, values)]
    assert log_weights.mean() - values.mean() > 5 * np.hypot(*errors)
    # And the certificate says how near it is.
    worth = exact_ess(posterior, u, values - prior.log_evidence, q)
    report, pool = posterior.certificate(), posterior.certificates[4]
    error = 1 / np.sqrt(n * prior.ess_fraction)
    assert log_weights.mean() < prior.log_evidence + 5 * np.hypot(error, errors[0])
    found = np.expm1(report.log_evidence - prior.log_evidence)
    assert abs(found) < 5 * np.hypot(error, 1 / np.sqrt(report.n * worth))
    assert abs(pool.log_evidence - prior.log_evidence) < 5 * np.hypot(
        error, pool.log_evidence_stderr
    )
    errors = pool.log_evidence_stderr, report.log_evidence_stderr
    assert abs(report.log_evidence - pool.log_evidence) < 5 * np.hypot(*errors)
