"""Errors against a reference, by direct computation."""

from dataclasses import dataclass

import numpy as np
import pytest

from helpers import seeded
from msign import InverseProblem
from msign.diagnostics.reference import (
    evaluate_against_reference,
    jeffreys_against,
    moment_errors,
)
from msign.problems import synthetic

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("shape", [(50, 8), (8, 50)])  # more samples than coordinates, and fewer
def test_moment_errors(shape):
    n, d = shape
    u = RNG.normal(size=shape) * 2 + 1
    std, mean, spread = RNG.uniform(1, 2, d), np.full(d, 0.5), np.full(d, 1.5)
    found = moment_errors(u, std, mean, spread)
    rms = lambda a: np.sqrt(np.mean(np.asarray(a) ** 2))  # noqa: E731
    assert found["mean"] == pytest.approx(rms((u.mean(0) - mean) * std))
    assert found["std"] == pytest.approx(rms((u.std(0, ddof=1) - spread) * std))
    z = (u - u.mean(0)) / u.std(0, ddof=1)
    off = (z.T @ z / n)[~np.eye(d, dtype=bool)]
    assert found["correlation"] == pytest.approx(rms(off), rel=1e-6)


def test_jeffreys_of_two_normals():
    # p = N(0, 1), q = N(m, 1): both divergences are m^2 / 2.
    m, n = 0.7, 200_000
    rng = np.random.default_rng(seeded(1))
    p, q = rng.normal(size=n), rng.normal(size=n) + m
    log_ratio = lambda x: 0.5 * ((x - m) ** 2 - x**2)  # noqa: E731, log p/q
    found = jeffreys_against(log_ratio(p), -log_ratio(q))
    assert abs(found["jeffreys"] - m**2) < 5 * found["jeffreys_stderr"]
    error = m / np.sqrt(n)  # each log-ratio is normal with standard deviation m
    assert abs(found["reverse_kl"] - m**2 / 2) < 5 * error
    assert abs(found["forward_kl"] - m**2 / 2) < 5 * error


def test_correlation_error_of_a_million_pairs_and_more():
    n, d = 4, 70_000  # d^2 does not fit into 32 bits
    u = RNG.normal(size=(n, d)).astype(np.float32)
    found = moment_errors(u, np.ones(d), np.zeros(d), np.ones(d))["correlation"]
    z = (u - u.mean(0)) / u.std(0, ddof=1)
    total = ((z @ z.T / n) ** 2).sum() - ((z**2).mean(0) ** 2).sum()
    assert found == pytest.approx(np.sqrt(total / (d * (d - 1.0))), rel=1e-3)


@dataclass
class PriorAsPosterior:
    """A posterior that has learned nothing."""

    problem: InverseProblem
    scale: int

    @property
    def scales(self):
        return list(range(1, self.scale + 1))

    def stage(self, scale):
        return PriorAsPosterior(self.problem, scale)

    def whitened_samples(self, n, seed):
        d = self.problem.priors[self.scale - 1].lattice.dim
        return np.random.default_rng(seed).normal(size=(n, d)), np.zeros(n)

    def log_ratio(self, u):
        return np.zeros(len(u))


def test_the_prior_is_as_far_from_the_synthetic_posterior_as_quadrature_says(monkeypatch):
    problem, n, d = synthetic(8, gamma=0.5, tilt=0.2, inflate=0), 20_000, 64
    monkeypatch.setattr("msign.diagnostics.reference.VALUES_AT_ONCE", 7000 * d)  # in three parts
    posterior, seed = PriorAsPosterior(problem, 3), seeded(1)
    found = evaluate_against_reference(posterior, n, moment_samples=2000, seed=seed)
    assert abs(found["jeffreys"] - found["jeffreys_prior"]) < 5 * found["jeffreys_stderr"]
    assert found["samples_each_way"] == n and list(found["rmse"]) == ["1", "2", "3"]
    for errors in found["rmse"].values():
        assert errors["msign"]["std"] > 2 * errors["exact samples"]["std"]
