"""Likelihoods: densities with all constants, derivatives, information, missing data, bad input."""

import types

import flowjax.distributions
import jax
import jax.numpy as jnp
import jax.scipy.stats
import numpy as np
import pytest
from scipy import stats

from helpers import refused, seeded
from msign import FitConfig, InverseProblem, LaplacePrior, fit, likelihoods
from msign.problems import Simulator, data_likelihood
from msign.problems.data_likelihood import Layout
from msign.problems.failures import SimulationError
from msign.problems.own_likelihood import FromDistribution

pytestmark = pytest.mark.usefixtures("quick_compilation")

PRIOR = LaplacePrior((4, 4), alpha=0.5, beta=2.0)
M = 6
RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(M, 4, 4)) / 2
COUNTS = np.array([0.0, 3.0, 1.0, 7.0, 2.0, 0.0])
ANSWERS = np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0])
VALUES = np.array([0.3, -1.2, 0.5, 4.0, 0.1, -0.7])
SCALES = np.array([0.5, 1.0, 0.2, 2.0, 0.7, 1.3])


def negative_binomial(mean, dispersion):
    r = 1 / dispersion
    return stats.nbinom(r, r / (r + mean))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# Name: likelihood, data, the distribution of data given predictions as scipy has it.
CASES = {
    "Poisson": (likelihoods.Poisson(), COUNTS, lambda p: stats.poisson(np.exp(p))),
    "Bernoulli": (likelihoods.Bernoulli(), ANSWERS, lambda p: stats.bernoulli(sigmoid(p))),
    "Binomial": (likelihoods.Binomial(9), COUNTS, lambda p: stats.binom(9, sigmoid(p))),
    "Binomial each": (
        likelihoods.Binomial([1, 4, 2, 8, 2, 5]),
        COUNTS,
        lambda p: stats.binom([1, 4, 2, 8, 2, 5], sigmoid(p)),
    ),
    "NegativeBinomial": (
        likelihoods.NegativeBinomial(0.4),
        COUNTS,
        lambda p: negative_binomial(np.exp(p), 0.4),
    ),
    "StudentT": (likelihoods.StudentT(0.5, 3), VALUES, lambda p: stats.t(3, p, 0.5)),
    "StudentT each": (likelihoods.StudentT(SCALES, 4), VALUES, lambda p: stats.t(4, p, SCALES)),
    "Laplace": (likelihoods.Laplace(SCALES), VALUES, lambda p: stats.laplace(p, SCALES)),
    "Gaussian": (likelihoods.Gaussian(SCALES), VALUES, lambda p: stats.norm(p, SCALES)),
}
each_case = pytest.mark.parametrize("name", CASES)


def predictions(n=5):
    return np.random.default_rng(seeded(1)).normal(size=(n, M))


def log_density(distribution, data):
    frozen = distribution
    return (frozen.logpmf if hasattr(frozen.dist, "pmf") else frozen.logpdf)(data)


def forward(x):
    return jnp.einsum("nij,mij->nm", x, jnp.asarray(WEIGHTS, x.dtype))


def numpy_forward(x):
    return np.einsum("nij,mij->nm", np.asarray(x), WEIGHTS)


def numpy_vjp(x, c):
    return np.einsum("nm,mij->nij", np.asarray(c), WEIGHTS)


def problem(name, **options):
    likelihood, data, _ = CASES[name]
    return InverseProblem(PRIOR, forward, data, **{"likelihood": likelihood, **options})


def fields(n=5, seed=2):
    return np.random.default_rng(seeded(seed)).normal(size=(n, 16))


def bound(name):
    likelihood, data, _ = CASES[name]
    return likelihood.restricted(Layout(data.shape)).given(data)


# --- each likelihood ----------------------------------------------------------------------------


@each_case
def test_values_are_those_of_scipy_with_all_constants(name):
    likelihood, data, distribution = CASES[name]
    p = predictions()
    expected = log_density(distribution(p), data).sum(1)
    np.testing.assert_allclose(likelihood.log_prob(p, data), expected, rtol=1e-10)
    shaped = likelihood.log_prob(p.reshape(-1, 2, 3), data.reshape(2, 3))
    np.testing.assert_allclose(shaped, expected, rtol=1e-10)
    found = problem(name).log_likelihood(PRIOR.unwhiten(fields()))
    observed = numpy_forward(PRIOR.unwhiten(fields()))
    np.testing.assert_allclose(found, log_density(distribution(observed), data).sum(1), rtol=1e-8)


