"""Maxima and nearest Gaussians of densities, some of which are known."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from helpers import refused, seeded
from msign import DensePrior, InverseProblem, LaplacePrior, Simulator, likelihoods
from msign.inference.flows import gaussian
from msign.problems.failures import SimulationError

D = 6
ROOT = np.random.default_rng(3).normal(size=(D, D))
PRECISION = ROOT @ ROOT.T + np.diag([1.0, 3.0, 10.0, 100.0, 1000.0, 10_000.0])
CENTRE = np.linspace(-1, 2, D)


def quadratic(u):
    r = (u - CENTRE) @ PRECISION
    return -0.5 * np.sum(r * (u - CENTRE), 1), -r


def two_hills(u):
    """Maxima near +-2 in the first coordinate, the right one higher by two."""
    x, rest = u[:, 0], u[:, 1:]
    values = -((x**2 - 4) ** 2) / 2 + x / 2 - 0.5 * np.sum(rest**2, 1)
    return values, np.concatenate([(-2 * x * (x**2 - 4) + 0.5)[:, None], -rest], 1)


def skewed(u):
    """A posterior of independent coordinates: data exp(u) = 1 with noise one half."""
    e = np.exp(u)
    return np.sum(-2 * (e - 1) ** 2 - 0.5 * u**2, 1), -4 * (e - 1) * e - u


def starts(n=5, seed=1):
    return np.random.default_rng(seeded(seed)).normal(size=(n, D))


def test_ascents_end_at_the_maximum_of_a_quadratic():
    found = gaussian.ascend(quadratic, starts(), 300, tolerance=1e-10)
    assert found.converged.all()
    np.testing.assert_allclose(found.u, np.tile(CENTRE, (5, 1)), atol=1e-4)
    np.testing.assert_allclose(found.log_density, 0, atol=1e-8)


def test_the_highest_maximum_comes_first():
    found = gaussian.ascend(two_hills, np.array([[-1.5] + [0.1] * 5, [1.5] + [0.1] * 5]), 200, 1e-8)
    assert found.converged.all()
    assert found.u[0, 0] > 1.9 and found.u[1, 0] < -1.9
    assert found.log_density[0] - found.log_density[1] == pytest.approx(2, abs=0.1)


def test_steps_on_which_simulations_fail_are_halved():
    def failing(u):
        if np.abs(u - CENTRE).max() > 4:
            raise SimulationError("too far", u[0])
        return quadratic(u)

    near = CENTRE + 0.3 * starts()
    found = gaussian.ascend(failing, near, 400, tolerance=1e-10)
    np.testing.assert_allclose(found.u, np.tile(CENTRE, (5, 1)), atol=1e-4)


def test_no_more_evaluations_are_made_than_allowed():
    rows = []
    gaussian.ascend(lambda u: (rows.append(len(u)), quadratic(u))[1], starts(), 7, 1e-12)
    assert rows == [5] * 7


def test_gradients_of_a_quadratic_are_linear_and_others_are_not():
    key = jr.key(seeded(2))
    assert gaussian.has_linear_gradients(quadratic, D, key)
    assert not gaussian.has_linear_gradients(skewed, D, key)


@pytest.mark.parametrize("linear", [True, False])
def test_a_gaussian_is_found_exactly(linear):
    key = jr.key(seeded(3))
    found = (
        gaussian.exact_gaussian(quadratic, D, key)
        if linear
        else gaussian.nearest_gaussian(quadratic, CENTRE, 1000, key)
    )
    np.testing.assert_allclose(found.mean, CENTRE, atol=1e-6)
    np.testing.assert_allclose(found.precision, PRECISION, rtol=1e-5, atol=1e-5)
    root = found.root()
    np.testing.assert_allclose(root @ root.T @ PRECISION, np.eye(D), atol=1e-4)


def test_the_nearest_gaussian_has_the_highest_evidence_bound():
    """Against the best mean and deviation of one coordinate, by quadrature."""
    found = gaussian.nearest_gaussian(
        skewed, np.zeros(D), 100 * 22, jr.key(seeded(4)), iterations=100
    )
    x, w = np.polynomial.hermite_e.hermegauss(40)

    def bound(mean, deviation):
        u = mean + deviation * x
        return w @ (-2 * (np.exp(u) - 1) ** 2 - 0.5 * u**2) / w.sum() + np.log(deviation)

    means, deviations = np.linspace(-0.5, 0.3, 81), np.linspace(0.2, 0.9, 71)
    best = max(bound(m, s) for m in means for s in deviations)
    own = [bound(m, s) for m, s in zip(found.mean, np.diag(found.precision) ** -0.5, strict=True)]
    laplace = bound(0.0, 5**-0.5)
    assert laplace < best - 0.05
    # No Gaussian has more; 22 fields in each of 100 iterations leave a fiftieth of the difference.
    assert np.mean(own) > best - 0.1 * (best - laplace)


@pytest.mark.parametrize("outliers", [3, 8, 15])
def test_where_a_density_bends_the_wrong_way_the_nearest_gaussian_is_found(outliers):
    """Outliers under Student's noise: at the maximum some curvatures are far below zero."""
    prior, rng = LaplacePrior((64,), alpha=0.5, beta=6.0), np.random.default_rng(outliers)
    truth = np.asarray(prior.unwhiten(rng.normal(size=64)))
    data = truth + 0.2 * truth**3 + 0.1 * rng.standard_t(3, size=64)
    data[::10] += rng.normal(size=7)
    noise = likelihoods.StudentT(scale=0.1, df=3)
    problem = InverseProblem(prior, lambda x: x + 0.2 * x**3, data, likelihood=noise)
    evaluate = gaussian.log_density_and_gradient(Simulator(problem), problem.scales)
    z = np.random.default_rng(seeded(17)).normal(size=(4000, 64))
    bounds = []
    for seed in range(4):
        start = np.random.default_rng(seeded(180 + seed)).normal(size=(1, 64))
        at, key = gaussian.ascend(evaluate, start, 1000, 1e-3).u[0], jr.key(seeded(190 + seed))
        near = gaussian.nearest_gaussian(evaluate, at, 10**6, key)
        values, _ = evaluate(near.mean + z @ near.root().T)
        bounds.append(np.mean(values) + np.linalg.slogdet(near.root())[1])
    assert np.ptp(bounds) < 1


