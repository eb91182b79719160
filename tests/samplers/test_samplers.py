"""Every sampler: the known answer, the budget, the seed, the errors."""

import jax.numpy as jnp
import numpy as np
import pytest

from helpers import seeded
from msign import DensePrior, InverseProblem
from msign.inference.methods.objectives import kernelised_stein_discrepancy
from msign.problems import BudgetExceeded, Simulator
from msign.samplers.effective import worth_of_groups
from msign.weights import ess_fraction, normalised
from samplers.known import EXACT, GRADIENT, SAMPLERS, exact, functions, two_modes_and_a_stiff_sum

pytestmark = pytest.mark.usefixtures("quick_compilation")
BUDGET, N = 12_000, 200
SIGMAS = 6.0  # standard errors, themselves estimated from 20 groups


def sizes(name: str) -> int:
    """Fields of a run: few particles where they make few steps, or where each has a search."""
    return 60 if "svgd" in name or name == "geovi" else N


class Runs:
    """Samples of each sampler, and how many fields were really simulated, when first asked for."""

    def __init__(self):
        self.found = {}

    def __getitem__(self, name: str):
        if name not in self.found:
            problem, counted = two_modes_and_a_stiff_sum()
            samples = SAMPLERS[name].run(problem, 1, BUDGET, sizes(name), seeded(3))
            self.found[name] = samples, counted
        return self.found[name]


@pytest.fixture(scope="module")
def runs():
    return Runs()


@pytest.mark.parametrize("name", SAMPLERS)
def test_counts_what_was_simulated_and_keeps_the_budget(name, runs):
    samples, counted = runs[name]
    assert samples.nfs == counted.forward + counted.vjp <= BUDGET
    n = sizes(name)
    assert samples.fields.shape == (n, 2, 2) and samples.u.shape == (n, 4)
    assert samples.seconds > 0
    assert samples.trained is None or 0 < samples.trained.nfs < samples.nfs


@pytest.mark.parametrize("name", EXACT)
def test_moments_are_within_monte_carlo_error(name, runs):
    samples, _ = runs[name]
    means, variances, _ = exact()
    groups = samples.chain if samples.chain is not None else samples.family
    values = functions(samples.u)
    worth = np.array([worth_of_groups(f, groups) for f in values.T])
    error = np.abs(values.mean(0) - means) / np.sqrt(variances / worth)
    assert error.max() < SIGMAS, error


def test_weighted_moments_of_the_laplace_mixture_and_its_evidence(runs):
    samples, _ = runs["laplace"]
    means, variances, log_evidence = exact()
    assert samples.information["maxima"] == 2
    worth = N * ess_fraction(samples.log_weights)
    error = np.abs(normalised(samples.log_weights) @ functions(samples.u) - means)
    assert np.all(error < SIGMAS * np.sqrt(variances / worth))
    assert abs(samples.log_evidence - log_evidence) < SIGMAS * np.sqrt(1 / worth)


def discrepancy(u: np.ndarray) -> float:
    """Kernelised Stein discrepancy of whitened fields from the posterior: what SVGD descends."""
    problem, _ = two_modes_and_a_stiff_sum()
    slope = Simulator(problem).evaluate(u, 1, gradient=True).gradient
    return float(kernelised_stein_discrepancy(jnp.asarray(u), jnp.asarray(slope - u)))


def prior_draws(n: int) -> np.ndarray:
    return np.random.default_rng(seeded(4)).normal(size=(n, 4))


@pytest.mark.parametrize("name", ["svgd", "psvgd", "asvgd"])
def test_stein_s_discrepancy_falls(name, runs):
    """From that of prior draws, where particles and the generator begin."""
    samples, _ = runs[name]
    assert discrepancy(samples.u) < 0.5 * discrepancy(prior_draws(len(samples.u)))


@pytest.mark.parametrize("name", ["svgd", "psvgd"])
def test_particles_are_where_the_posterior_is(name, runs):
    """SVGD has no Monte Carlo error; in few dimensions its particles are close to the truth.

    But for the first function, the mode, between which early steps shift particles.
    """
    samples, _ = runs[name]
    means, variances, _ = exact()
    error = np.abs(functions(samples.u).mean(0) - means) / np.sqrt(variances)
    assert error[1:].max() < 0.5, error


def test_the_density_of_the_amortized_generator_is_that_of_its_samples(runs):
    """Whatever it has learned: its ratio to the prior has mean one under the prior, and an
    average of samples is that of weighted prior draws."""
    samples, _ = runs["asvgd"]
    u = prior_draws(40_000)
    ratio = np.exp(samples.log_ratio(u))
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / np.sqrt(len(u))
    for f, own in zip(functions(u).T, functions(samples.u).T, strict=True):
        weighted = ratio * (f - own.mean())
        error = np.hypot(weighted.std() / np.sqrt(len(u)), own.std() / np.sqrt(len(own)))
        assert abs(weighted.mean()) < 5 * error


def test_evidence_of_smc(runs):
    for name in ("smc", "smc-pcn"):
        samples, _ = runs[name]
        stderr = samples.information["log_evidence_stderr"]
        assert abs(samples.log_evidence - exact()[2]) < SIGMAS * max(stderr, N**-0.5)


@pytest.mark.parametrize("name", SAMPLERS)
def test_same_seed_same_numbers(name):
    problem, _ = two_modes_and_a_stiff_sum()
    first, again, other = (SAMPLERS[name].run(problem, 1, 1500, 20, s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.u, again.u)
    assert first.nfs == again.nfs
    assert not np.array_equal(first.u, other.u)


@pytest.mark.parametrize("name", [*GRADIENT, "smc-langevin"])
def test_a_missing_derivative_is_named_before_any_work(name):
    from msign.samplers import TemperedSMC

    problem, counted = two_modes_and_a_stiff_sum(derivative=False)
    sampler = SAMPLERS.get(name, TemperedSMC("langevin"))
    with pytest.raises(ValueError, match="derivative"):
        sampler.run(problem, 1, BUDGET, N, 0)
    assert counted.forward == 0


@pytest.mark.parametrize("name", ["pcn", "slice", "smc"])
def test_no_derivative_is_needed(name):
    problem, counted = two_modes_and_a_stiff_sum(derivative=False)
    samples = SAMPLERS[name].run(problem, 1, 2500, 20, 0)
    assert samples.nfs == counted.forward <= 2500


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_budget_that_is_too_small_is_named(name):
    problem, counted = two_modes_and_a_stiff_sum()
    with pytest.raises((ValueError, BudgetExceeded), match="budget"):
        SAMPLERS[name].run(problem, 1, 21, 20, 0)
    assert counted.forward + counted.vjp <= 21


@pytest.mark.parametrize("name", EXACT)
def test_proposals_where_nothing_can_be_simulated_are_rejected(name):
    """A stiff likelihood throws the first trajectories out of where the forward map is defined."""

    def forward(x):
        return jnp.where(jnp.abs(x).max(1, keepdims=True) < 4.5, 30 * x, jnp.nan)

    prior = DensePrior(np.eye(2), (2,))
    problem = InverseProblem(prior, forward, np.array([30.0, 0.0]), 1.0, scales=1)
    samples = SAMPLERS[name].run(problem, 1, BUDGET, N, seeded(5))
    assert np.abs(samples.u).max() < 4.5
    np.testing.assert_allclose(samples.u.mean(0), [1, 0], atol=0.05)
