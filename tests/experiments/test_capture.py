"""Mode capture and the reference, on posteriors whose modes are known."""

import jax.numpy as jnp
import numpy as np
import pytest

import msign
from helpers import refused, seeded
from msign import FitConfig, InverseProblem, LaplacePrior
from msign.experiments.capture import (
    capture,
    capture_lines,
    leading_eigenvectors,
    run_capture,
    valley_depth,
)
from msign.experiments.reference import as_json, compare, comparison_lines, deviations
from msign.priors import DensePrior


def mirrored_problem():
    """F = t^2 of the antisymmetric part of 8 cells, and a linear observation of the symmetric."""
    size = 8
    s = (np.arange(size) + 0.5) / size
    odd, even = jnp.asarray(np.sin(2 * np.pi * s)), jnp.asarray(np.sin(np.pi * s))

    def forward(x):
        return jnp.stack([(x @ odd) ** 2, x @ even], -1) / size

    prior = LaplacePrior((size,), alpha=0.1, beta=4.0)
    return InverseProblem(
        prior,
        forward,
        [1.0, 0.5],
        noise_std=0.1,
        scales=2,
        inflate=0,
        symmetry=lambda x: np.asarray(x)[..., ::-1],
        name="mirrored",
    )


@pytest.fixture(scope="module")
def posterior():
    config = FitConfig(round_size=1000, steps=100, rounds=6)
    return msign.fit(mirrored_problem(), 15_000, config=config, seed=seeded(0))


def off(ess_fraction):
    """How far a model's mean may be from the posterior's, in units of the standard deviation.

    By Cauchy and Schwarz at most the root of the chi-square divergence, 1 / ESS - 1. So what is
    true of the posterior is tested for the model as closely as its own training allows.
    """
    return np.sqrt(1 / ess_fraction - 1)


def test_both_modes_are_counted_at_every_scale(posterior):
    n = 3000
    found = capture(posterior, n=n, seed=seeded(5))
    assert [c.scale for c in found] == posterior.scales == [1, 2]
    for c in found:
        raw, weighted = c.sizes
        # One half each, by symmetry: a coin has standard deviation one half.
        assert abs(raw - 0.5) < 0.5 * (off(c.ess_fraction) + 5 / np.sqrt(n))
        assert abs(weighted - 0.5) < 0.5 * 5 / np.sqrt(n * c.ess_fraction)
        assert c.critical == 1  # the second eigenvector is antisymmetric
    assert len(capture_lines(found)) == 1 + len(found)


@pytest.mark.parametrize("apart", [0.0, 2.0, 4.0, 8.0])
def test_the_valley_is_as_deep_as_that_of_the_density(apart):
    """Two halves of equal Gaussians, `apart` standard deviations; 40,000 points in the plane."""
    n = 40_000
    rng = np.random.default_rng(seeded(6))
    labels = np.arange(n) % 2
    x = rng.normal(size=(n, 2)) + np.stack([apart * labels, 0 * labels], 1)
    if apart < 4:  # clusters of one hump are its two halves
        labels = (x[:, 0] > 0.5 * apart).astype(int)
    t = np.linspace(-4, apart + 4, 2001)
    density = np.exp(-0.5 * t**2) + np.exp(-0.5 * (t - apart) ** 2)
    exact = density[1000] / density.max()
    # Bins are as wide as a sixteenth of the clusters' distance, three are averaged, and the
    # extremes of counts of about n / 20 are off by a few of their standard deviations.
    assert abs(valley_depth(x, labels) - exact) < 0.03 + 5 / np.sqrt(n / 20)


def test_pictures_are_written(posterior, tmp_path):
    _, pictures = run_capture(posterior, tmp_path / "figures", 500, 0)
    assert sorted(p.name for p in pictures) == ["clusters.png", "eigenvectors.png", "necessity.png"]
    assert all(p.stat().st_size > 5000 for p in pictures)


def test_chains_agree_with_quadrature_and_the_flow_with_chains(posterior):
    """The second eigenvector is the observed antisymmetric part: its marginal is known."""
    problem, n = posterior.problem, 4000
    found = compare(posterior, chains=40, steps=400, n=n, seed=seeded(11))
    along = np.zeros(8)
    along[leading_eigenvectors(problem.prior)[1]] = 1
    b = np.linspace(-6, 6, 20_001)
    unit = problem.forward(problem.prior.unwhiten(jnp.asarray(along))[None])[0, 0]
    density = np.exp(-0.5 * b**2 - 0.5 * ((unit * b**2 - 1) / 0.1) ** 2)
    exact = np.sqrt((b**2 * density).sum() / density.sum())
    chains = found.moments["chains"]
    assert abs(chains.std[1] - exact) < 5 * chains.std_error[1]
    # Mirror images: antisymmetric means vanish exactly, the symmetric one does not.
    np.testing.assert_allclose(chains.mean[1::2], 0, atol=1e-5)
    assert abs(chains.mean[0]) > 10 * chains.mean_error[0]
    # Exact methods agree up to their errors; 20 batches know theirs less well.
    for name in ("metropolis", "flow weighted"):
        for difference in deviations(found.moments[name], chains):
            assert np.abs(difference).max() < 6
    flow, ess = found.moments["flow"], posterior.certificate().ess_fraction
    bound = off(ess) * chains.std + 6 * np.hypot(flow.mean_error, chains.mean_error)
    assert np.all(np.abs(flow.mean - chains.mean) < bound)
    same, none = deviations(chains, chains)
    assert np.all(same == 0) and np.all(none == 0)
    assert "against chains" in comparison_lines(found)[-1]
    assert set(as_json(found)["moments"]) == {"chains", "metropolis", "flow", "flow weighted"}


def test_eigenvectors_need_a_spectral_prior():
    with refused("spectral", "DensePrior"):
        leading_eigenvectors(DensePrior(np.eye(4), (4,)))


def test_chains_need_a_symmetry(posterior, monkeypatch):
    monkeypatch.setitem(vars(posterior.problem), "symmetry", None)
    with refused("symmetry", "none"):
        compare(posterior, chains=2, steps=2, n=40)
