"""MGVI and geoVI: exact on Gaussians, one mode of two, the numbers of NIFTy's own loop."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import msign
from helpers import seeded
from msign.problems import Simulator, elliptic
from msign.samplers import MGVI, GeoVI
from msign.samplers.nifty_places import PRODUCTS, Places
from samplers.known import exact, functions, two_modes_and_a_stiff_sum

jft = pytest.importorskip(
    "nifty.re", reason="nifty is not installed: pip install 'msign[peers]'", exc_type=ImportError
)
pytestmark = pytest.mark.usefixtures("quick_compilation")
PRIOR = msign.LaplacePrior((4, 4), alpha=0.5, beta=2.0)
SIGMAS = 6.0
BOTH = pytest.mark.parametrize("sampler", [MGVI(iterations=1), GeoVI(iterations=1)], ids=str)


def linear(m: int, derivative: str) -> tuple[msign.InverseProblem, np.ndarray, np.ndarray, float]:
    """A correlated Gaussian: mean and covariance of its whitened coordinates, log evidence."""
    rng = np.random.default_rng(seeded(m))
    matrix, data = rng.normal(size=(m, 16)) / 4, rng.normal(size=m)
    whiten = np.asarray(PRIOR.whiten(jnp.eye(16).reshape(16, 4, 4)), np.float64)  # u = x @ whiten
    whole = whiten @ matrix.T

    def forward(x):
        return x.reshape(-1, 16) @ whole

    def in_numpy(x):
        return np.asarray(x).reshape(-1, 16) @ whole

    def vjp(x, cotangents):
        return (np.asarray(cotangents) @ whole.T).reshape(x.shape)

    std = np.linspace(0.1, 0.3, m)
    called = {"forward": in_numpy, "vjp": vjp} if derivative == "numpy" else {"forward": forward}
    problem = msign.InverseProblem(PRIOR, data=data, noise_std=std, scales=1, **called)
    precision = np.eye(16) + matrix.T / std**2 @ matrix
    covariance = np.linalg.inv(precision)
    mean = covariance @ matrix.T @ (data / std**2)
    misfit = data / std
    log_evidence = 0.5 * (mean @ precision @ mean - misfit @ misfit)
    log_evidence -= 0.5 * np.linalg.slogdet(precision)[1]
    return problem, mean, covariance, float(log_evidence)


@BOTH
@pytest.mark.parametrize("m, derivative", [(3, "numpy"), (40, "jax")])
def test_one_iteration_finds_a_correlated_gaussian(sampler, m, derivative):
    problem, mean, covariance, log_evidence = linear(m, derivative)
    n = 200 if isinstance(sampler, MGVI) else 40
    samples = sampler.run(problem, 1, 100_000, n, seeded(0))
    assert samples.information["iterations"] == 1 and samples.information["distinct"] == n
    # Pairs are mirror images around the mean, which is found but for the minimiser's accuracy.
    np.testing.assert_allclose(samples.u.mean(0), mean, atol=2e-3)
    white = np.linalg.solve(np.linalg.cholesky(covariance), (samples.u - mean).T)[:, ::2]
    second = white @ white.T / white.shape[1]
    assert np.abs(second - np.eye(16)).max() < SIGMAS * np.sqrt(2 / white.shape[1])
    if isinstance(sampler, MGVI):
        assert np.ptp(samples.log_weights) < 0.2  # zero, if the mean were exact
        assert abs(samples.log_evidence - log_evidence) < 0.02
        assert samples.information["ess_fraction"] > 0.999
    else:
        assert samples.log_weights is None and samples.log_ratio is None


@BOTH
def test_samples_by_products_alone_are_of_the_gaussian(sampler):
    """Where a Jacobian would cost more: few samples, many observations."""
    problem, mean, covariance, _ = linear(40, "jax")
    runs = [sampler.run(problem, 1, 100_000, 4, seeded(s)) for s in range(3)]
    white = np.linalg.solve(
        np.linalg.cholesky(covariance), np.concatenate([r.u[::2] - mean for r in runs]).T
    )
    assert all(r.log_ratio is None for r in runs)
    count = white.size
    assert abs(np.mean(white**2) - 1) < SIGMAS * np.sqrt(2 / count)


@pytest.mark.parametrize("sampler", [MGVI(), GeoVI(pairs=2)], ids=str)
def test_of_two_modes_one_is_found_and_its_evidence_is_half(sampler):
    problem, _ = two_modes_and_a_stiff_sum()
    samples = sampler.run(problem, 1, 12_000, 60, seeded(0))
    means, variances, log_evidence = exact()
    values = functions(samples.u)
    assert abs(values[:, 0].mean()) == 1.0  # all on one side
    error = np.abs(values.mean(0) - means)[1:] / np.sqrt(variances[1:])
    assert error.max() < 0.5, error
    if isinstance(sampler, MGVI):
        assert abs(samples.log_evidence - (log_evidence - np.log(2))) < 0.2


@pytest.mark.parametrize("mode", ["linear", "nonlinear"])
def test_the_mean_is_that_of_nifty_s_own_loop(mode):
    """Compiled, differentiated by JAX, without a budget: `optimize_kl` as its users call it."""

    def forward(x):
        flat = x.reshape(len(x), -1)
        return jnp.stack([flat.mean(1) ** 2, jnp.exp(flat[:, 3]), flat[:, 5] - flat[:, 6]], 1)

    data, std = np.array([0.8, 1.5, 0.4]), 0.2
    problem = msign.InverseProblem(PRIOR, forward, data, noise_std=std, scales=1)
    sampler = (MGVI if mode == "linear" else GeoVI)(iterations=3)
    samples = sampler.run(problem, 1, 200_000, 2, seed=5)
    key = jr.fold_in(jr.key(5), 1)
    start = np.random.default_rng(np.asarray(jr.key_data(jr.fold_in(key, 0)))).normal(size=16)
    theirs, state = jft.optimize_kl(
        jft.Gaussian(jnp.zeros(3)).amend(
            lambda u: (data - forward(PRIOR.unwhiten(u)[None])[0]) / std,
            domain=jax.ShapeDtypeStruct((16,), float),
        ),
        jnp.asarray(start),
        key=jr.key_data(jr.fold_in(key, 1)),
        n_total_iterations=3,
        n_samples=lambda i: 2 if i < 2 else 4,
        sample_mode=f"{mode}_resample",
        draw_linear_kwargs={"cg_kwargs": {"absdelta": 1e-4 * 16 / 10, "maxiter": 100}},
        nonlinearly_update_kwargs={"minimize_kwargs": {"xtol": 1e-4, "maxiter": 5}},
        kl_kwargs={"minimize_kwargs": {"xtol": 1e-4, "maxiter": 35}},
    )
    np.testing.assert_allclose(
        samples.information["energies"][-1], float(state.minimization_state.fun), rtol=1e-5
    )
    if mode == "linear":  # the middle of a pair
        np.testing.assert_allclose(samples.u.mean(0), np.asarray(theirs.pos), atol=1e-4)


# --- likelihoods --------------------------------------------------------------------------------

LIKELIHOODS = {
    "Gaussian": (msign.likelihoods.Gaussian(0.3), [0.1, 0.4, -0.2]),
    "StudentT": (msign.likelihoods.StudentT([0.2, 0.3, 0.4], 3.0), [0.1, 0.4, -0.2]),
    "Poisson": (msign.likelihoods.Poisson(), [0, 3, 1]),
}


def cells(x):
    return x.reshape(len(x), -1)[:, 4:7]


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_metric_and_energy_are_those_of_nifty(name):
    from msign.samplers.nifty_likelihood import Simulated, of_features

    likelihood, data = LIKELIHOODS[name]
    problem = msign.InverseProblem(PRIOR, cells, data, likelihood=likelihood, scales=1)
    host, simulator = problem.likelihood, Simulator(problem)
    inner = of_features(problem)
    ours = Simulated(Places(simulator, 1, kept=10), inner, 16)
    theirs = inner.amend(
        lambda u: host.features(cells(PRIOR.unwhiten(u)[None]))[0],
        domain=jax.ShapeDtypeStruct((16,), float),
    )
    rng = np.random.default_rng(seeded(1))
    u, other, along, data_space = (jnp.asarray(rng.normal(size=k)) for k in (16, 16, 16, 3))
    for function in ("metric", "right_sqrt_metric"):
        np.testing.assert_allclose(
            getattr(ours, function)(u, along), getattr(theirs, function)(u, along), atol=1e-8
        )
    np.testing.assert_allclose(
        ours.left_sqrt_metric(u, data_space), theirs.left_sqrt_metric(u, data_space), atol=1e-8
    )
    np.testing.assert_allclose(ours.transformation(u), theirs.transformation(u), atol=1e-8)
    around = jft.Samples(pos=u, samples=jnp.stack([along, -along]), keys=None)
    value, slope = ours.value_and_gradient(u, primals_samples=around)
    there, _ = ours.value_and_gradient(other, primals_samples=around)

    def energy(p):
        return sum(theirs(p + s) + 0.5 * jnp.sum((p + s) ** 2) for s in (along, -along)) / 2

    np.testing.assert_allclose(value - there, energy(u) - energy(other), rtol=1e-7)
    np.testing.assert_allclose(slope, jax.grad(energy)(u), atol=1e-7)
    mean_metric = ours.mean_metric(u, other, primals_samples=around)
    expected = (theirs.metric(u + along, other) + theirs.metric(u - along, other)) / 2 + other
    np.testing.assert_allclose(mean_metric, expected, atol=1e-8)


def test_counts_are_sampled():
    likelihood, data = LIKELIHOODS["Poisson"]
    problem = msign.InverseProblem(PRIOR, cells, data, likelihood=likelihood, scales=1)
    samples = MGVI().run(problem, 1, 5000, 100, seeded(2))
    assert samples.information["ess_fraction"] > 0.3
    draws = np.random.default_rng(seeded(3)).normal(size=(200_000, 16))
    weights = np.exp(Simulator(problem).evaluate(draws, 1).log_likelihood)
    stderr = weights.std() / weights.mean() / np.sqrt(len(draws))
    error = np.hypot(stderr, (samples.information["ess_fraction"] * 100) ** -0.5)
    assert abs(samples.log_evidence - np.log(weights.mean())) < SIGMAS * error


@pytest.mark.parametrize(
    "arguments, kind",
    [
        ({"likelihood": msign.likelihoods.Bernoulli(), "data": [0, 1, 1]}, "Binomial"),
        ({"likelihood": msign.likelihoods.Laplace(0.2), "data": [0, 1, 1]}, "Laplace"),
    ],
)
def test_a_likelihood_that_nifty_lacks_is_refused_before_any_work(arguments, kind):
    problem = msign.InverseProblem(PRIOR, cells, **arguments)
    with pytest.raises(ValueError, match=f"Gaussian, StudentT or Poisson.*got {kind}"):
        GeoVI().run(problem, 1, 1000, 10)


def test_a_log_likelihood_alone_is_refused():
    problem = msign.InverseProblem(PRIOR, log_likelihood=lambda x: -jnp.sum(x**4, (1, 2)))
    with pytest.raises(ValueError, match="got log_likelihood"):
        MGVI().run(problem, 1, 1000, 10)


@pytest.mark.parametrize(
    "options, name", [({"iterations": 0}, "iterations"), ({"pairs": 0}, "pairs")]
)
def test_options_are_checked(options, name):
    with pytest.raises(ValueError, match=name):
        MGVI(**options)
    with pytest.raises(ValueError, match="training must be between 0 and 1, got 1"):
        GeoVI(training=1)


# --- what it costs --------------------------------------------------------------------------------


def test_a_metric_application_counts_a_tangent_and_an_adjoint_solve():
    problem, *_ = linear(40, "jax")
    simulator = Simulator(problem)
    places, rng = Places(simulator, 1, kept=4), np.random.default_rng(0)
    u, along = rng.normal(size=(2, 16)), rng.normal(size=(2, 16))
    places.features(u)
    assert simulator.nfs == 2
    tangents = places.tangents(u, along)
    assert simulator.nfs == 2 + 2
    adjoints = places.adjoints(u, tangents)
    assert simulator.nfs == 2 + 2 + 2
    systems = -(-41 // (2 * PRODUCTS))
    assert places.jacobian(u, systems - 1) is None and simulator.nfs == 6
    jacobian = places.jacobian(u, systems)
    assert simulator.nfs == 6 + 2 * 41
    np.testing.assert_allclose(tangents, np.einsum("nmd,nd->nm", jacobian, along), rtol=1e-7)
    np.testing.assert_allclose(places.tangents(u, along), tangents, rtol=1e-7)
    np.testing.assert_allclose(places.adjoints(u, tangents), adjoints, rtol=1e-7)
    assert simulator.nfs == 6 + 2 * 41
    places.features(rng.normal(size=(4, 16)))  # all that are kept
    places.features(u)
    assert simulator.nfs == 6 + 2 * 41 + 4 + 2


@pytest.mark.parametrize("budget", [30, 70, 200, 600])
@pytest.mark.parametrize("sampler", [MGVI(pairs=3), GeoVI(pairs=3)], ids=str)
def test_the_budget_may_end_anywhere(sampler, budget):
    problem, counted = two_modes_and_a_stiff_sum()
    try:
        samples = sampler.run(problem, 1, budget, 31, seeded(budget))
    except ValueError as error:  # not enough for an iteration of geoVI
        assert isinstance(sampler, GeoVI) and budget < 200
        assert f"got {budget}" in str(error) and "iteration of geoVI" in str(error)
        assert counted.forward + counted.vjp <= budget
        return
    assert samples.nfs == counted.forward + counted.vjp <= budget
    assert samples.u.shape == (31, 4) and np.isfinite(samples.u).all()
    said = samples.information
    assert 1 <= said["distinct"] <= 31 and len(np.unique(samples.u, axis=0)) == said["distinct"]
    assert len(said["energies"]) == said["iterations"] >= 1
    assert samples.log_weights is None or said["distinct"] == 31


def test_the_finite_element_solver_in_single_precision():
    with jax.enable_x64(False):
        problem = elliptic(16, inflate=0)
        samples = MGVI(iterations=2, pairs=1).run(problem, 4, 1500, 40, seeded(0))
    assert samples.nfs <= 1500 and samples.u.dtype == np.float32
    assert np.isfinite(samples.log_weights).all()
    assert samples.information["energies"][-1] < 16**2 / 2 + 200
