"""Directions that a trained flow leaves out, Gaussian given those that it moves."""

import functools

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from flowjax.bijections import Identity

from helpers import seeded
from msign import (
    FitConfig,
    Informed,
    InformedConfig,
    InverseProblem,
    LaplacePrior,
    Posterior,
    Simulator,
    fit,
)
from msign.bijections import InformedFlow, TriangularMap
from msign.inference.flows.beyond import fields_wanted, gaussian_beyond
from msign.noise import normal
from msign.variables import Variables, draw
from msign.weights import weight_report

pytestmark = pytest.mark.usefixtures("quick_compilation")

PRIOR = LaplacePrior((16,), alpha=0.5, beta=1.0)
AXES = np.linalg.qr(np.random.default_rng(0).normal(size=(16, 16)))[0]  # of whitened space


def bent(weak, x):
    """One observation that determines a variable, three that say a little of others given it."""
    v = PRIOR.whiten(x) @ jnp.asarray(AXES, x.dtype)
    s, t = v[:, 0], v[:, 1:4]
    return jnp.stack(
        [3 * s, *(weak * (t[:, k] * (1 + 0.3 * s) + 0.3 * s**2) for k in range(3))], -1
    )


def bent_problem(weak=0.5):
    return InverseProblem(
        PRIOR, functools.partial(bent, weak), [1.0, 0.3, -0.2, 0.4], noise_std=1.0, scales=1
    )


def strong_part():
    """The model of s alone: exact, were it not for the three weak observations."""
    affine = TriangularMap.from_matrix(np.array([[10**-0.5]]), np.array([0.3]))
    return Variables(affine, jnp.asarray(AXES[:, :1], jnp.float32), 16)


def found_beyond(problem, simulator, model, most=4, allowance=20_000, tolerance=1e-3):
    return gaussian_beyond(
        simulator, 1, model, most, 30, tolerance, 2, allowance, jr.key(seeded(3))
    )


def report_of(problem, model, n=4000):
    """Weights of fresh fields of a model."""
    noise = normal(jr.key(seeded(4)), (n, 16))
    u, _, ratio = draw(model, np.asarray(noise))
    return weight_report(Simulator(problem).evaluate(u, 1).log_likelihood - ratio)


def widened(model, found):
    flow = InformedFlow(model.directions, model.flow).followed_by(found.layer, found.basis)
    return Variables(flow.now, flow.basis, 16)


def test_what_was_left_out_is_found_and_the_divergence_falls():
    """By the bound: what is lost before, and what is lost after, are half of the divergence."""
    problem, model = bent_problem(), strong_part()
    found = found_beyond(problem, Simulator(problem), model)
    assert found.basis.shape == (16, 3)
    inside = AXES[:, 1:4]
    np.testing.assert_allclose(
        inside.T @ found.basis @ found.basis.T @ inside, np.eye(3), atol=0.02
    )
    before, after = (report_of(problem, m) for m in (model, widened(model, found)))
    assert found.after < 0.2 * found.before
    assert after.jeffreys < 0.3 * before.jeffreys
    assert after.ess_fraction > before.ess_fraction


def test_what_data_determine_strongly_is_no_perturbation():
    """Precisions of 1 + 25 given s: mean and spread come from the mean precision."""
    problem, model = bent_problem(weak=5.0), strong_part()
    found = found_beyond(problem, Simulator(problem), model)
    before, after = (report_of(problem, m) for m in (model, widened(model, found)))
    assert before.jeffreys > 10
    assert after.jeffreys < 0.2 * before.jeffreys


def test_a_gaussian_of_everything_is_exact():
    """Where observations are linear, given s all is: mean and covariance of a closed form."""
    slopes = np.array([[3.0, 0, 0], [0.5, 0.6, 0.0], [0.2, -0.3, 0.5]])

    def forward(x):
        v = PRIOR.whiten(x) @ jnp.asarray(AXES[:, :3], x.dtype)
        return v @ jnp.asarray(slopes.T, x.dtype)

    data = np.array([1.0, 0.5, -0.3])
    problem = InverseProblem(PRIOR, forward, data, noise_std=1.0, scales=1)
    covariance = np.linalg.inv(np.eye(3) + slopes.T @ slopes)
    mean = covariance @ slopes.T @ data
    marginal = TriangularMap.from_matrix(np.sqrt(covariance[:1, :1]), mean[:1])
    model = Variables(marginal, jnp.asarray(AXES[:, :1], jnp.float32), 16)
    found = found_beyond(problem, Simulator(problem), model)
    report = report_of(problem, widened(model, found))
    assert report.jeffreys < 0.01 * report_of(problem, model).jeffreys


def test_nothing_is_simulated_twice_and_no_more_than_allowed():
    problem, model = bent_problem(), strong_part()
    simulator = Simulator(problem)
    found_beyond(problem, simulator, model, allowance=600)
    assert 0 < simulator.nfs <= 600
    simulator = Simulator(problem)
    found_beyond(problem, simulator, model)
    assert simulator.nfs == 2 * fields_wanted(1, 4, 4)


def test_where_data_say_nothing_more_there_is_no_layer():
    problem, model = bent_problem(weak=1e-3), strong_part()
    assert found_beyond(problem, Simulator(problem), model) is None
    few = Simulator(problem)
    assert found_beyond(problem, few, model, allowance=20) is None
    assert few.nfs == 0


# --- in a fit -------------------------------------------------------------------------------------

NARROW = Informed(InformedConfig(max_rank=1, blocks=2, hidden=4, beyond=4))
CONFIG = FitConfig(flow=NARROW, steps=20, rounds=2)


@functools.cache
def fitted(beyond):
    kind = Informed(InformedConfig(max_rank=1, blocks=2, hidden=4, beyond=beyond))
    config = FitConfig(flow=kind, rounds=2)
    return fit(bent_problem(1.0), 20_000, seeded(5), progress=False, config=config)


def test_a_fit_of_too_few_directions_is_finished_by_a_gaussian_of_the_others():
    with_it, without = fitted(4).summary(), fitted(0).summary()
    assert with_it["ess_fraction"] > without["ess_fraction"] + 0.1
    assert with_it["nfs"] <= 20_000


def test_it_is_saved_with_the_flow(tmp_path):
    posterior = fitted(4)
    assert posterior.network.flows[-1].inner.layer is not None
    posterior.save(tmp_path / "run")
    loaded = Posterior.load(tmp_path / "run", bent_problem(1.0))
    x = posterior.sample(5, seed=1)
    np.testing.assert_array_equal(loaded.sample(5, seed=1), x)
    np.testing.assert_array_equal(loaded.log_prob(x), posterior.log_prob(x))


def test_flows_that_leave_nothing_out_are_left_alone():
    kind = Informed(InformedConfig(max_rank=1, beyond=4))
    model = Variables(Identity((16,)), None, 16)
    assert kind.kept_to_finish(model, bent_problem(), 10_000) == 0
