"""The simulator: three kinds of forward map, counting, the budget, inflated noise, failures."""

import sys

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from helpers import refused, seeded
from msign import InverseProblem, LaplacePrior, likelihoods
from msign.noise import normal
from msign.problems import BudgetExceeded, SimulationError, Simulator, at_scale
from msign.problems.data_likelihood import Inflation

PRIOR = LaplacePrior((8, 8), alpha=0.5, beta=2.0)
WEIGHTS = np.random.default_rng(0).normal(size=(3, 8, 8)) / 8
DATA = [0.3, -0.2, 0.5]

pytestmark = pytest.mark.usefixtures("quick_compilation")


def jax_forward(x):
    return jnp.tanh(jnp.einsum("nij,mij->nm", x, jnp.asarray(WEIGHTS)))


def numpy_forward(x):
    return np.tanh(np.einsum("nij,mij->nm", np.asarray(x), WEIGHTS))


def numpy_vjp(x, c):
    t = np.tanh(np.einsum("nij,mij->nm", np.asarray(x), WEIGHTS))
    return np.einsum("nm,mij->nij", np.asarray(c) * (1 - t**2), WEIGHTS)


def problem(kind="jax", **options):
    options = {"noise_std": 0.1, "inflate": 0, **options}
    if kind == "jax":
        return InverseProblem(PRIOR, jax_forward, DATA, **options)
    vjp = numpy_vjp if kind == "vjp" else None
    return InverseProblem(PRIOR, numpy_forward, DATA, vjp=vjp, **options)


def simulator(kind="jax", budget=None, **options):
    return Simulator(problem(kind, **options), budget)


class Calls:
    """A NumPy forward map that knows how many fields it was given."""

    def __init__(self):
        self.fields = 0

    def __call__(self, x):
        out = numpy_forward(x)  # raises while it is traced
        self.fields += len(out)
        return out


