"""The emulator: exact where the forward map is a polynomial, flat where it is not."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import msign
from helpers import killed_after, ring
from msign import FitConfig, InformedConfig, InverseProblem, LaplacePrior
from msign.inference import Posterior
from msign.inference.emulator import CUBIC, Terms, fit_emulator, tempered
from msign.inference.rundir import RunDirectory

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.usefixtures("quick_compilation")


def cubic_map(s):
    """Two residuals, cubic in three variables."""
    a, b, c = s.T
    return np.stack([1 + a - 2 * b * c + 0.3 * a**3, b**2 - a * b * c + 0.5 * c - 2], 1)


def test_polynomial_map_is_emulated_exactly():
    s = RNG.normal(size=(400, 3)) * [1, 0.01, 5] + [0, 3, -1]
    emulator = fit_emulator(s, cubic_map(s), np.zeros(400))
    fresh = RNG.normal(size=(50, 3)) * [1, 0.01, 5] + [0, 3, -1]
    exact = -0.5 * (cubic_map(fresh) ** 2).sum(1)
    emulated, slope = jax.vmap(emulator.log_likelihood)(jnp.asarray(fresh))
    np.testing.assert_allclose(emulated, exact, rtol=2e-3)
    by_autodiff = jax.vmap(jax.grad(lambda s: emulator.log_likelihood(s)[0]))(jnp.asarray(fresh))
    np.testing.assert_allclose(slope, by_autodiff, rtol=1e-9)


def test_what_is_not_emulated_widens_the_noise():
    """Residual s + e, e normal of variance 3 from other directions: the marginal has 1 + 3."""
    s = RNG.normal(size=(20_000, 1))
    residual = s + np.sqrt(3) * RNG.normal(size=(20_000, 1))
    emulator = fit_emulator(s, residual, np.zeros(20_000))
    value, _ = jax.vmap(emulator.log_likelihood)(jnp.asarray([[0.0], [1.0], [2.0]]))
    np.testing.assert_allclose(value - value[0], [0, -0.5 / 4, -2 / 4], atol=0.02)


def test_error_is_not_hidden_by_fitting_as_many_terms_as_fields():
    """Pure noise of variance one: what few fields seem to explain is put back."""
    variances = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        s, residual = rng.normal(size=(60, 2)), rng.normal(size=(60, 1))
        emulator = fit_emulator(s, residual, np.zeros(60))
        # A constant residual r has the emulated log-likelihood -r^2 / (2 (1 + variance)).
        rest = np.asarray(jax.vmap(emulator.residual)(jnp.asarray(s)))
        design = Terms.of(2, 60).design((s - s.mean(0)) / s.std(0))
        fitted = design @ np.linalg.lstsq(design, residual, rcond=None)[0]
        variances.append(float((fitted**2).sum() / (rest**2).sum()) - 1)
    assert np.mean(variances) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("rank, fields", [(1, 20), (3, 100), (16, 4000), (64, 4000), (64, 30_000)])
def test_terms_are_as_many_as_the_fields_can_tell(rank, fields):
    terms = Terms.of(rank, fields)
    assert len(terms) <= max(fields // 3, rank + 1)
    full = 1 + rank + rank * (rank + 1) // 2
    if fields >= 3 * (full + CUBIC**3):
        assert len(terms) > full
    design = terms.design(RNG.normal(size=(5, rank)))
    assert design.shape == (5, len(terms))
    assert len(np.unique(design, axis=1).T) == len(terms)


def test_weights_are_tempered_to_their_worth():
    log_weights = 5 * RNG.normal(size=1000)
    w = tempered(log_weights, 200)
    assert w.sum() == pytest.approx(1)
    assert 1 / np.sum(w**2) == pytest.approx(200, rel=1e-3)
    assert np.corrcoef(np.log(w), log_weights)[0, 1] > 0.999
    even = tempered(0.1 * log_weights, 200)
    np.testing.assert_allclose(even, np.exp(0.1 * log_weights) / np.exp(0.1 * log_weights).sum())


@pytest.fixture(scope="module")
def twisted():
    prior = LaplacePrior((4,), alpha=0.2, beta=2.0)
    return InverseProblem(prior, ring, [1.0, 0.1], noise_std=0.3, scales=1, name="twisted")


def log_evidence(problem, n=1_000_000):
    """By the prior's own draws."""
    u = jr.normal(jr.key(3), (n, 4))
    values = problem.evaluate(np.asarray(u), 1).log_likelihood
    return np.log(np.mean(np.exp(values)))


@pytest.mark.parametrize("derivative", [True, False])
def test_posterior_learned_from_an_emulator(twisted, derivative):
    """Two trained variables and two modes, with derivatives or without."""
    problem = twisted
    if not derivative:
        forward = lambda x: np.asarray(ring(jnp.asarray(x)))  # noqa: E731
        problem = InverseProblem(twisted.prior, forward, [1.0, 0.1], noise_std=0.3, scales=1)
    small = InformedConfig(hidden=16, blocks=4, spline_rank=0)
    config = FitConfig(objective="emulator", informed=small, round_size=1000, rounds=6, steps=300)
    posterior = msign.fit(problem, 12_000, config=config)
    summary = posterior.summary()
    assert summary["stages"][0]["trained_variables"] > 1
    assert summary["ess_fraction"] > 0.8
    error = summary["log_evidence"] - log_evidence(twisted)
    assert abs(error) < 4 * np.hypot(summary["log_evidence_stderr"], 0.003)
    assert summary["jeffreys"] < 0.3 * summary["stages"][0]["jeffreys_start"]


def test_rejected_simulations_are_left_out(twisted):
    def fails(x):
        x = np.asarray(x)
        found = np.array(ring(jnp.asarray(x)))
        found[x[:, 0] > 0.2] = np.nan
        return found

    problem = InverseProblem(
        twisted.prior, fails, [1.0, 0.1], noise_std=0.3, scales=1, on_failure="reject"
    )
    small = InformedConfig(hidden=8, blocks=2, spline_rank=0)
    config = FitConfig(objective="emulator", round_size=300, rounds=3, steps=50, informed=small)
    posterior = msign.fit(problem, 3000, config=config)
    assert posterior.failures > 0
    assert np.isfinite(posterior.log_weights).any()
    assert np.all(np.isfinite(posterior.sample(100)))


def test_interrupted_and_resumed_gives_the_same_numbers(twisted, tmp_path):
    """The residuals of the pool are part of a checkpoint."""
    small = InformedConfig(hidden=8, blocks=2, spline_rank=0)
    config = FitConfig(informed=small, round_size=200, rounds=4, steps=30, objective="emulator")
    complete = msign.fit(twisted, 3000, seed=1, config=config)
    with killed_after(RunDirectory, 2):
        msign.fit(twisted, 3000, seed=1, out=tmp_path, config=config)
    resumed = msign.fit(twisted, 3000, seed=1, out=tmp_path, resume=True, config=config)
    np.testing.assert_array_equal(resumed.log_weights, complete.log_weights)
    assert resumed.nfs == complete.nfs
    plain = Posterior.load(tmp_path)
    np.testing.assert_array_equal(plain.sample(5), complete.sample(5))
    for name in ("khat", "mode_fractions_weighted", "ess_fraction"):
        assert plain.stages[0][name] == complete.stages[0][name]
