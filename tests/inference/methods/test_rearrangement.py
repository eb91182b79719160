"""Flows of one variable made of a pool, against quadrature."""

import jax.random as jr
import numpy as np
import pytest

from helpers import seeded
from msign.bijections import InformedConfig, informed_stack
from msign.inference.methods.rearrangement import rearranged_line
from msign.variables import Variables, log_ratio, moved

FLOW = informed_stack(jr.key(0), 1, InformedConfig())
# Log-likelihoods of a standard normal variable, and how far the flow may be from the posterior. In
# a valley of 200 nats a spline has the mass of its narrowest bins, of up to 4e-6 in z on either
# side: 0.0006 nats for a valley in the middle.
TARGETS = {
    "the prior": (lambda s: np.zeros_like(s), 1e-4),
    "normal": (lambda s: -0.5 * ((s - 1) / 0.1) ** 2, 1e-4),
    "skewed": (lambda s: -0.5 * ((np.exp(s) - 3) / 0.3) ** 2, 1e-4),
    "two narrow modes": (lambda s: -0.5 * ((s**2 - 2) / 0.05) ** 2, 1e-3),
    "uneven modes": (lambda s: -0.5 * ((s**2 + 0.3 * s - 2) / 0.1) ** 2, 1e-3),
    "six modes": (lambda s: -0.5 * ((np.sin(3 * s) - 0.5) / 0.1) ** 2, 5 * 1e-3),
}


def nothing_known(s: np.ndarray) -> np.ndarray:
    return np.zeros_like(s)


def rearranged(s: np.ndarray, values: np.ndarray, emulated=nothing_known) -> Variables:
    given = FLOW, s[:, None], values, lambda s: emulated(s[:, 0])
    return Variables(rearranged_line(*given)[0], None, 1)


def of_fields(log_likelihood, s: np.ndarray, emulated=nothing_known) -> Variables:
    return rearranged(s, log_likelihood(s), emulated)


def exact_jeffreys(log_likelihood, model: Variables) -> float:
    """By quadrature."""
    s = np.linspace(-7, 7, 280_001)
    step, prior = s[1] - s[0], -0.5 * s**2 - 0.5 * np.log(2 * np.pi)
    log_q = log_likelihood(s) + prior
    log_q -= np.log(np.sum(np.exp(log_q)) * step)
    log_p = log_ratio(model, s[:, None]) + prior
    return float(np.sum((np.exp(log_p) - np.exp(log_q)) * (log_p - log_q)) * step)


@pytest.mark.parametrize("name", TARGETS)
def test_the_density_of_a_pool_becomes_that_of_the_flow(name):
    """Far fields say where the modes are, those of the first flow what they are like.

    The outermost of the modes are 3.4 and 4.4 deviations of the prior away: no luck is needed.
    """
    log_likelihood, far = TARGETS[name]
    rng = np.random.default_rng(seeded(0))
    s = 2 * rng.normal(size=8000)
    first = of_fields(log_likelihood, s)
    s = np.append(s, moved(first, rng.normal(size=(4000, 1)))[0])
    model = of_fields(log_likelihood, s)
    assert exact_jeffreys(log_likelihood, model) < far


def test_a_valley_without_fields_is_as_deep_as_the_emulator_says():
    """The modes are 28 standard deviations apart: what lies between them shows in no sample."""
    log_likelihood, _ = TARGETS["two narrow modes"]
    rng = np.random.default_rng(seeded(1))
    side = rng.choice([-1, 1], 4000)
    s = side * np.sqrt(2) + 0.02 * rng.normal(size=4000)
    # An emulator that is wrong everywhere, by a line: fields correct it.
    emulated = lambda s: log_likelihood(s) + 0.3 * s + 5  # noqa: E731
    assert exact_jeffreys(log_likelihood, of_fields(log_likelihood, s, emulated)) < 1e-3
    assert exact_jeffreys(log_likelihood, of_fields(log_likelihood, s)) > 1


def test_what_other_variables_add_to_single_fields_is_averaged():
    """Noise of 0.05 nats in each value: a flow through every one is off by its variance."""
    log_likelihood, _ = TARGETS["normal"]
    rng = np.random.default_rng(seeded(2))
    s = 1 / 1.01 + 0.15 * rng.normal(size=8000)
    values = log_likelihood(s) + 0.05 * rng.normal(size=8000)
    assert exact_jeffreys(log_likelihood, rearranged(s, values)) < 0.2 * 0.05**2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n", [2, 5, 50])
def test_few_fields_and_worthless_ones_make_a_finite_flow(n):
    rng = np.random.default_rng(seeded(3))
    s = rng.normal(size=n)
    values = np.where(s > 0, 0.0, -1e4)
    x, density = moved(rearranged(s, values), rng.normal(size=(2000, 1)))
    assert np.isfinite(x).all()
    assert np.isfinite(density).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n", [2, 3, 400])
def test_one_field_that_is_not_worthless(n):
    """There are fewer points with mass than knots, which once kept the search for knots going."""
    for k in range(5):
        rng = np.random.default_rng(seeded(10 + k))
        s, values = rng.normal(size=n), np.full(n, -1e4)
        values[0] = 0
        x, density = moved(rearranged(s, values), rng.normal(size=(200, 1)))
        # Cells have two fields at the most, so that nothing lies behind the second neighbours.
        others = np.concatenate([[-np.inf, -np.inf], np.sort(s), [np.inf, np.inf]])
        place = np.searchsorted(others, s[0])
        assert np.all((x > others[place - 2]) & (x < others[place + 2]))
        assert np.isfinite(density).all()