@each_case
def test_scores_and_gradients_are_those_of_finite_differences(name):
    likelihood = bound(name)
    f, step = likelihood.features(predictions()), 1e-6
    numeric = np.stack(
        [
            likelihood.log_likelihood(f + step * e) - likelihood.log_likelihood(f - step * e)
            for e in np.eye(M)
        ],
        1,
    ) / (2 * step)
    np.testing.assert_allclose(likelihood.score(f), numeric, rtol=1e-6, atol=1e-6)
    u, along = fields(), np.eye(16)[3]
    given = problem(name)
    ours = Simulator(given).evaluate(u, given.scales, gradient=True)
    near = (u + 1e-6 * along, u - 1e-6 * along)
    outer = [Simulator(given).evaluate(v, given.scales).log_likelihood for v in near]
    np.testing.assert_allclose(
        ours.gradient[:, 3], (outer[0] - outer[1]) / 2e-6, rtol=1e-5, atol=1e-5
    )
    likelihood, data, _ = CASES[name]
    called = InverseProblem(PRIOR, numpy_forward, data, likelihood=likelihood, vjp=numpy_vjp)
    theirs = Simulator(called).evaluate(u, called.scales, gradient=True)
    np.testing.assert_allclose(ours.gradient, theirs.gradient, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(ours.log_likelihood, theirs.log_likelihood, rtol=1e-10)


@each_case
def test_information_is_the_expected_square_of_the_score(name):
    likelihood, _, distribution = CASES[name]
    p, n = predictions(1), 40_000
    drawn = distribution(p).rvs(size=(n, M), random_state=np.random.default_rng(seeded(3)))
    many = likelihood.restricted(Layout((M,))).given(drawn.astype(float))
    squares = many.pull(many.score(many.features(p))) ** 2
    mean, error = squares.mean(0), squares.std(0) / np.sqrt(n)
    assert np.all(np.abs(mean - likelihood.fisher(p)[0]) < 5 * error + 1e-12)


@each_case
def test_features_and_their_pull_back_belong_together(name):
    likelihood = bound(name)
    p, c, step = predictions(), predictions() + 1.0, np.eye(M)[2]
    slope = likelihood.features(p + step) - likelihood.features(p)  # affine
    np.testing.assert_allclose((slope * c).sum(1), likelihood.pull(c)[:, 2], rtol=1e-9)


def test_gaussian_noise_differs_by_its_constant_alone():
    cov = np.diag(SCALES**2) + 0.1
    x = PRIOR.unwhiten(fields())
    expected = stats.multivariate_normal(VALUES, cov).logpdf(numpy_forward(x))
    full = InverseProblem(PRIOR, forward, VALUES, likelihood=likelihoods.Gaussian(cov=cov))
    np.testing.assert_allclose(full.log_likelihood(x), expected, rtol=1e-8)
    plain = InverseProblem(PRIOR, forward, VALUES, noise_cov=cov)
    constant = -0.5 * np.linalg.slogdet(2 * np.pi * cov)[1]
    np.testing.assert_allclose(full.log_likelihood(x) - constant, plain.log_likelihood(x))
    # Inflated noise has a constant of its own.
    inflated = Simulator(
        InverseProblem(
            PRIOR, forward, VALUES, likelihood=likelihoods.Gaussian(cov=cov), scales=2, inflate=50
        )
    )
    error, u = inflated.inflation(1), fields()[:, :4]
    observed = numpy_forward(inflated.problem.at_scale(1).fields(u)) + error.mean
    expected = stats.multivariate_normal(VALUES, cov + error.covariance).logpdf(observed)
    np.testing.assert_allclose(inflated.evaluate(u, 1).log_likelihood, expected, rtol=1e-8)
    np.testing.assert_allclose(
        likelihoods.Gaussian(cov=cov).fisher(VALUES), np.diag(np.linalg.inv(cov))
    )


def test_many_independent_observations_need_no_matrix(monkeypatch):
    few = likelihoods.Gaussian(SCALES).restricted(Layout((M,))).given(VALUES)
    monkeypatch.setattr(data_likelihood, "MATRIX", 0)
    many = likelihoods.Gaussian(SCALES).restricted(Layout((M,))).given(VALUES)
    assert (few.whiten.shape, many.whiten.shape) == ((M, M), (M,))
    p, rng = predictions(), np.random.default_rng
    f = few.features(p)
    np.testing.assert_allclose(many.features(p), f, rtol=1e-12)
    np.testing.assert_allclose(many.pull(f), few.pull(f), rtol=1e-12)
    np.testing.assert_allclose(many.predicted(f), p, rtol=1e-12)
    same = few.replicated(f, rng(seeded(3)))
    np.testing.assert_allclose(many.replicated(f, rng(seeded(3))), same, rtol=1e-12)
    assert many.constant == few.constant
    correlated = likelihoods.Gaussian(cov=np.diag(SCALES**2) + 0.1).restricted(Layout((M,)))
    assert correlated.given(VALUES).whiten.shape == (M, M)


def test_large_counts_keep_their_precision():
    counts = np.array([2.0e6])
    likelihood = likelihoods.Poisson().restricted(Layout((1,))).given(counts)
    away = np.array([[0.0], [1e-3], [-2e-3]])
    single = jnp.asarray(np.log(counts) + away, jnp.float32)
    exact = likelihood.terms(np.asarray(single, np.float64))
    np.testing.assert_allclose(likelihood.terms(np.asarray(single)), exact, atol=0.05)


# --- functions to distributions -----------------------------------------------------------------


class HomeMade:
    """A Poisson distribution of the shape of its rates."""

    def __init__(self, log_rate):
        self.log_rate = log_rate

    def log_prob(self, y):
        return jax.scipy.stats.poisson.logpmf(y, jnp.exp(self.log_rate))


def with_log_prob(log_prob):
    return lambda p: types.SimpleNamespace(log_prob=lambda y: log_prob(p, y))


OWN = {
    "home-made": ("Poisson", HomeMade),
    "flowjax": ("StudentT", lambda p: flowjax.distributions.StudentT(3.0, p, 0.5)),
    "lambda": (
        "Gaussian",
        with_log_prob(lambda p, y: jax.scipy.stats.norm.logpdf(y, p, jnp.asarray(SCALES))),
    ),
}


@pytest.mark.parametrize("kind", OWN)
def test_a_function_to_a_distribution_equals_the_built_in_one(kind):
    name, function = OWN[kind]
    if kind == "home-made":  # a class is no function to a distribution, for it may be a mistake
        function = lambda p: HomeMade(p)  # noqa: E731
    given, own, u = problem(name), problem(name, likelihood=function), fields()
    for made in (own, InverseProblem(PRIOR, numpy_forward, own.data, likelihood=function)):
        a, b = (Simulator(p).evaluate(u, p.scales) for p in (given, made))
        np.testing.assert_allclose(a.log_likelihood, b.log_likelihood, rtol=1e-8)
    a, b = (Simulator(p).evaluate(u, p.scales, gradient=True) for p in (given, own))
    np.testing.assert_allclose(a.gradient, b.gradient, rtol=1e-6, atol=1e-8)
    # Its information is the curvature at the data, zero where that is negative.
    information = own.likelihood.information(b.features)
    if name == "Poisson":
        np.testing.assert_allclose(information, np.exp(b.features), rtol=1e-8)
    r2 = ((own.data - b.features) / 0.5) ** 2
    if name == "StudentT":
        curvature = 4 / 0.25 * (3 - r2) / (3 + r2) ** 2
        np.testing.assert_allclose(information, np.maximum(0, curvature), rtol=1e-6, atol=1e-9)
        assert np.any(curvature < 0)


def test_data_of_two_axes_reach_a_function_in_their_shape():
    scale = SCALES.reshape(2, 3)
    function = with_log_prob(lambda p, y: -jnp.abs((y - p) / scale) - jnp.log(2 * scale))
    data = VALUES.reshape(2, 3).copy()
    own = InverseProblem(PRIOR, forward, data, likelihood=function)
    x = PRIOR.unwhiten(fields())
    np.testing.assert_allclose(own.log_likelihood(x), problem("Laplace").log_likelihood(x))
    data[0, 1] = np.nan
    dropped, built_in = (
        InverseProblem(PRIOR, forward, data, likelihood=l, missing="drop")
        for l in (function, likelihoods.Laplace(scale))
    )
    np.testing.assert_allclose(dropped.log_likelihood(x), built_in.log_likelihood(x))
    a, b = (Simulator(p).evaluate(fields(), 2, gradient=True) for p in (dropped, built_in))
    np.testing.assert_allclose(a.gradient, b.gradient, rtol=1e-8, atol=1e-10)


# --- missing data and shapes --------------------------------------------------------------------

KEPT = np.array([0, 2, 3, 5])


@pytest.mark.parametrize("name", ["Poisson", "Binomial each", "StudentT each", "Gaussian"])
@pytest.mark.parametrize("kind", ["jax", "numpy", "both"])
def test_missing_data_are_as_if_they_had_never_been_observed(name, kind):
    likelihood, data, _ = CASES[name]
    holes = np.full(M, np.nan)
    holes[KEPT] = data[KEPT]
    few = likelihood.restricted(Layout((M,), KEPT))

    def both(x, cotangents):
        observed = numpy_forward(x)
        return observed, numpy_vjp(x, cotangents(observed, slice(0, len(x))))

    options = {} if kind == "jax" else {"vjp": numpy_vjp}
    if kind == "both":
        options["forward_and_vjp"] = both
    function = forward if kind == "jax" else numpy_forward
    dropped = InverseProblem(
        PRIOR, function, holes, likelihood=likelihood, missing="drop", **options
    )
    plain = InverseProblem(PRIOR, lambda x: forward(x)[:, KEPT], data[KEPT], likelihood=few)
    a, b = (Simulator(p).evaluate(fields(), p.scales, gradient=True) for p in (dropped, plain))
    np.testing.assert_allclose(a.log_likelihood, b.log_likelihood, rtol=1e-9)
    np.testing.assert_allclose(a.gradient, b.gradient, rtol=1e-7, atol=1e-9)
    assert a.features.shape == (5, 4) and dropped.data.shape == (4,)
    Simulator(dropped).check()


def test_missing_data_drop_rows_of_the_noise_covariance():
    cov = np.diag(SCALES**2) + 0.1
    holes = np.full(M, np.nan)
    holes[KEPT] = VALUES[KEPT]
    dropped = InverseProblem(PRIOR, forward, holes, noise_cov=cov, missing="drop")
    few = cov[np.ix_(KEPT, KEPT)]
    plain = InverseProblem(PRIOR, lambda x: forward(x)[:, KEPT], VALUES[KEPT], noise_cov=few)
    x = PRIOR.unwhiten(fields())
    np.testing.assert_allclose(dropped.log_likelihood(x), plain.log_likelihood(x), rtol=1e-10)


@pytest.mark.parametrize("kind", ["jax", "vjp", "both", "reject"])
@pytest.mark.parametrize("flat", [True, False])
def test_data_of_two_axes_are_the_flat_ones(kind, flat):
    shape = (M,) if flat else (2, 3)

    def observed(x):
        return (forward(x) if kind == "jax" else numpy_forward(x)).reshape(-1, *shape)

    def vjp(x, c):
        assert c.shape == (len(x), *shape)  # as the forward map returns them
        return numpy_vjp(x, c.reshape(-1, M))

    def both(x, cotangents):
        y = observed(x)
        return y, vjp(x, cotangents(y, slice(0, len(x))))

    options = {} if kind == "jax" else {"vjp": vjp}
    if kind == "both":
        options["forward_and_vjp"] = both
    if kind == "reject":
        options["on_failure"] = "reject"
    mapped = InverseProblem(
        PRIOR, observed, VALUES.reshape(2, 3), noise_std=SCALES.reshape(2, 3), **options
    )
    plain = InverseProblem(PRIOR, forward, VALUES, noise_std=SCALES)
    a, b = (Simulator(p).evaluate(fields(), 2, gradient=True) for p in (mapped, plain))
    np.testing.assert_allclose(a.log_likelihood, b.log_likelihood, rtol=1e-10)
    np.testing.assert_allclose(a.gradient, b.gradient, rtol=1e-8)
    Simulator(mapped).check()


# --- products with derivatives ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Poisson", "StudentT each", "Gaussian"])
def test_products_with_the_derivative_of_the_features(name):
    likelihood, data, _ = CASES[name]
    made = Simulator(problem(name, chunk=7))
    called = Simulator(
        InverseProblem(PRIOR, numpy_forward, data, likelihood=likelihood, vjp=numpy_vjp)
    )
    u, t = fields(), fields(seed=4)
    features, jacobian = made.jacobian(u, 2)
    assert jacobian.shape == (5, M, 16) and made.nfs == 5 * (M + 1)
    np.testing.assert_allclose(features, made.evaluate(u, 2).features, rtol=1e-10)
    near = [made.evaluate(u + a * 1e-5 * t, 2).features for a in (1, -1)]
    along = np.einsum("nmd,nd->nm", jacobian, t)
    np.testing.assert_allclose(along, (near[0] - near[1]) / 2e-5, rtol=1e-5, atol=1e-6)
    before = made.nfs
    np.testing.assert_allclose(made.jvp(u, t, 2)[1], along, rtol=1e-8, atol=1e-10)
    assert made.nfs == before + 10
    score = made.likelihood(2).score(features)
    expected = np.einsum("nmd,nm->nd", jacobian, score)
    for one in (made, called):
        np.testing.assert_allclose(one.vjp(u, score, 2)[1], expected, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(made.evaluate(u, 2, gradient=True).gradient, expected, rtol=1e-7)
    np.testing.assert_allclose(called.jacobian(u, 2)[1], jacobian, rtol=1e-7, atol=1e-9)
    assert called.nfs == 10 + 5 * (M + 1)
    for one, cost in ((made, 5), (called, 10)):  # a forward map in NumPy is called again
        before = one.nfs
        np.testing.assert_allclose(one.vjp(u, score, 2, solved=True)[1], expected, rtol=1e-7)
        assert one.nfs == before + cost
    before = made.nfs
    np.testing.assert_allclose(made.jvp(u, t, 2, solved=True)[1], along, rtol=1e-8, atol=1e-10)
    assert made.nfs == before + 5
    with refused("jvp must be asked of a forward map in JAX"):
        called.jvp(u, t, 2)
    with refused("products must be with arrays of shape (5, 6), got (5, 16)"):
        made.vjp(u, t, 2)
    with refused("forward must have a derivative"):
        Simulator(InverseProblem(PRIOR, numpy_forward, data, likelihood=likelihood)).jacobian(u, 2)


# --- a log-likelihood alone ---------------------------------------------------------------------


def quartic(x):
    return -((x**2).sum((1, 2)) ** 2) - x[:, 0, 0]


def quartic_gradient(x):
    slope = -4 * (x**2).sum((1, 2), keepdims=True) * x
    slope[:, 0, 0] -= 1
    return slope


def test_a_log_likelihood_in_numpy_equals_the_one_in_jax():
    traced = InverseProblem(PRIOR, log_likelihood=quartic)
    called = InverseProblem(
        PRIOR, log_likelihood=lambda x: quartic(np.asarray(x)), gradient=quartic_gradient
    )
    bare = InverseProblem(PRIOR, log_likelihood=lambda x: list(quartic(np.asarray(x))))
    assert traced.traceable and called.differentiable and not bare.differentiable
    u = fields()
    found = [Simulator(p).evaluate(u, 2, gradient=True) for p in (traced, called)]
    np.testing.assert_allclose(found[0].log_likelihood, quartic(np.asarray(PRIOR.unwhiten(u))))
    np.testing.assert_allclose(found[0].log_likelihood, found[1].log_likelihood, rtol=1e-10)
    np.testing.assert_allclose(found[0].gradient, found[1].gradient, rtol=1e-8)
    np.testing.assert_allclose(
        Simulator(bare).evaluate(u, 2).log_likelihood, found[0].log_likelihood, rtol=1e-10
    )
    coarse = Simulator(called).evaluate(u[:, :4], 1, gradient=True)
    np.testing.assert_allclose(
        coarse.gradient, Simulator(traced).evaluate(u[:, :4], 1, gradient=True).gradient, rtol=1e-8
    )
    assert repr(traced).endswith("2 scales, a log-likelihood)")
    wrong = InverseProblem(
        PRIOR,
        log_likelihood=lambda x: quartic(np.asarray(x)),
        gradient=lambda x: 2 * quartic_gradient(x),
    )
    with refused("gradient must be that of log_likelihood"):
        Simulator(wrong).check()


def test_a_log_likelihood_cannot_be_emulated():
    given = InverseProblem(PRIOR, log_likelihood=quartic)
    assert FitConfig().method_for(given, 8).__class__.__name__ == "Pool"
    assert FitConfig().method_for(problem("Poisson"), 8).__class__.__name__ == "Emulator"
    with refused("method must not be 'emulator': the problem is a log-likelihood"):
        fit(given, 2000, config=FitConfig(method="emulator"))


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"data": [0, -1, 2, 0, 0, 0], "likelihood": likelihoods.Poisson()},
            "data must be whole numbers of at least 0 for Poisson, got -1.0 at index (1,)",
        ),
        (
            {"data": [0, 1, 2, 0, 0.5, 0], "likelihood": likelihoods.NegativeBinomial(0.1)},
            "data must be whole numbers of at least 0 for NegativeBinomial, got 0.5",
        ),
        (
            {"data": [[0, 1, 2], [5, 0, 0]], "likelihood": likelihoods.Binomial(4)},
            "data must be whole numbers from 0 to 4 for Binomial, got 5.0 at index (1, 0)",
        ),
        (
            {"data": [0, 1, 0, 2, 0, 0], "likelihood": likelihoods.Bernoulli()},
            "data must be whole numbers from 0 to 1 for Bernoulli, got 2.0",
        ),
        ({"likelihood": likelihoods.Poisson}, "likelihood must be an object of msign.likelihoods"),
        ({"likelihood": "poisson"}, "likelihood must be an object of msign.likelihoods"),
        (
            {"likelihood": with_log_prob(lambda p, y: jnp.zeros(3))},
            "likelihood must have a log_prob of shape (6,) or (), got (3,)",
        ),
        ({"likelihood": lambda p: p}, "likelihood must be JAX code from predictions of shape (6,)"),
        (
            {"likelihood": with_log_prob(lambda p, y: float(y.sum()))},
            "likelihood must be JAX code from predictions of shape (6,)",
        ),
        (
            {"likelihood": likelihoods.StudentT([0.1, 0.2], 3)},
            "scale of StudentT must be a number or have shape (6,), got (2,)",
        ),
        (
            {"noise_std": 0.1, "likelihood": likelihoods.Poisson()},
            "noise_std must not be given beside likelihood, got 0.1",
        ),
        (
            {"noise_cov": np.eye(M), "likelihood": likelihoods.Poisson()},
            "noise_cov must not be given beside likelihood",
        ),
        ({}, "noise_std or noise_cov must be given"),
        ({"noise_std": 0.1, "noise_cov": np.eye(M)}, "noise_std or noise_cov must be given"),
        ({"data": None, "noise_std": 0.1}, "data must be given beside forward"),
        ({"data": [np.nan] * 6, "noise_std": 0.1}, "data must be finite, got nan at index (0,)"),
        (
            {"data": [np.nan] * 6, "noise_std": 0.1, "missing": "drop"},
            "data must hold at least one observation, got NaN only",
        ),
        (
            {"data": [np.inf] + [0.0] * 5, "noise_std": 0.1, "missing": "drop"},
            "data must be finite, got inf",
        ),
        ({"noise_std": 0.1, "missing": "ignore"}, "missing must be one of 'raise', 'drop'"),
        (
            {"inflate": 10, "likelihood": likelihoods.Laplace(0.1)},
            "inflate must be 0 where the noise is not Gaussian, got 10",
        ),
        ({"noise_std": 0.1, "gradient": quartic_gradient}, "gradient must be given with log_lik"),
        (
            {
                "data": [np.nan] + [0.0] * 5,
                "missing": "drop",
                "likelihood": with_log_prob(lambda p, y: jnp.sum(y - p)),
            },
            "missing must be 'raise' where log_prob is one number",
        ),
    ],
)
def test_bad_input_is_one_line(options, message):
    with refused(message):
        InverseProblem(PRIOR, forward, **{"data": VALUES, **options})


