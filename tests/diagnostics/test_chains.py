"""Long chains: their moments against the closed form of a linear Gaussian problem."""

import jax.numpy as jnp
import numpy as np
import pytest

from helpers import seeded
from msign import InverseProblem, LaplacePrior
from msign.diagnostics.chains import run_chains
from msign.problems import Simulator

PRIOR = LaplacePrior((8,), alpha=0.3, beta=2.0)
ROWS = np.array([[1.0, 2, 3, 4, 4, 3, 2, 1], [1.0, 1, 1, 1, -1, -1, -1, -1]])


@pytest.fixture(scope="module")
def problem():
    forward = lambda x: x @ jnp.asarray(ROWS.T)  # noqa: E731
    return InverseProblem(PRIOR, forward, [1.0, -2.0], noise_std=0.5, scales=1)


def closed_form(problem):
    """Mean and covariance of the posterior in whitened coordinates."""
    columns = np.asarray(PRIOR.unwhiten(jnp.eye(8))) @ ROWS.T / 0.5  # (8, 2)
    covariance = np.linalg.inv(np.eye(8) + columns @ columns.T)
    return covariance @ columns @ (problem.data / 0.5), covariance, columns


def test_moments_are_those_of_the_posterior(problem):
    mean, covariance, columns = closed_form(problem)
    basis, simulator = np.linalg.qr(columns)[0], Simulator(problem)
    along = basis.T @ covariance @ basis
    options = {"every": 5, "seed": seeded(0), "simulator": simulator}
    chains = run_chains(problem, np.zeros((50, 8)), basis, along, steps=1500, **options)
    assert simulator.nfs == 2 * 50 * (1 + 300 + 1500)
    assert 0.4 < chains.acceptance < 0.9
    per_chain = chains.u.mean(0)
    error = per_chain.std(0, ddof=1) / np.sqrt(50)
    assert np.all(np.abs(per_chain.mean(0) - mean) < 5 * error)
    squares = ((chains.u - mean) ** 2).mean(0)
    error = squares.std(0, ddof=1) / np.sqrt(50)
    assert np.all(np.abs(squares.mean(0) - np.diag(covariance)) < 5 * error)


def test_a_rough_covariance_does_not_bias(problem):
    """It only tunes: a covariance twice off, and one direction that is not informed."""
    mean, covariance, columns = closed_form(problem)
    more = np.random.default_rng(1).normal(size=(8, 1))
    basis = np.linalg.qr(np.concatenate([columns, more], 1))[0]
    rough = 2 * np.diag(np.diag(basis.T @ covariance @ basis))
    chains = run_chains(problem, np.zeros((60, 8)), basis, rough, 1500, others=0.9, seed=seeded(0))
    per_chain = chains.u.mean(0)
    error = per_chain.std(0, ddof=1) / np.sqrt(60)
    assert np.all(np.abs(per_chain.mean(0) - mean) < 5 * error)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"others": 0.0}, "others must be in"),
        ({"steps": 0}, "steps must be"),
        ({"scale": 2}, "scale"),
    ],
)
def test_bad_arguments(problem, options, message):
    arguments = {"steps": 5, **options}
    with pytest.raises(ValueError, match=message):
        run_chains(problem, np.zeros((2, 8)), np.eye(8)[:, :2], np.eye(2), **arguments)