# --- values and derivatives ----------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_kinds_agree_and_gradients_are_those_of_finite_differences(scale):
    d = PRIOR.hierarchy(3)[scale - 1].lattice.dim
    u = np.asarray(jr.normal(jr.key(scale), (5, d)))
    ours = simulator("jax").evaluate(u, scale, gradient=True)
    other = simulator("vjp", chunk=2).evaluate(u, scale, gradient=True)
    np.testing.assert_allclose(ours.log_likelihood, other.log_likelihood, rtol=1e-10)
    np.testing.assert_allclose(ours.gradient, other.gradient, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(ours.log_likelihood, -0.5 * (ours.features**2).sum(1))
    step, numeric = 1e-5 * np.eye(d)[0], simulator("numpy")
    outer = [numeric.evaluate(u + a * step, scale).log_likelihood for a in (1, -1)]
    slope = (outer[0] - outer[1]) / 2e-5
    np.testing.assert_allclose(ours.gradient[:, 0], slope, rtol=1e-5, atol=1e-5)


def test_observations_are_those_of_the_upsampled_field():
    x = PRIOR.hierarchy(3)[1].sample(jr.key(0), 5)
    expected = numpy_forward(PRIOR.lattice.upsample(x))
    for kind in ("jax", "numpy"):
        made = simulator(kind, chunk=2)
        np.testing.assert_allclose(made.observe(x, 2), expected, rtol=1e-10)
        np.testing.assert_allclose(made.observe(PRIOR.lattice.upsample(x)), expected, rtol=1e-10)
        assert made.nfs == 10


def test_noise_covariance_and_std_agree():
    u = np.asarray(jr.normal(jr.key(1), (3, 64)))
    std = np.array([0.1, 0.2, 0.3])
    a = simulator(noise_std=std).evaluate(u, 3).log_likelihood
    b = simulator(noise_std=None, noise_cov=np.diag(std**2)).evaluate(u, 3).log_likelihood
    np.testing.assert_allclose(a, b)


def test_own_coarse_model():
    def coarse_model(scale):
        return None if scale != 1 else (lambda x: jnp.zeros((len(x), 3)))

    found = simulator(forward_at=coarse_model).evaluate(np.ones((1, 4)), 1)
    np.testing.assert_allclose(found.features[0], np.array(DATA) / 0.1, rtol=1e-6)
    own = simulator("vjp", forward_at=lambda l: numpy_forward if l == 2 else None)
    with refused("gradient must be False"):
        own.evaluate(np.ones((1, 16)), 2, gradient=True)


def test_float32_and_batches_of_any_length():
    made = simulator(chunk=4)
    u = jr.normal(jr.key(4), (11, 64), jnp.float32)
    values = made.evaluate(u, 3).log_likelihood
    single = [made.evaluate(u[i : i + 1], 3).log_likelihood[0] for i in range(11)]
    np.testing.assert_allclose(values, single, rtol=1e-5)
    assert isinstance(values, np.ndarray)


def test_wrong_batches_are_named():
    made = simulator(inflate=5)
    with refused("u must have shape (..., 64), got (2, 16)"):
        made.evaluate(np.zeros((2, 16)), 3)
    with refused("u must hold at least one field, got none"):
        made.evaluate(np.zeros((0, 64)), 3)
    with refused("u must be a batch of fields with one leading axis, got (64,)"):
        made.evaluate(np.zeros(64), 3)
    with refused("x must be a batch of fields with one leading axis, got (8, 8)"):
        made.observe(np.zeros((8, 8)))
    with refused("scale must be from 1 to 3, got 0"):
        made.evaluate(np.zeros((1, 64)), 0)
    with refused("gradient must be False"):
        simulator("numpy").evaluate(np.zeros((1, 64)), 3, gradient=True)
    assert made.nfs == 0


# --- counting and the budget ---------------------------------------------------------------------


def test_simulations_are_counted():
    made, u = simulator("vjp", chunk=3), np.zeros((7, 64))
    made.evaluate(u, 3)
    assert made.nfs == 7
    made.evaluate(u, 3, gradient=True)
    assert made.nfs == 21 and made.left == sys.maxsize
    assert Simulator(made.problem).nfs == 0  # another one has its own count
    assert made.count.saved() == {"nfs": 21, "failures": 0}


def test_the_budget_is_refused_before_anything_is_simulated():
    forward = Calls()
    made = Simulator(InverseProblem(PRIOR, forward, DATA, 0.1, inflate=5), budget=10)
    made.evaluate(np.zeros((8, 64)), 3)
    assert made.left == 2
    message = "the budget of 10 forward simulations does not allow 3 more: 8 are used"
    for simulate in (
        lambda: made.evaluate(np.zeros((3, 64)), 3),
        lambda: made.observe(np.zeros((3, 8, 8))),
    ):
        with pytest.raises(BudgetExceeded, match=message):
            simulate()
    with pytest.raises(BudgetExceeded, match="does not allow 16 more"):
        made.evaluate(np.zeros((1, 4)), 1)  # and 15 for the inflation of its noise
    with pytest.raises(BudgetExceeded, match="does not allow 15 more"):
        made.prepare()
    assert forward.fields == made.nfs == 8
    made.evaluate(np.zeros((2, 64)), 3)
    assert made.left == 0
    with refused("budget must be at least 0"):
        Simulator(made.problem, -1)


# --- inflated noise ------------------------------------------------------------------------------


def test_inflation_is_the_error_of_prior_draws_and_is_estimated_once():
    made = simulator(inflate=50)
    made.prepare()
    assert made.nfs == 150
    made.prepare()
    for scale in (1, 2):
        x = PRIOR.unwhiten(normal(jr.key(20210), (50, PRIOR.lattice.dim)))
        pooled = x
        for prior in reversed(made.problem.priors[scale:]):
            pooled = prior.lattice.pool(pooled)
        error = numpy_forward(x) - made.problem.at_scale(scale).observe(
            made.problem.at_scale(scale).lift(pooled)
        )
        found = made.inflation(scale)
        np.testing.assert_allclose(found.mean, error.mean(0), rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(found.covariance, np.cov(error.T), rtol=1e-8, atol=1e-12)
    assert made.inflation(3) is None
    assert made.nfs == 150
    assert simulator().inflation(1) is None
    single = simulator(inflate=50, scales=1)
    single.prepare()
    assert single.inflation(1) is None and single.nfs == 0


def test_inflation_is_there_by_default_where_noise_is_gaussian():
    made = InverseProblem(PRIOR, jax_forward, DATA, 0.1)
    assert made.inflate == 50
    assert InverseProblem(PRIOR, jax_forward, DATA, 0.1, scales=1).inflate == 0
    assert (
        InverseProblem(PRIOR, jax_forward, DATA, likelihood=likelihoods.Laplace(0.1)).inflate == 0
    )
    simulator = Simulator(made)
    error, noise = simulator.inflation(1), 0.1
    expected = np.sqrt(np.mean(np.diag(error.covariance) + error.mean**2)) / noise
    np.testing.assert_allclose(simulator.relative_inflation(1), expected, rtol=1e-12)
    assert simulator.relative_inflation(3) == 0


def test_few_draws_of_many_errors_have_a_covariance_of_full_rank():
    rng = np.random.default_rng(seeded(0))
    noise, errors = np.diag(np.geomspace(1e-4, 1.0, 40)), np.geomspace(1e-2, 1.0, 40)
    error = rng.normal(size=(20, 40)) * errors
    found = Inflation.estimated(error, noise)
    np.testing.assert_allclose(found.mean, error.mean(0), rtol=1e-12)
    # All errors are as large as the noise: so is what is estimated, in every combination.
    relative = np.diag(errors**-1) @ found.covariance @ np.diag(errors**-1)
    assert np.linalg.eigvalsh(relative)[0] > 0.2
    assert np.linalg.matrix_rank(np.cov(error.T)) < 20


def test_inflation_is_estimated_when_a_coarse_scale_needs_it():
    made, u = simulator(inflate=10), np.asarray(jr.normal(jr.key(2), (20, 4)))
    made.evaluate(np.zeros((3, 64)), 3)
    assert made.nfs == 3
    inflated = made.evaluate(u, 1, gradient=True)
    assert made.nfs == 3 + 30 + 40
    error = made.inflation(1)
    fields = made.problem.at_scale(1).fields(jnp.asarray(u))
    away = np.array(DATA) - error.mean - numpy_forward(fields)
    precision = np.linalg.inv(0.01 * np.eye(3) + error.covariance)
    expected = -0.5 * np.einsum("ni,ij,nj->n", away, precision, away)
    np.testing.assert_allclose(inflated.log_likelihood, expected, rtol=1e-9)


def test_restored_counts_have_the_inflation_in_them():
    made, u = simulator(inflate=10, budget=100), np.ones((5, 4))
    before = made.evaluate(u, 1).log_likelihood
    resumed = Simulator(made.problem, 100)
    resumed.count.restore(made.count.saved())
    assert resumed.left == made.left == 65
    np.testing.assert_array_equal(resumed.evaluate(u, 1).log_likelihood, before)
    assert resumed.nfs == made.nfs + 5


def test_inflated_and_plain_noise_share_compiled_programs():
    made = problem(inflate=10)
    model = made.at_scale(1)
    plain = made.without_inflation()
    assert plain.at_scale(1) is model
    for one in (Simulator(made), Simulator(made), Simulator(plain)):
        for n in (5, 6, 7, 8):  # padded to 8
            one.evaluate(np.zeros((n, 4)), 1)
            one.evaluate(np.zeros((n, 4)), 1, gradient=True)
    assert model.features._cache_size() == model.features_and_gradient._cache_size() == 1


def test_problems_of_equal_priors_share_programs_around_a_forward_map_in_numpy():
    shared = (at_scale._compiled_fields, at_scale._compiled_pull)
    jax.clear_caches()
    for n in (5, 6, 7, 8):  # padded to 8
        Simulator(problem("vjp")).evaluate(np.zeros((n, 4)), 1, gradient=True)
        assert [function._cache_size() for function in shared] == [1, 1]


# --- failures and checks -------------------------------------------------------------------------


def failing(x):
    out = numpy_forward(x)
    out[np.asarray(x)[:, 0, 0] > 0] = np.nan
    return out


def raising(x):
    if np.any(np.asarray(x)[:, 0, 0] > 0):
        raise FloatingPointError("solver diverged")
    return numpy_forward(x)


@pytest.mark.parametrize("forward", [failing, raising])
def test_failed_simulations_stop_or_are_rejected(forward):
    u = np.asarray(jr.normal(jr.key(3), (20, 64)))
    x = np.asarray(PRIOR.unwhiten(jnp.asarray(u)))
    positive = x[:, 0, 0] > 0
    with pytest.raises(SimulationError, match=r"samples? .* at scale 3") as caught:
        Simulator(InverseProblem(PRIOR, forward, DATA, 0.1)).evaluate(u, 3)
    first = np.flatnonzero(positive)[0] if forward is failing else 0  # of a batch that raised
    np.testing.assert_allclose(caught.value.field, x[first], rtol=1e-12)
    options = {"on_failure": "reject", "vjp": numpy_vjp}
    tolerant = Simulator(InverseProblem(PRIOR, forward, DATA, 0.1, **options))
    found = tolerant.evaluate(u, 3, gradient=True)
    np.testing.assert_array_equal(np.isneginf(found.log_likelihood), positive)
    np.testing.assert_array_equal(np.all(found.gradient == 0, axis=1), positive)
    assert tolerant.failures == positive.sum() > 0
    assert tolerant.count.saved() == {"nfs": 40, "failures": positive.sum()}
    kept = simulator("vjp").evaluate(u[~positive], 3, gradient=True)
    np.testing.assert_allclose(found.gradient[~positive], kept.gradient, rtol=1e-10)


@pytest.mark.parametrize("forward", [failing, raising])
def test_prior_draws_that_fail_say_nothing_of_the_discretisation_error(forward):
    options = {"inflate": 40, "on_failure": "reject"}
    tolerant = Simulator(InverseProblem(PRIOR, forward, DATA, 0.1, **options))
    rejected = Simulator(InverseProblem(PRIOR, lambda x: np.full((len(x), 3), np.nan), DATA, 0.1,
                                        **options))  # fmt: skip
    found = tolerant.inflation(1)
    assert np.isfinite(found.mean).all() and np.linalg.eigvalsh(found.covariance).min() > 0
    assert 0 < tolerant.failures < tolerant.nfs == 40 * 3
    assert rejected.inflation(1) is None and rejected.failures == 40 * 3
    with pytest.raises(SimulationError, match=r"samples? .* at scale 3"):
        Simulator(InverseProblem(PRIOR, forward, DATA, 0.1, inflate=40)).prepare()


def test_a_derivative_that_raises_is_a_failed_simulation():
    def vjp(x, c):
        raise FloatingPointError("adjoint diverged")

    made = Simulator(InverseProblem(PRIOR, numpy_forward, DATA, 0.1, vjp=vjp))
    with pytest.raises(SimulationError, match=r"sample 0 .* FloatingPointError: adjoint diverged"):
        made.evaluate(np.zeros((1, 64)), 3, gradient=True)


def test_check_goes_on_where_many_prior_draws_are_rejected_and_some_are_not():
    """Of two draws both are, for one key in four; of thirty more not all."""

    def half(x):
        x = np.asarray(x)
        return np.where(x.mean((1, 2)) > 0, x.sum((1, 2)), np.nan)[:, None]

    prior = LaplacePrior((4, 4), alpha=0.5, beta=2.0)
    given = InverseProblem(prior, half, [0.3], 0.1, scales=1, on_failure="reject")
    keys = [jr.fold_in(jr.key(seeded(0)), k) for k in range(20)]
    tried = []
    for key in keys:
        own = Simulator(given)
        own.check(key)
        tried.append(own.nfs)
    assert {2, 32} >= set(tried)
    never = InverseProblem(
        prior, lambda x: np.full((len(x), 1), np.nan), [0.3], 0.1, scales=1, on_failure="reject"
    )
    with pytest.raises(SimulationError, match="all 32 forward simulations"):
        Simulator(never).check()


def test_check_counts_what_it_simulates():
    made = simulator("vjp")
    made.check()
    assert made.nfs == 2 * 3 + 6
    plain = simulator("jax")
    plain.check()
    assert plain.nfs == 2 * 3


def test_check_finds_a_wrong_vjp_and_a_wrong_shape():
    wrong = InverseProblem(PRIOR, numpy_forward, DATA, 0.1, vjp=lambda x, c: 2 * numpy_vjp(x, c))
    with refused("vjp must be the transposed derivative"):
        Simulator(wrong).check()
    flat = InverseProblem(
        PRIOR, numpy_forward, DATA, 0.1, vjp=lambda x, c: numpy_vjp(x, c).reshape(len(x), -1)
    )
    with refused("vjp must return shape"):
        Simulator(flat).check()
    short = InverseProblem(PRIOR, lambda x: numpy_forward(x)[:, :2], DATA, 0.1)
    with pytest.raises(SimulationError, match=r"forward must return shape \(2, 3\) for 2 fields"):
        Simulator(short).check()


def test_inflation_of_compiled_forward_maps_is_that_of_called_ones():
    """Also where compiled code is given fewer fields at a time than there are draws."""
    called, *compiled = (
        simulator(kind, inflate=50, chunk=chunk)
        for kind, chunk in (("numpy", None), ("jax", None), ("jax", 16))
    )
    for made in compiled:
        assert made.problem.traceable
        for scale in (1, 2):
            found, wanted = made.inflation(scale), called.inflation(scale)
            np.testing.assert_allclose(found.mean, wanted.mean, rtol=1e-8, atol=1e-12)
            np.testing.assert_allclose(found.covariance, wanted.covariance, rtol=1e-8, atol=1e-12)
        assert made.nfs == called.nfs == 150


@pytest.mark.parametrize("inflate", [0, 20])
def test_check_of_a_compiled_forward_map_names_the_scale_that_fails(inflate):
    lattices = [prior.lattice for prior in PRIOR.hierarchy(3)]

    def own(scale):
        def forward(x):
            for lattice in lattices[scale:]:
                x = lattice.upsample(x)
            return jax_forward(x) / (0.0 if scale == 1 else 1.0)

        return forward

    options = {"inflate": inflate, "forward_at": own, "scales": 3}
    made = Simulator(InverseProblem(PRIOR, jax_forward, DATA, 0.1, **options))
    with pytest.raises(SimulationError, match=r"sample 0 at scale 1 returned NaN"):
        made.check()


def test_a_part_of_the_budget():
    limited = simulator(budget=10)
    with limited.limited(4):
        limited.evaluate(np.zeros((4, 64)), 3)
        with pytest.raises(BudgetExceeded):
            limited.evaluate(np.zeros((1, 64)), 3)
    assert (limited.nfs, limited.left) == (4, 6)
    with limited.limited(100):
        assert limited.left == 6


def test_few_programs_estimate_the_error_of_coarse_scales():
    """A program for the draws, and two for each scale: array operations of their own are slow."""
    compiled = []

    def listen(event, _, **__):
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    problem = InverseProblem(LaplacePrior((20, 12), 0.3, 2.0), nothing_but_numpy, [1.0], 0.1)
    simulator = Simulator(problem)
    jax.clear_caches()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        simulator.prepare()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert 0 < len(compiled) <= 1 + 3 * problem.scales


def nothing_but_numpy(x):
    return np.asarray(x).mean((1, 2))[:, None]