@pytest.mark.parametrize("policy", ["raise", "reject"])
def test_data_that_a_distribution_does_not_allow_are_said_to_be_so(policy):
    """The forward map is fine: no message says that it returned NaN."""
    simulator = Simulator(
        InverseProblem(
            PRIOR,
            forward,
            VALUES,
            likelihood=lambda p: flowjax.distributions.Exponential(jnp.exp(p)),
            on_failure=policy,
        )
    )
    with pytest.raises(SimulationError, match="given these the log-likelihood of the data is -inf"):
        simulator.check()
    assert simulator.nfs < 100


def test_a_derivative_that_is_not_finite_is_said_to_be_so():
    simulator = Simulator(InverseProblem(PRIOR, lambda x: jnp.sqrt(abs(forward(x))), VALUES, 0.1))
    with pytest.raises(SimulationError, match="finite numbers, but their derivative is NaN"):
        simulator.evaluate(np.zeros((1, 16)), simulator.problem.scales, gradient=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: likelihoods.StudentT(-1.0, 3), "scale must be positive, got -1.0"),
        (lambda: likelihoods.StudentT(1.0, 0), "df must be positive, got 0.0"),
        (lambda: likelihoods.Laplace(np.nan), "scale must be finite"),
        (lambda: likelihoods.NegativeBinomial("much"), "dispersion must be an array of numbers"),
        (lambda: likelihoods.Binomial(2.5), "n must be whole numbers"),
        (lambda: likelihoods.Gaussian(), "std or cov must be given, and not both"),
        (lambda: likelihoods.Poisson().log_prob([[0.0]], [-1]), "data must be whole numbers"),
        (
            lambda: InverseProblem(PRIOR, forward, log_likelihood=quartic),
            "forward must not be given beside log_likelihood",
        ),
        (
            lambda: InverseProblem(PRIOR, data=[1.0], log_likelihood=quartic),
            "data must not be given beside log_likelihood, got [1.0]",
        ),
        (
            lambda: InverseProblem(PRIOR, log_likelihood=quartic, inflate=3),
            "inflate must be 0",
        ),
        (
            lambda: InverseProblem(PRIOR, log_likelihood=lambda x: x),
            "log_likelihood must return shape (n,) for n fields, got (2, 4, 4) for n = 2",
        ),
        (lambda: InverseProblem(PRIOR, log_likelihood=3), "log_likelihood must be callable"),
        (lambda: InverseProblem(PRIOR), "forward must be callable, got NoneType"),
    ],
)
def test_bad_arguments_are_one_line(call, message):
    with refused(message):
        call()


