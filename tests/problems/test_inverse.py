"""The inverse problem: what it refuses, that it does not change, what it says at a glance."""

import copy

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from helpers import refused
from msign import InverseProblem, LaplacePrior
from msign.problems import Simulator, problem_without_forward

PRIOR = LaplacePrior((8, 8), alpha=0.5, beta=2.0)
WEIGHTS = np.random.default_rng(0).normal(size=(3, 8, 8)) / 8
DATA = [0.3, -0.2, 0.5]

pytestmark = pytest.mark.usefixtures("quick_compilation")


def forward(x):
    return jnp.tanh(jnp.einsum("nij,mij->nm", x, jnp.asarray(WEIGHTS)))


def problem(**options):
    return InverseProblem(PRIOR, forward, DATA, **{"noise_std": 0.1, "inflate": 0, **options})


def test_attributes_cannot_be_set():
    data, truth = np.array(DATA), np.ones((8, 8))
    made = InverseProblem(PRIOR, forward, data, 0.1, symmetry=np.negative, truth=truth)
    for name in ("data", "inflate", "symmetry", "nfs"):
        with pytest.raises(AttributeError, match=f"{name} cannot be set"):
            setattr(made, name, 0)
    with pytest.raises(AttributeError, match="data cannot be deleted"):
        del made.data
    for array in (made.data, made.noise_cov, made.truth):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0
    data[0], truth[0, 0] = 7.0, 7.0  # the caller's arrays remain the caller's
    assert made.data[0] == 0.3 and made.truth[0, 0] == 1.0
    with pytest.raises(AttributeError, match="cannot be set"):
        copy.copy(made).name = "other"


def test_what_is_known_of_the_posterior_is_kept():
    reference = object()
    made = problem(reference=reference, symmetry=np.negative, truth=np.ones((8, 8)))
    assert made.reference is reference and made.symmetry is np.negative
    assert problem().reference is None and problem().symmetry is None and problem().truth is None
    with refused("truth must have shape (8, 8), got (8,)"):
        problem(truth=np.ones(8))
    assert repr(made) == "InverseProblem(problem, Lattice(8x8), 3 scales, 3 observations)"


def test_coarse_scales_see_the_upsampled_field():
    made = problem()
    x = made.priors[1].sample(jr.key(0), 4)
    lifted = PRIOR.lattice.upsample(x)
    np.testing.assert_allclose(made.log_likelihood(x, 2), made.log_likelihood(lifted), rtol=1e-9)
    with refused("scale must be from 1 to 3, got 4"):
        made.log_likelihood(x, 4)


def test_log_likelihood_has_the_inflated_noise_of_coarse_scales():
    made = problem(inflate=20)
    x = made.priors[0].sample(jr.key(1), 4)
    u = made.priors[0].whiten(x)
    inflated, plain = (Simulator(p).evaluate(u, 1) for p in (made, problem()))
    np.testing.assert_allclose(made.log_likelihood(x, 1), inflated.log_likelihood, rtol=1e-12)
    without = made.without_inflation()
    np.testing.assert_allclose(without.log_likelihood(x, 1), plain.log_likelihood, rtol=1e-12)
    assert made.inflate == 20 and without.inflate == 0
    assert np.all(np.abs(inflated.log_likelihood - plain.log_likelihood) > 1e-3)


def test_a_problem_without_forward_map_has_a_prior_but_simulates_nothing():
    made = problem_without_forward(PRIOR, 2, "stored")
    assert (made.name, made.scales, made.dim) == ("stored", 2, 64)
    assert not made.differentiable
    simulator = Simulator(made)
    for simulate in (
        lambda: simulator.evaluate(np.zeros((1, 64)), 2),
        lambda: simulator.observe(np.zeros((1, 8, 8))),
        lambda: made.log_likelihood(np.zeros((1, 8, 8))),
        simulator.check,
    ):
        with refused("problem must be given to Posterior.load to simulate"):
            simulate()
    assert simulator.nfs == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_std": -0.1}, "noise_std must be positive, got -0.1"),
        ({"noise_std": [0.1, 0.2]}, "noise_std must be a number or have shape"),
        ({"noise_std": None}, "noise_std or noise_cov must be given"),
        ({"noise_std": None, "noise_cov": -np.eye(3)}, "noise_cov must be symmetric positive"),
        ({"on_failure": "ignore"}, "on_failure must be one of 'raise', 'reject', got 'ignore'"),
        ({"scales": 9}, "scales must be at most 4"),
        ({"chunk": -1}, "chunk must be at least 1, got -1"),
        ({"inflate": -1}, "inflate must be at least 0, got -1"),
        ({"forward_and_vjp": forward}, "vjp must be given beside forward_and_vjp"),
    ],
)
def test_bad_options_are_named(options, message):
    with refused(message):
        problem(**options)


def test_bad_forward_maps_and_data_are_named():
    with refused("forward must return shape (n, 3)"):
        InverseProblem(PRIOR, lambda x: x.sum((1, 2))[:, None], DATA, 0.1)
    with refused("forward must be callable"):
        InverseProblem(PRIOR, 3, DATA, 0.1)
    with refused("data must be finite"):
        InverseProblem(PRIOR, forward, [0.1, np.nan, 0.2], 0.1)
    with refused("forward must return shape (n, 1, 2)"):
        InverseProblem(PRIOR, forward, [[0.1, 0.2]], 0.1)
    with refused("prior must be a msign prior, got str"):
        InverseProblem("normal", forward, DATA, 0.1)


def test_a_cut_problem_is_that_of_the_coarse_scale():
    whole = problem(truth=np.ones((8, 8)), inflate=20)
    coarse = whole.cut(2)
    x = coarse.prior.sample(jr.key(1), 5)
    assert (coarse.scales, coarse.dim, coarse.truth) == (2, 16, None)
    there = whole.without_inflation().log_likelihood(x, 2)
    np.testing.assert_allclose(coarse.log_likelihood(x), there, rtol=1e-12)
    assert whole.scales == 3 and whole.dim == 64
    with refused("scale must be from 1 to 3, got 4"):
        whole.cut(4)
