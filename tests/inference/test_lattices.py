"""fit on lattices of one to three dimensions, with channels, and on the elliptic problem."""

import jax.numpy as jnp
import numpy as np
import pytest

from conformance import SMALL_INFORMED
from helpers import seeded
from inference.small import gaussian_log_ratio, gaussian_posterior, linear_problem
from msign import FitConfig, Informed, InformedConfig, InverseProblem, LaplacePrior, fit
from msign.problems import elliptic

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
    """In one stage, from the prior. What the certificate says agrees with the pool of training."""
    flow = Informed(InformedConfig(max_rank=6, blocks=2, hidden=8))
    config = FitConfig(
        flow=flow, method="emulator", steps=60, single_stage=True, round_size=600, rounds=4
    )
    posterior = fit(elliptic(16, gamma=0.1, inflate=0), 6000, seed=seeded(0), config=config)
    assert posterior.scales == [4] and posterior.nfs <= 6000
    certificate = posterior.certificates[4]
    report, (stage,) = posterior.certificate(), posterior.stages
    assert stage["variables"] == 6
    assert report.jeffreys + 5 * report.jeffreys_stderr < stage["jeffreys_start"]
    error = np.hypot(report.log_evidence_stderr, certificate.log_evidence_stderr)
    assert abs(report.log_evidence - certificate.log_evidence) < 5 * error
