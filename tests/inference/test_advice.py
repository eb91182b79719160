"""What to change, and by how much."""

import re
import types

import jax.numpy as jnp
import numpy as np
import pytest

from helpers import seeded
from msign import FitConfig, InverseProblem, LaplacePrior, fit
from msign.inference.advice import about_means, seen_from_prior, stage_advice
from msign.inference.simulate import Simulated
from msign.problems.inverse import INFLATION_DRAWS

pytestmark = pytest.mark.usefixtures("quick_compilation")
PRIOR = LaplacePrior((8,), alpha=0.2, beta=2.0)
CONFIG = FitConfig(steps=5, rounds=2, round_size=200, certificate=200)


def advice_of(problem: InverseProblem, budget: int = 3000) -> str:
    posterior = fit(problem, budget, seeded(0), progress=False, config=CONFIG)
    return "\n".join(posterior.summary()["advice"])


def ends(x):
    """Two cells next to each other, which coarse lattices cannot tell apart."""
    return jnp.stack([x[:, 0], x[:, 1]], 1)


def test_coarse_scales_that_cannot_fit_the_data():
    problem = InverseProblem(PRIOR, ends, [0.3, -0.3], noise_std=0.01, inflate=0)
    told = advice_of(problem)
    # Both cells are the same on the coarse lattice: residuals of 0.3 / 0.01 standard deviations.
    assert re.search(r"scale 1 cannot fit the data: residuals are 30 ", told)
    assert "without inflate=0" in told and f"{INFLATION_DRAWS * problem.scales} simulations" in told


def test_nothing_to_say_where_the_error_of_a_coarse_scale_explains_its_misfit():
    """Cells that differ by two of the prior's standard deviations of their difference."""
    difference = np.asarray(PRIOR.unwhiten(np.eye(8)))[:, :2] @ [1.0, -1.0]
    half = float(np.linalg.norm(difference))
    problem = InverseProblem(PRIOR, ends, [half, -half], noise_std=0.01)
    assert problem.inflate and advice_of(problem, 4000) == ""


def test_noise_that_would_fit_where_that_error_does_not():
    problem = InverseProblem(PRIOR, ends, [0.3, -0.3], noise_std=0.01)
    best = {"scale": 1, "misfit": 5.0, "jeffreys": 0.5, "temperature": 1.0, "deviations": None}
    (told,) = stage_advice(problem, FitConfig(), [best], inflation=3.0)
    factor = float(re.search(r"noise_std ([\d.]+) times", told)[1])
    # Five times the noise and error of now, the error staying as it is.
    assert factor**2 + 3.0**2 == pytest.approx(5.0**2 * (1 + 3.0**2), rel=0.1)
    assert "inflate" not in told and "StudentT(noise_std, df=4)" in told
    for far in ({"temperature": 0.86}, {"jeffreys": 4.0}):  # the model does not fit, not the scale
        assert stage_advice(problem, FitConfig(), [{**best, **far}], inflation=3.0) == []


def test_a_posterior_far_outside_of_the_prior():
    """The mean of eight cells at ten of its prior standard deviations."""
    mean = np.asarray(PRIOR.unwhiten(np.eye(8))).mean(1)
    far = 10 * float(np.sqrt(np.sum(mean**2)))
    told = advice_of(InverseProblem(PRIOR, lambda x: x.mean(1)[:, None], [far], noise_std=0.01))
    assert "10 standard deviations" in told and "5 times as large" in told


def test_nothing_to_say_of_an_ordinary_problem():
    problem = InverseProblem(PRIOR, lambda x: x.mean(1)[:, None], [0.2], noise_std=0.1)
    assert advice_of(problem) == ""


def test_a_first_stage_far_off_for_lack_of_simulations():
    def told(jeffreys, affordable=False):
        simulator = types.SimpleNamespace(budget=3000)
        stage = types.SimpleNamespace(scale=1, round_size=200, simulator=simulator,
                                      affords=lambda _: affordable,
                                      is_over=lambda _: not affordable)  # fmt: skip
        return about_means(stage, [{"jeffreys": j, "temperature": 1.0} for j in jeffreys])

    # Half of what is left, in logarithms, after two rounds: two more rounds of two would do.
    assert told([16.0, 4.0]).endswith("try budget=6000")
    assert told([16.0, 0.5]) is None  # a stepping stone that is good enough
    assert told([16.0, 4.0], affordable=True) is None  # it had enough, and stopped


def test_rejected_simulations_do_not_count():
    bad = Simulated(np.ones((2, 1)), np.zeros(2), np.array([-np.inf, -1.0]),
                    np.array([[np.nan], [2.0]]))  # fmt: skip
    problem = InverseProblem(PRIOR, lambda x: x[:, :1], [0.0], noise_std=1.0)
    assert seen_from_prior(bad, problem) == {"misfit": 2.0, "nats": 0.0, "deviations": 1.0}
    none = bad._replace(log_likelihood=np.full(2, -np.inf))
    assert set(seen_from_prior(none, problem).values()) == {None}
