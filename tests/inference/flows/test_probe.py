"""Gradients at the start of a stage, where there is no derivative."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import paramax
import pytest

from helpers import seeded
from msign import InverseProblem, LaplacePrior, Simulator
from msign.inference.flows import probe as module
from msign.inference.flows.directions import subspace_from_gradients
from msign.inference.flows.probe import Fields, probe_without_gradients
from msign.noise import parts
from msign.variables import Variables

D = 16
PRIOR = LaplacePrior((4, 4), 0.3, 2.0)


def problem(features):
    """A black box whose residuals are a function of whitened coordinates `(n, D)`."""

    def forward(x):
        return features(np.asarray(PRIOR.whiten(jnp.asarray(x))))

    return InverseProblem(PRIOR, forward, np.zeros(2), 1.0, scales=1, inflate=0)


def of_prior(known=None):
    """The prior as a model, with directions that it knows of."""
    basis = None if known is None else paramax.non_trainable(jnp.asarray(known))
    size = D if known is None else known.shape[1]
    from flowjax.bijections import Identity

    return Variables(Identity((size,)), basis, D)


def probed(features, known=None, fields=20, allowance=10**5, most=0):
    simulator = Simulator(problem(features))
    arguments = of_prior(known), most, fields, fields, allowance, jr.key(seeded(0))
    return simulator, probe_without_gradients(simulator, 1, *arguments)


def test_gradients_of_linear_features_are_exact():
    """One simulation for each cell; the log-likelihood is -|r|^2 / 2."""
    rng = np.random.default_rng(seeded(20))
    slope, constant = rng.normal(size=(D, 2)), rng.normal(size=2)
    simulator, probe = probed(lambda u: constant + u @ slope)
    assert simulator.nfs == 2 * 20 + 3 * module.LINES + D + 1
    u, gradients = probe.along(np.eye(D))
    np.testing.assert_allclose(gradients, -(constant + u @ slope) @ slope.T, atol=1e-5)
    assert probe.gradients.shape == (2 * 20, 2)


def test_regression_finds_the_gradient_of_a_quadratic_map():
    """r = (w u)^2 - 1 with w mostly, not wholly, along the known direction."""
    w = np.zeros(D)
    w[0], w[5] = 0.95, 0.2
    known = np.eye(D, 1)

    def features(u):
        t = 2 * u[:, :1] + 2 + u @ w[:, None]
        return np.concatenate([t**2 - 1, 0 * t], 1)

    simulator, probe = probed(features, known, fields=4000 // D)
    assert simulator.nfs == 4000 + 3 * module.LINES
    found = subspace_from_gradients(probe.gradients, 5, 1e-9, span=probe.span).basis[:, 0]
    true = w + 2 * np.eye(D)[0]
    true /= np.linalg.norm(true)
    missed, before = np.sqrt(1 - (found @ true) ** 2), np.sqrt(1 - true[0] ** 2)
    # What is left is the sampling noise of the slopes, of relative size sqrt(D / n).
    assert missed < 2 * before * np.sqrt(D / 4000) < 0.2 * before


def test_all_of_a_small_lattice_is_known_before_anything_is():
    """Then the gradient of a quadratic is exact, along every direction."""
    rng = np.random.default_rng(seeded(21))
    slope = rng.normal(size=(D, 2)) / 4

    def features(u):
        return (u @ slope + 0.5) ** 2

    _, probe = probed(features, fields=1000 // D, most=D)
    u, gradients = probe.along(np.eye(D))
    t = u @ slope + 0.5
    np.testing.assert_allclose(gradients, -(t**2 * 2 * t) @ slope.T, atol=1e-4)


def test_rejected_simulations_are_left_out():
    def features(u):
        r = np.stack([u[:, 0] ** 2, u[:, 1]], 1)
        r[u[:, 2] > 1] = np.nan
        return r

    simulator = Simulator(
        InverseProblem(
            PRIOR,
            lambda x: features(np.asarray(PRIOR.whiten(jnp.asarray(x)))),
            np.zeros(2),
            1.0,
            scales=1,
            inflate=0,
            on_failure="reject",
        )
    )
    arguments = of_prior(), D, 500 // D, 500 // D, 10**5, jr.key(seeded(1))
    probe = probe_without_gradients(simulator, 1, *arguments)
    u, gradients = probe.along(np.eye(D))
    assert 0 < (~probe.kept).sum() == 500 // D * D - len(u)
    assert u[:, 2].max() <= 1 and np.all(np.isfinite(gradients))


@pytest.mark.parametrize("n", [7, 100])
def test_fields_are_the_same_whenever_they_are_drawn(n, monkeypatch):
    monkeypatch.setattr(module, "part_size", lambda d: 30)
    fields = Fields(of_prior(), jr.key(seeded(2)), n)
    rows, u = map(list, zip(*fields.pieces(), strict=True))
    assert rows == parts(n, 30)
    np.testing.assert_array_equal(fields.along(np.eye(D)), np.concatenate(u))
    assert len(np.unique(np.concatenate(u)[:, 0])) == n
