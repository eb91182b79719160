"""The elliptic problem: symmetry, normalisation, its maxima at small sizes."""

import jax.random as jr
import numpy as np
import pytest

from helpers import refused
from msign.experiments.modes import certify_modes, mode_lines
from msign.experiments.multiscale import discretisation_errors, multiscale_figure
from msign.problems import InverseProblem, Simulator, elliptic
from msign.problems.elliptic import load, mirror, observation_patches, truth
from msign.report.elliptic import elliptic_figure


@pytest.fixture(scope="module")
def problem():
    return elliptic(16, inflate=0)


def test_patches_are_normalised_symmetric_and_where_they_should_be():
    patches = observation_patches(64)
    assert patches.shape == (15, 64, 64)
    np.testing.assert_allclose((patches**2).sum((1, 2)) / 64**2, 1)
    np.testing.assert_array_equal(patches, mirror(patches))
    s = (np.arange(64) + 0.5) / 64
    centre = (patches.sum(2) @ s) / patches.sum((1, 2))
    np.testing.assert_allclose(centre, np.repeat(np.arange(1, 6) / 6, 3), atol=1 / 64)


def test_load_is_symmetric_and_the_truth_antisymmetric():
    s = np.linspace(0, 1, 33)
    f = load(*np.meshgrid(s, s, indexing="ij"))
    np.testing.assert_allclose(f, f[:, ::-1], atol=1e-12)
    np.testing.assert_allclose(truth(32), -mirror(truth(32)), atol=1e-12)


def test_likelihood_does_not_change_under_the_symmetry(problem):
    x = np.asarray(problem.prior.sample(jr.key(0), 5))
    a, b = problem.log_likelihood(x), problem.log_likelihood(mirror(x))
    np.testing.assert_allclose(a, b, rtol=1e-9)
    np.testing.assert_allclose(problem.log_likelihood(problem.truth[None]), 0, atol=1e-12)
    assert problem.symmetry is mirror


def test_gradient_from_one_factorisation_is_that_of_the_vjp(problem):
    u, simulator = np.asarray(jr.normal(jr.key(1), (3, 256))), Simulator(problem)
    both = simulator.evaluate(u, problem.scales, gradient=True)
    given = (problem.prior, problem.forward, problem.data)
    apart = InverseProblem(*given, noise_cov=problem.noise_cov, vjp=problem.vjp)
    separate = Simulator(apart).evaluate(u, problem.scales, gradient=True)
    np.testing.assert_allclose(both.gradient, separate.gradient, rtol=1e-9, atol=1e-9)
    step = 1e-5 * np.asarray(jr.normal(jr.key(2), (3, 256)))
    outer = [simulator.evaluate(u + a * step, problem.scales).log_likelihood for a in (1, -1)]
    np.testing.assert_allclose(
        (step * both.gradient).sum(1), (outer[0] - outer[1]) / 2, rtol=1e-4, atol=1e-8
    )


def test_two_mirrored_maxima_at_every_scale(problem):
    found = certify_modes(problem, starts=12)
    assert [s.scale for s in found] == [1, 2, 3, 4]
    for s in found:
        assert len(s.maxima) == 2 and s.mirrored
        assert s.barrier > 5
        assert s.coefficients[0] == pytest.approx(-s.coefficients[1], abs=0.01)
        assert s.maxima[0].value == pytest.approx(s.maxima[1].value, rel=1e-3)
    assert len(mode_lines(found)) == 5


def test_options():
    with refused("size must be a power of two, got 24"):
        elliptic(24)
    noisy = elliptic(16, noise_seed=1, inflate=0)
    assert 0.1 < np.std(noisy.data - elliptic(16, inflate=0).data) / 0.02 < 3
    assert elliptic(16, hard=True).data[0] == pytest.approx(4 * elliptic(16).data[0])


def test_discretisation_error_falls_with_the_scale(problem):
    errors = discretisation_errors(problem, 20)
    assert [e.scale for e in errors] == [1, 2, 3, 4]
    assert errors[-1].relative == 0
    relative = [e.relative for e in errors]
    assert relative == sorted(relative, reverse=True)
    assert relative[0] > 3 * relative[2]


def test_figures(problem):
    assert len(elliptic_figure(problem).axes) >= 4
    field = np.asarray(problem.prior.sample(jr.key(0), 1))[0]
    assert len(multiscale_figure(problem, field).axes) == 4
