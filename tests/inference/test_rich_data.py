"""Posteriors far from the prior: data in every cell."""

import jax.numpy as jnp
import numpy as np
import pytest

import msign
from helpers import seeded
from msign import DensePrior, FitConfig, InverseProblem, LaplacePrior
from msign.experiments.run import summary_lines
from msign.inference import Cells, Cellwise, Glow, Informed
from msign.weights import ess_fraction, normalised

NOISE = 0.2
TRUTH = np.linspace(-1.5, 2.5, 16)


def independent_cells():
    """Sixteen independent cells, each seen through an exponential: known by quadrature."""
    prior = DensePrior(np.eye(16), (4, 4))
    data = np.exp(TRUTH) + NOISE * np.random.default_rng(0).normal(size=16)
    return InverseProblem(prior, lambda x: jnp.exp(x).reshape(len(x), -1), data, NOISE, scales=2)


@pytest.fixture(scope="module")
def posterior():
    config = FitConfig(flow=Cellwise())
    return msign.fit(independent_cells(), 40_000, seeded(1), progress=False, config=config)


def exact(data):
    """Log evidence, mean and standard deviation of one cell."""
    x = np.linspace(-8, 4, 20_001)
    log_q = -0.5 * x**2 - 0.5 * np.log(2 * np.pi) - 0.5 * ((data - np.exp(x)) / NOISE) ** 2
    q = np.exp(log_q)
    z = q.sum() * (x[1] - x[0])
    mean = (q * x).sum() / q.sum()
    return np.log(z), mean, np.sqrt((q * (x - mean) ** 2).sum() / q.sum())


def test_evidence_and_moments_are_those_of_quadrature(posterior):
    log_z, mean, deviation = np.transpose([exact(y) for y in posterior.problem.data])
    report, n = posterior.certificate(), 5000
    assert abs(report.log_evidence - log_z.sum()) < 5 * report.log_evidence_stderr + 1e-3
    u, log_weights = posterior.importance(n, seeded(2))
    x = np.asarray(posterior.prior.unwhiten(u)).reshape(n, 16)
    ess, w = ess_fraction(log_weights), normalised(log_weights)
    assert np.all(np.abs(w @ x - mean) < 5 * deviation / np.sqrt(n * ess))
    squares = (x - mean) ** 2 - deviation**2
    assert np.all(np.abs(w @ squares) < 5 * np.sqrt(w**2 @ squares**2))
    # Of the model itself: by Cauchy and Schwarz its means are off by no more than the root of the
    # chi-square divergence, 1 / ESS - 1.
    bound = np.sqrt(1 / ess - 1) + 5 / np.sqrt(n)
    assert np.all(np.abs(x.mean(0) - mean) < bound * deviation)
    (stage,) = posterior.stages
    assert report.jeffreys + 5 * report.jeffreys_stderr < stage["jeffreys_start"]


def test_only_the_finest_scale_is_trained(posterior):
    assert posterior.scales == [2]
    summary = posterior.summary()
    assert (summary["flow"], summary["scales_skipped"]) == ("Cellwise", [1])
    assert "Cellwise, from a start of its own: scales 1 are" in "\n".join(summary_lines(summary))
    assert posterior.nfs <= 40_000


def test_densities_samples_and_files_agree(posterior, tmp_path):
    x, log_p = posterior.sample_and_log_prob(50, seeded(3))
    np.testing.assert_allclose(posterior.log_prob(x), log_p, rtol=0, atol=2e-3)
    posterior.save(tmp_path / "run")
    again = msign.Posterior.load(tmp_path / "run", posterior.problem)
    np.testing.assert_array_equal(again.sample(50, seeded(3)), x)