def test_sums_over_batches_are_the_least_squares_of_all_rows():
    """Of uneven batches, with an intercept; each row counts with its opposite."""
    rng = np.random.default_rng(seeded(7))
    z, seen = rng.normal(size=(1500, 3)), gaussian.Regression(3)
    mixing, intercept = rng.normal(size=(3, 3)), rng.normal(size=3)

    def gradients(z):
        return np.tanh(z + 0.1) @ mixing + intercept

    for rows in np.split(np.arange(1500), [5, 900, 1400]):
        seen.add(z[rows], gradients(z[rows]), gradients(-z[rows]))
    slope, curvature = seen.solved()
    every = np.concatenate([z, -z])
    design = np.concatenate([np.ones((3000, 1)), every], 1)
    fit = np.linalg.lstsq(design, gradients(every), rcond=None)[0]
    assert seen.pairs == 1500
    np.testing.assert_allclose(slope, fit[0], atol=1e-10)
    np.testing.assert_allclose(curvature, -fit[1:], atol=1e-10)


@pytest.mark.parametrize("floor", [1e-3, 0.5, 2.0])
def test_a_root_comes_with_its_inverse(floor):
    """Whether eigenvalues are raised or not."""
    values = np.array([1.0, 3.0, 10.0])
    vectors = np.linalg.qr(np.random.default_rng(seeded(8)).normal(size=(3, 3)))[0]
    root, inverse = gaussian.inverse_root((vectors * values) @ vectors.T, floor)
    np.testing.assert_allclose(root @ inverse, np.eye(3), atol=1e-12)
    raised = (vectors * np.maximum(values, floor)) @ vectors.T
    np.testing.assert_allclose(inverse.T @ inverse, raised, atol=1e-12)


def test_no_direction_is_wider_than_under_the_prior():
    found = gaussian.Gaussian(np.zeros(2), np.diag([0.2, 4.0]))
    root = found.root()
    np.testing.assert_allclose(root @ root.T, np.diag([1.0, 0.25]), atol=1e-12)


def test_a_posterior_far_from_the_prior_is_found_within_the_allowance():
    prior = LaplacePrior((8,), alpha=0.5, beta=6.0)
    truth = np.linspace(-1, 3, 8)
    problem = InverseProblem(prior, jnp.exp, np.exp(truth), noise_std=0.05, scales=1)
    simulator = Simulator(problem)
    (found,) = gaussian.find_gaussians(simulator, 1, 2000, 1e-3, jr.key(seeded(5)))
    assert simulator.nfs <= 2000
    x = np.asarray(prior.unwhiten(jnp.asarray(found.mean)))
    np.testing.assert_allclose(x[3:], truth[3:], atol=0.1)


