"""Errors against a reference, by direct computation."""

import numpy as np
import pytest

from msign.diagnostics.reference import jeffreys_against, moment_errors

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
    p, q = RNG.normal(size=n), RNG.normal(size=n) + m
    log_ratio = lambda x: 0.5 * ((x - m) ** 2 - x**2)  # noqa: E731, log p/q
    found = jeffreys_against(log_ratio(p), -log_ratio(q))
    assert abs(found["jeffreys"] - m**2) < 4 * found["jeffreys_stderr"]
    assert found["reverse_kl"] == pytest.approx(m**2 / 2, abs=0.01)


def test_correlation_error_of_a_million_pairs_and_more():
    n, d = 4, 70_000  # d^2 does not fit into 32 bits
    u = RNG.normal(size=(n, d)).astype(np.float32)
    found = moment_errors(u, np.ones(d), np.zeros(d), np.ones(d))["correlation"]
    z = (u - u.mean(0)) / u.std(0, ddof=1)
    total = ((z @ z.T / n) ** 2).sum() - ((z**2).mean(0) ** 2).sum()
    assert found == pytest.approx(np.sqrt(total / (d * (d - 1.0))), rel=1e-3)
