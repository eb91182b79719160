"""Mode capture and the reference, on posteriors whose modes are known."""

import jax.numpy as jnp
import numpy as np
import pytest

import msign
from msign import FitConfig, InformedConfig, InverseProblem, LaplacePrior
from msign.experiments.capture import capture, capture_lines, leading_eigenvectors, run_capture
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
    problem = InverseProblem(prior, forward, [1.0, 0.5], noise_std=0.1, name="mirrored")
    problem.symmetry = lambda x: np.asarray(x)[..., ::-1]
    return problem


@pytest.fixture(scope="module")
def posterior():
    small = InformedConfig(hidden=16, blocks=2, knots=8)
    config = FitConfig(round_size=1000, steps=150, rounds=5, informed=small)
    return msign.fit(mirrored_problem(), 20_000, config=config)


def test_both_modes_are_counted_at_every_scale(posterior):
    found = capture(posterior, n=3000)
    assert [c.scale for c in found] == posterior.scales
    for c in found[1:]:  # on two cells the antisymmetric mode is there too, but wide
        assert c.sizes[0] == pytest.approx(0.5, abs=0.05)
        assert c.sizes[1] == pytest.approx(0.5, abs=0.05)
        assert c.depth < 0.3
        assert c.critical == 1  # the second eigenvector is antisymmetric
        a, b = (c.fields[c.labels == k].mean(0) for k in (0, 1))
        np.testing.assert_allclose(a, b[::-1], atol=0.25 * np.abs(a).max())
    assert len(capture_lines(found)) == 1 + len(found)


def test_pictures_are_written(posterior, tmp_path):
    _, pictures = run_capture(posterior, tmp_path / "figures", 500, 0)
    assert sorted(p.name for p in pictures) == ["clusters.png", "eigenvectors.png", "necessity.png"]
    assert all(p.stat().st_size > 5000 for p in pictures)


def test_stages_report_their_modes(posterior):
    for stage in posterior.summary()["stages"][1:]:
        assert stage["mode_fractions"] == pytest.approx([0.5, 0.5], abs=0.06)
        assert stage["mode_fractions_weighted"] == pytest.approx([0.5, 0.5], abs=0.06)
        assert stage["ess_fraction"] > 0.5


def test_chains_agree_with_quadrature_and_the_flow_with_chains(posterior):
    """The second eigenvector is the observed antisymmetric part: its marginal is known."""
    problem = posterior.problem
    found = compare(posterior, chains=40, steps=800, n=4000)
    along = np.zeros(8)
    along[leading_eigenvectors(problem.prior)[1]] = 1
    b = np.linspace(-6, 6, 20_001)
    unit = problem.observe(np.asarray(problem.prior.unwhiten(jnp.asarray(along))[None]))[0, 0]
    density = np.exp(-0.5 * b**2 - 0.5 * ((unit * b**2 - 1) / 0.1) ** 2)
    exact = np.sqrt((b**2 * density).sum() / density.sum())
    chains = found.moments["chains"]
    assert abs(chains.std[1] - exact) < 4.5 * chains.std_error[1]
    # Mirror images: antisymmetric means vanish exactly, the symmetric one does not.
    np.testing.assert_allclose(chains.mean[1::2], 0, atol=1e-5)
    assert abs(chains.mean[0]) > 10 * chains.mean_error[0]
    for name in ("metropolis", "flow", "flow weighted"):
        moments = found.moments[name]
        np.testing.assert_allclose(moments.std, chains.std, atol=0.08)
        np.testing.assert_allclose(moments.mean, chains.mean, atol=0.15)
    same, none = deviations(chains, chains)
    assert np.all(same == 0) and np.all(none == 0)
    assert "against chains" in comparison_lines(found)[-1]
    assert set(as_json(found)["moments"]) == {"chains", "metropolis", "flow", "flow weighted"}


def test_eigenvectors_need_a_spectral_prior():
    with pytest.raises(ValueError, match="spectral"):
        leading_eigenvectors(DensePrior(np.eye(4), (4,)))


def test_chains_need_a_symmetry(posterior):
    problem = mirrored_problem()
    problem.symmetry = None
    posterior.problem, kept = problem, posterior.problem
    with pytest.raises(ValueError, match="symmetry"):
        compare(posterior, chains=2, steps=2, n=40)
    posterior.problem = kept