def test_a_function_is_bound_once():
    """Other data of the same problem share compiled code: the function behind it is one object."""
    family = FromDistribution(lambda p: HomeMade(p)).restricted(Layout((M,)))
    a, b = family.given(COUNTS), family.given(COUNTS + 1)
    assert jax.tree.structure(a) == jax.tree.structure(b)


# --- errors of an emulator ----------------------------------------------------------------------


def test_errors_flatten_as_added_noise_does_and_extrapolate_along_a_line():
    rng = np.random.default_rng(seeded(5))
    seen, errors = rng.normal(size=(50, M)), np.linspace(0, 2, M)
    # In the Gaussian case the power is exactly what adding the error to the noise does.
    heavy = likelihoods.StudentT(1.0, 1e9).restricted(Layout((M,))).given(VALUES)
    f = np.clip(rng.normal(size=(4, M)), seen.min(0), seen.max(0))
    _, flat = heavy.with_error(seen, np.diag(errors))
    np.testing.assert_allclose(flat.terms(f).sum(1), (-0.5 * f**2 / (1 + errors)).sum(1), rtol=1e-6)
    whiten, normal = bound("Gaussian").with_error(seen, np.diag(errors))
    np.testing.assert_allclose(normal.terms(f @ whiten.T).sum(1), flat.terms(f).sum(1), rtol=1e-6)
    for name in ("Poisson", "Bernoulli", "StudentT each"):
        _, flat = bound(name).with_error(seen, np.diag(errors))
        for far in (f, 3 * f, f - 5, f + 5):
            ends = [flat.terms(far + a * 1e-6).sum(1) for a in (1, -1)]
            slope = (ends[0] - ends[1]) / 2e-6
            np.testing.assert_allclose(flat.score(far).sum(1), slope, rtol=1e-5, atol=1e-6)
        huge = jnp.full(M, 1e4, jnp.float32)
        assert np.all(np.isfinite(flat.terms(huge))) and np.all(np.isfinite(flat.score(huge)))


def test_a_density_of_all_data_together_is_flattened_by_one_power():
    together = with_log_prob(lambda p, y: jnp.sum(jax.scipy.stats.norm.logpdf(y, p, 0.5)))
    own = FromDistribution(together).restricted(Layout((M,))).given(VALUES)
    seen = predictions(50)
    _, flat = own.with_error(seen, np.full((M, M), 0.25))
    assert flat.power.shape == (1,)
    np.testing.assert_allclose(flat.power, 0.5, rtol=1e-6)  # information four, error a quarter
