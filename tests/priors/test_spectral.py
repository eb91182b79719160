"""Powers of the Laplacian: what they are on a lattice, and that they do not depend on it."""

import math

import numpy as np
import pytest
from scipy.linalg import fractional_matrix_power

from conformance import BOUNDARIES
from helpers import covariance_of
from msign import LaplacePrior

pytestmark = pytest.mark.usefixtures("quick_compilation")

ENDS = {"dirichlet": 3.0, "neumann": 1.0, "periodic": 2.0}


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("shape", [(6,), (4, 3), (2, 3, 2)], ids=str)
def test_laplace_covariance_is_a_power_of_the_finite_difference_operator(shape, boundary):
    alpha, beta, kappa = 0.3, 2.0, 1.5
    operator = kappa**2 * np.eye(np.prod(shape))
    for axis, n in enumerate(shape):
        line = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
        line[0, 0] = line[-1, -1] = ENDS[boundary]
        if boundary == "periodic":
            line[0, -1] -= 1
            line[-1, 0] -= 1
        before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        operator += n**2 * np.kron(np.kron(np.eye(before), line), np.eye(after))
    expected = np.prod(shape) * beta**2 * fractional_matrix_power(operator, -1 - alpha)
    prior = LaplacePrior(shape, alpha, beta, boundary, kappa)
    np.testing.assert_allclose(covariance_of(prior), expected, rtol=0, atol=1e-10)


def test_laplace_prior_does_not_depend_on_the_mesh():
    """The variance of a smooth functional converges under refinement, at second order."""
    variances = []
    for n in (16, 32, 64):
        prior = LaplacePrior((n,), 0.5, 2.0)
        phi = np.sin(np.pi * (np.arange(n) + 0.5) / n) / n
        variances.append(phi @ covariance_of(prior) @ phi)
    exact = 2.0**2 * np.pi**-3.0 / 2  # lambda_1 <phi, e_1>^2
    errors = np.abs(np.array(variances) - exact)
    np.testing.assert_allclose(errors[:-1] / errors[1:], 4, rtol=0.05)