def test_ascents_go_on_where_more_maxima_are_to_be_expected():
    """Five wells of equal depth on a ring: four ascents find some of them."""
    angles = 2 * np.pi * np.arange(5) / 5
    centres = 2 * np.stack([np.cos(angles), np.sin(angles)], 1)

    def wells(x):
        away = jnp.sum((x[:, None] - centres) ** 2, -1)
        return jax.nn.logsumexp(-0.5 * away / 0.1**2, axis=1)

    problem = InverseProblem(DensePrior(np.eye(2), (2,)), log_likelihood=wells, scales=1)
    found = [
        len(gaussian.find_gaussians(Simulator(problem), 1, 20_000, 1e-3, jr.key(seeded(40 + key))))
        for key in range(6)
    ]
    assert np.mean(found) > 4.5


def test_a_density_without_a_maximum_is_refused_before_the_budget_is_spent():
    """A log-likelihood that grows faster than the prior falls: every ascent diverges."""
    simulator = Simulator(
        InverseProblem(
            LaplacePrior((8,), alpha=0.5, beta=4.0),
            log_likelihood=lambda x: jnp.sum(x**2, 1) ** 1.5,
            scales=1,
        )
    )
    with refused("likelihood must be bounded"):
        gaussian.find_gaussians(simulator, 1, 20_000, 1e-3, jr.key(seeded(5)))
    assert simulator.nfs < 10_000


@pytest.mark.parametrize("key", range(6))
def test_a_start_that_cannot_be_simulated_is_drawn_anew(key):
    """Most draws of the prior are rejected, its mean among them."""
    prior = DensePrior(np.eye(2), (2,))

    def forward(x):
        return jnp.where(x[:, :1] > 0.3, jnp.exp(x), jnp.nan)

    problem = InverseProblem(prior, forward, [np.exp(1), 1.0], 0.1, scales=1, on_failure="reject")
    simulator = Simulator(problem)
    (found,) = gaussian.find_gaussians(simulator, 1, 2000, 1e-3, jr.key(seeded(20 + key)))
    np.testing.assert_allclose(found.mean, [1, 0], atol=0.1)
    assert simulator.nfs <= 2000


def test_fields_that_can_never_be_simulated_are_an_error():
    prior = DensePrior(np.eye(2), (2,))
    problem = InverseProblem(
        prior, lambda x: jnp.where(x > 100, x**2, jnp.nan), [1.0, 1.0], 0.1, scales=1,
        on_failure="reject",
    )  # fmt: skip
    simulator = Simulator(problem)
    with pytest.raises(SimulationError, match=r"no field on \d+ ascents"):
        gaussian.find_gaussians(simulator, 1, 500, 1e-3, jr.key(seeded(5)))
    assert 400 < simulator.nfs <= 500


def test_the_least_allowance_is_enough():
    problem = InverseProblem(
        LaplacePrior((8,), alpha=0.5, beta=2.0), jnp.exp, np.ones(8), noise_std=0.3, scales=1
    )
    least = gaussian.least_allowance(8)
    simulator = Simulator(problem, budget=least)
    gaussian.find_gaussians(simulator, 1, least, 1e-3, jr.key(seeded(6)))
    assert simulator.nfs <= least


def cubes(fail_beyond=np.inf, **options):
    """A NumPy forward map without a derivative that fails on large fields."""

    def forward(x):
        if np.abs(x).max() > fail_beyond:
            raise FloatingPointError("too large")
        return x + 0.1 * x**3

    prior = LaplacePrior((6,), alpha=0.5, beta=2.0)
    truth = np.linspace(-0.8, 0.8, 6)
    data = truth + 0.1 * truth**3
    return InverseProblem(prior, forward, data, noise_std=0.02, scales=1, **options), truth


@pytest.mark.parametrize("fail_beyond", [np.inf, 8.0])
def test_laplace_by_differences_is_that_of_derivatives(fail_beyond):
    """Mean and curvature at the maximum itself, also where a step on the way raises."""
    problem, truth = cubes(fail_beyond)
    (found,) = gaussian.gaussian_by_differences(
        Simulator(problem), 1, 5000, 1e-3, jr.key(seeded(8))
    )
    root = np.asarray(problem.prior.unwhiten(jnp.eye(6)), np.float64)
    x = np.asarray(problem.prior.unwhiten(jnp.asarray(found.mean)))
    np.testing.assert_allclose(x, truth, atol=0.05)
    slopes = root * (1 + 0.3 * x**2) / 0.02
    np.testing.assert_allclose(
        found.precision, slopes @ slopes.T + np.eye(6), rtol=0.02, atol=0.02 * (slopes**2).max()
    )


def test_differences_stay_within_the_allowance():
    problem, _ = cubes()
    least = gaussian.least_allowance(6)
    for allowance in (least, 200, 400):
        simulator = Simulator(problem)
        gaussian.gaussian_by_differences(simulator, 1, allowance, 1e-3, jr.key(seeded(9)))
        assert simulator.nfs <= allowance
