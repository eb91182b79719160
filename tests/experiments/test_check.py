"""A look at a problem before it is run, and a file to start from."""

import itertools
import time

import jax.numpy as jnp
import numpy as np
import pytest

import msign
from helpers import refused
from msign.experiments.check import check_problem, checked_lines, gradient_error, write_template
from msign.experiments.problem_file import load_problem_file

pytestmark = pytest.mark.usefixtures("quick_compilation")
PRIOR = msign.LaplacePrior((8,), alpha=0.2, beta=2.0)
ROWS = np.random.default_rng(0).normal(size=(3, 8))


def numpy_problem(factor: float = 1.0, **options) -> msign.InverseProblem:
    return msign.InverseProblem(
        PRIOR,
        lambda x: np.sin(np.asarray(x) @ ROWS.T),
        [0.1, 0.2, 0.3],
        noise_std=0.5,
        vjp=lambda x, c: factor * (np.cos(x @ ROWS.T) * c) @ ROWS,
        **options,
    )


def test_the_template_is_a_problem_that_agrees_with_its_derivative(tmp_path):
    path = tmp_path / "mine.py"
    write_template(path, overwrite=False)
    assert "msign run mine.py" in path.read_text()
    found = check_problem(load_problem_file(path), n=4)
    assert found.agrees and found.derivative == "JAX" and found.shapes[-1] == (16, 16)
    assert "agrees with" in "\n".join(checked_lines(found))
    with refused("file exists already", "--overwrite"):
        write_template(path, overwrite=False)
    with refused("file must end in .py"):
        write_template(tmp_path / "mine.txt", overwrite=False)


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_wrong_derivative_shows(factor):
    error = gradient_error(msign.Simulator(numpy_problem(factor)), 3, seed=0)
    # Central differences in double precision agree to the square of their step.
    assert error < 1e-6 if factor == 1 else 0.05 < error < 0.15


def test_what_coarse_scales_lose():
    """Observations of single cells are lost on pairs, those of pairs are not."""

    def forward(x):
        return jnp.stack([x[:, 0] - x[:, 1], x[:, 4] + x[:, 5]], 1)

    def problem(**options):
        return msign.InverseProblem(PRIOR, forward, [0.0, 1.0], noise_std=1e-3, **options)

    found = check_problem(problem(), n=8)
    assert [e.scale for e in found.errors] == [1, 2, 3]
    assert found.errors[2].in_noise == 0 < 1 < found.errors[1].in_noise
    text = "scales up to 2 are off by more than the noise"
    assert found.misfit > 1 and f"{text}: a run adds" in "\n".join(checked_lines(found))
    plain = check_problem(problem(inflate=0), n=8)
    assert f"{text}: without inflate=0" in "\n".join(checked_lines(plain))


def test_one_scale_that_is_off_is_one():
    problem = msign.InverseProblem(
        PRIOR, lambda x: x[:, :2].mean(1)[:, None], [0.0], noise_std=1e-3
    )
    assert "\nscale 1 is off by more than the noise: a run adds that to its noise" in "\n".join(
        checked_lines(check_problem(problem, n=8))
    )


def test_without_derivative_without_noise_and_a_log_likelihood():
    plain = msign.InverseProblem(PRIOR, lambda x: np.asarray(x)[:, :2], [1, 0],
                                 likelihood=msign.likelihoods.Poisson())  # fmt: skip
    found = check_problem(plain, n=4)
    assert found.derivative is None and found.gradient_error is None and found.misfit is None
    assert "none" in "\n".join(checked_lines(found))
    own = msign.InverseProblem(PRIOR, log_likelihood=lambda x: -jnp.sum(x**4, 1), scales=2)
    found = check_problem(own, n=4)
    assert found.observations is None and np.isfinite(found.errors[0].in_noise)
    assert "a log-likelihood alone" in "\n".join(checked_lines(found))


def test_time_of_a_fast_simulator_is_not_that_of_a_moment_in_which_the_machine_was_busy():
    calls = itertools.count()

    def forward(x):
        if next(calls) % 10 < 8:
            time.sleep(0.01)
        return np.asarray(x) @ ROWS.T

    problem = msign.InverseProblem(PRIOR, forward, [0.1, 0.2, 0.3], noise_std=0.5, scales=1)
    assert check_problem(problem, n=4).seconds * 64 < 0.01


def test_time_is_that_of_the_simulator():
    import time

    def slow(x):
        time.sleep(0.002 * len(x))
        return np.asarray(x)[:, :1]

    found = check_problem(msign.InverseProblem(PRIOR, slow, [0.0], noise_std=1.0, chunk=8), n=2)
    assert found.seconds >= 0.002
    assert found.budgets()[10_000] == pytest.approx(10_000 * found.seconds)