def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(tmp_path):
    problem = independent_cells()
    config = FitConfig(flow=Cellwise(), method=Cells(steps=10), rounds=3, round_size=100)
    whole = msign.fit(problem, 8000, 0, progress=False, config=config)
    calls = []

    def failing(x):
        calls.append(len(x))
        if sum(calls) > 2400:
            raise KeyboardInterrupt
        return np.exp(x).reshape(len(x), -1)

    def vjp(x, c):
        return (c * np.exp(x).reshape(len(x), -1)).reshape(x.shape)

    def stopped(forward):
        return InverseProblem(
            problem.prior, forward, problem.data, NOISE, scales=2, vjp=vjp, name="numpy"
        )

    with pytest.raises(KeyboardInterrupt):
        msign.fit(stopped(failing), 8000, 0, out=tmp_path / "a", progress=False, config=config)
    plain = stopped(lambda x: np.exp(x).reshape(len(x), -1))
    resumed = msign.fit(
        plain, 8000, 0, tmp_path / "a", resume=True, progress=False, config=config, report=False
    )
    fresh = msign.fit(plain, 8000, 0, progress=False, config=config)
    assert resumed.nfs == fresh.nfs == whole.nfs + 6  # the vjp is checked
    np.testing.assert_array_equal(resumed.sample(5), fresh.sample(5))


def test_a_linear_problem_is_exact_at_once():
    prior = LaplacePrior((8, 8), alpha=0.5, beta=6.0)
    data = np.random.default_rng(seeded(4)).normal(size=64)
    problem = InverseProblem(prior, lambda x: x.reshape(len(x), -1), data, 0.1)
    posterior = msign.fit(problem, 2000, progress=False, config=FitConfig(flow=Cellwise()))
    assert posterior.certificate().jeffreys < 1e-3
    assert posterior.nfs < 2 * (3 * 65 + 12) + 1000


def black_box():
    """The same without a derivative."""
    problem = independent_cells()
    return InverseProblem(
        problem.prior,
        lambda x: np.exp(np.asarray(x)).reshape(len(x), -1),
        problem.data,
        NOISE,
        scales=2,
    )


def test_a_derivative_is_not_needed_on_a_small_lattice(posterior):
    found = msign.fit(
        black_box(), 20_000, seeded(5), progress=False, config=FitConfig(flow=Cellwise())
    )
    report, known = found.certificate(), posterior.certificate()
    (stage,) = found.stages
    assert stage["jeffreys"] < stage["jeffreys_start"]
    error = np.hypot(report.log_evidence_stderr, known.log_evidence_stderr)
    assert abs(report.log_evidence - known.log_evidence) < 4 * error + 1e-3


def test_cellwise_flows_say_what_they_need():
    with pytest.raises(ValueError, match="without a derivative: at most 8"):
        flow = Cellwise(largest=45)  # terms of a quadratic in eight variables
        msign.fit(black_box(), 10_000, progress=False, config=FitConfig(flow=flow))
    with pytest.raises(ValueError, match="no derivative"):
        msign.fit(black_box(), 10_000, progress=False, config=FitConfig(method="cells"))
    with pytest.raises(ValueError, match="for Cellwise flows"):
        config = FitConfig(method="cells", flow=Informed())
        msign.fit(independent_cells(), 10_000, progress=False, config=config)
    with pytest.raises(ValueError, match="budget must be at least"):
        msign.fit(independent_cells(), 200, progress=False, config=FitConfig(flow=Cellwise()))
    with pytest.raises(ValueError, match="at most 8"):
        flow = Cellwise(largest=8)
        msign.fit(independent_cells(), 10_000, progress=False, config=FitConfig(flow=flow))


@pytest.mark.parametrize(
    ("data", "size", "options", "expected"),
    [
        (65, 16, {}, Cellwise),
        (63, 16, {}, Informed),
        (65, 128, {}, Informed),  # too many cells
        (65, 16, {"method": "pool"}, Informed),
        (65, 16, {"flow": Glow()}, Glow),
    ],
)
def test_the_flow_is_chosen_by_the_number_of_data(data, size, options, expected):
    prior = LaplacePrior((size, size), alpha=0.5, beta=2.0)
    problem = InverseProblem(
        prior, lambda x: x.reshape(len(x), -1)[:, :data], np.zeros(data), 0.1, scales=1
    )
    assert isinstance(FitConfig(**options).for_problem(problem).flow, expected)
