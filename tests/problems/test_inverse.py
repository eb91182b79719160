"""The inverse problem: three kinds of forward map, counting, failures, checks."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from msign import InverseProblem, LaplacePrior
from msign.problems import SimulationError

PRIOR = LaplacePrior((8, 8), alpha=0.5, beta=2.0)
WEIGHTS = np.random.default_rng(0).normal(size=(3, 8, 8)) / 8
DATA = [0.3, -0.2, 0.5]


def jax_forward(x):
    return jnp.tanh(jnp.einsum("nij,mij->nm", x, jnp.asarray(WEIGHTS)))


def numpy_forward(x):
    return np.tanh(np.einsum("nij,mij->nm", np.asarray(x), WEIGHTS))


def numpy_vjp(x, c):
    t = np.tanh(np.einsum("nij,mij->nm", np.asarray(x), WEIGHTS))
    return np.einsum("nm,mij->nij", np.asarray(c) * (1 - t**2), WEIGHTS)


def problem(kind="jax", **options):
    options = {"noise_std": 0.1, **options}
    if kind == "jax":
        return InverseProblem(PRIOR, jax_forward, DATA, **options)
    vjp = numpy_vjp if kind == "vjp" else None
    return InverseProblem(PRIOR, numpy_forward, DATA, vjp=vjp, **options)


@pytest.mark.parametrize("scale", [1, 2, 3])
def test_kinds_agree_and_gradients_are_those_of_finite_differences(scale):
    d = PRIOR.hierarchy(3)[scale - 1].lattice.dim
    u = np.asarray(jr.normal(jr.key(scale), (5, d)))
    ours = problem("jax").evaluate(u, scale, gradient=True)
    other = problem("vjp", chunk=2).evaluate(u, scale, gradient=True)
    np.testing.assert_allclose(ours.log_likelihood, other.log_likelihood, rtol=1e-10)
    np.testing.assert_allclose(ours.gradient, other.gradient, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(ours.log_likelihood, -0.5 * (ours.residual**2).sum(1))
    step = 1e-5 * np.eye(d)[0]
    numeric = problem("numpy")
    slope = (
        numeric.evaluate(u + step, scale).log_likelihood
        - numeric.evaluate(u - step, scale).log_likelihood
    ) / 2e-5
    np.testing.assert_allclose(ours.gradient[:, 0], slope, rtol=1e-5, atol=1e-5)


def test_coarse_scales_see_the_upsampled_field():
    made = problem()
    coarse = made.priors[1]
    x = coarse.sample(jr.key(0), 4)
    lifted = PRIOR.lattice.upsample(x)
    np.testing.assert_allclose(made.log_likelihood(x, 2), made.log_likelihood(lifted, 3), rtol=1e-9)


def test_simulations_are_counted():
    made = problem("vjp", chunk=3)
    u = np.zeros((7, 64))
    made.evaluate(u, 3)
    assert made.nfs == 7
    made.evaluate(u, 3, gradient=True)
    assert made.nfs == 21


def test_noise_covariance_and_std_agree():
    u = np.asarray(jr.normal(jr.key(1), (3, 64)))
    std = np.array([0.1, 0.2, 0.3])
    a = problem(noise_std=std).evaluate(u, 3).log_likelihood
    b = problem(noise_std=None, noise_cov=np.diag(std**2)).evaluate(u, 3).log_likelihood
    np.testing.assert_allclose(a, b)


def test_own_coarse_model_and_inflated_noise():
    def coarse_model(scale):
        return None if scale != 1 else (lambda x: jnp.zeros((len(x), 3)))

    made = problem(forward_at=coarse_model)
    np.testing.assert_allclose(
        made.evaluate(np.ones((1, 4)), 1).residual[0], np.array(DATA) / 0.1, rtol=1e-6
    )
    inflated = problem(inflate=50)
    error = inflated.inflation(1)
    assert inflated.nfs == 150
    assert error.covariance.shape == (3, 3)
    assert np.linalg.eigvalsh(error.covariance)[0] > 0
    assert inflated.inflation(3) is None
    u = np.asarray(jr.normal(jr.key(2), (200, 4)))
    spread = inflated.evaluate(u, 1).log_likelihood.std()
    assert spread < problem().evaluate(u, 1).log_likelihood.std()
    plain = inflated.without_inflation()
    np.testing.assert_array_equal(
        plain.evaluate(u, 1).log_likelihood, problem().evaluate(u, 1).log_likelihood
    )
    assert plain.nfs == 200 and inflated.nfs == 350


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
    positive = np.asarray(PRIOR.unwhiten(jnp.asarray(u)))[:, 0, 0] > 0
    with pytest.raises(SimulationError, match="sample") as caught:
        InverseProblem(PRIOR, forward, DATA, 0.1).evaluate(u, 3)
    assert caught.value.field.shape == (8, 8)
    tolerant = InverseProblem(PRIOR, forward, DATA, 0.1, on_failure="reject")
    values = tolerant.evaluate(u, 3).log_likelihood
    np.testing.assert_array_equal(np.isneginf(values), positive)
    assert tolerant.failures == positive.sum() > 0


def test_check_finds_a_wrong_vjp():
    problem("vjp").check()
    wrong = InverseProblem(PRIOR, numpy_forward, DATA, 0.1, vjp=lambda x, c: 2 * numpy_vjp(x, c))
    with pytest.raises(ValueError, match="vjp must be the transposed derivative"):
        wrong.check()
    flat = InverseProblem(
        PRIOR, numpy_forward, DATA, 0.1, vjp=lambda x, c: numpy_vjp(x, c).reshape(len(x), -1)
    )
    with pytest.raises(ValueError, match="vjp must return shape"):
        flat.check()


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
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        problem(**options)


def test_bad_forward_maps_are_named():
    with pytest.raises(ValueError, match=r"forward must return shape \(n, 3\)"):
        InverseProblem(PRIOR, lambda x: x.sum((1, 2))[:, None], DATA, 0.1)
    with pytest.raises(ValueError, match="forward must be callable"):
        InverseProblem(PRIOR, 3, DATA, 0.1)
    with pytest.raises(ValueError, match="data must be finite"):
        InverseProblem(PRIOR, jax_forward, [0.1, np.nan, 0.2], 0.1)
    wrong = InverseProblem(
        PRIOR, lambda x: np.zeros((len(x), 2)) + np.asarray(x)[0, 0, 0], DATA, 0.1
    )
    with pytest.raises((ValueError, SimulationError), match="forward must return shape"):
        wrong.check()
    assert not wrong.differentiable
    with pytest.raises(ValueError, match="gradient must be False"):
        wrong.evaluate(np.zeros((1, 64)), 3, gradient=True)


def test_float32_and_batches_of_any_length():
    made = problem(chunk=4)
    u = jr.normal(jr.key(4), (11, 64), jnp.float32)
    values = made.evaluate(u, 3).log_likelihood
    single = [made.evaluate(u[i : i + 1], 3).log_likelihood[0] for i in range(11)]
    np.testing.assert_allclose(values, single, rtol=1e-5)
    assert isinstance(jax.device_get(values), np.ndarray)
