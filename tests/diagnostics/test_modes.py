"""Modes found in samples whose modes are known."""

import numpy as np
import pytest

from helpers import refused, seeded
from msign.diagnostics.modes import find_modes


def mixture(seed, centres, shares, n, m, spread=1.0):
    """Gaussians at centres along the first axes; points and the mode of each."""
    rng = np.random.default_rng(seeded(seed))
    centres = np.atleast_2d(np.asarray(centres, float))
    label = rng.choice(len(shares), n, p=shares)
    points = rng.normal(size=(n, m))
    points[:, : centres.shape[1]] *= spread
    points[:, : centres.shape[1]] += centres[label]
    return points, label


def curved(rng, n, m):
    """Two equal modes on a curved ridge that is narrower in the valley, turned at random.

    The density of the first coordinate, before the turn, is 0.35 of its peaks in the valley.
    """
    x = rng.normal(size=(n, m))
    x[:, 0] += 1.87 * rng.choice([-1, 1], n)
    x[:, 1] *= 0.9 + 0.1 * np.minimum(np.abs(x[:, 0]) / 1.87, 1)
    x[:, 1] += 0.3 * x[:, 0] ** 2
    return x @ np.linalg.qr(rng.normal(size=(m, m)))[0]


def circle(k, radius):
    angle = 2 * np.pi * np.arange(k) / k
    return radius * np.stack([np.cos(angle), np.sin(angle)], 1)


def one_mode(kind, rng, n, m):
    """Samples of densities of one peak, or of one ridge."""
    x = rng.normal(size=(n, m))
    if kind == "box":
        return rng.uniform(size=(n, m))
    if kind == "long":
        return x * np.geomspace(1, 0.02, m)
    if kind == "heavy":
        return x / np.sqrt(rng.chisquare(3, size=(n, 1)) / 3)
    if kind == "skew":
        return rng.exponential(size=(n, m))
    if kind == "banana":
        x[:, 1] = 0.2 * x[:, 1] + x[:, 0] ** 2
    if kind == "ring":
        angle, radius = rng.uniform(0, 2 * np.pi, n), 3 + 0.2 * rng.normal(size=n)
        x[:, 0], x[:, 1] = radius * np.cos(angle), radius * np.sin(angle)
    return x


KINDS = ("gaussian", "box", "long", "heavy", "skew", "banana", "ring")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "m"), [(200, 2), (1000, 6), (4000, 2), (4000, 20)])
def test_one_peak_or_ridge_is_one_mode(kind, n, m):
    """A cut has a false-positive level of a thousandth: none in three samples."""
    found = [
        len(find_modes(one_mode(kind, np.random.default_rng(seeded(s)), n, m)).fractions)
        for s in range(3)
    ]
    assert found == [1, 1, 1]


@pytest.mark.parametrize("m", [1, 2, 6, 32])
@pytest.mark.parametrize("n", [1000, 4000])
def test_two_uneven_modes(n, m):
    points, label = mixture(0, [[-4.0], [4.0]], [0.2, 0.8], n, m)
    modes = find_modes(points)
    share = np.mean(label == 0)
    assert len(modes.fractions) == 2
    np.testing.assert_allclose(modes.fractions, [share, 1 - share], atol=3 / n)
    np.testing.assert_allclose(modes.stderr, np.sqrt(share * (1 - share) / n), rtol=0.01)
    assert modes.centres[0, 0] < 0 < modes.centres[1, 0]


@pytest.mark.parametrize("m", [32, 64])
def test_two_modes_on_a_curved_ridge(m):
    for s in range(4):
        modes = find_modes(curved(np.random.default_rng(seeded(s)), 4000, m))
        assert len(modes.fractions) == 2
        np.testing.assert_allclose(modes.fractions, 0.5, atol=0.03 + 3 * modes.stderr[0])


@pytest.mark.parametrize("k", [3, 4, 5])
def test_modes_on_a_circle(k):
    points, label = mixture(k, circle(k, 8.0), np.full(k, 1 / k), 4000, 3)
    modes = find_modes(points)
    assert len(modes.fractions) == k
    np.testing.assert_allclose(
        np.sort(modes.fractions), np.sort(np.bincount(label) / 4000), atol=0.01
    )


def test_a_thin_mode_far_away():
    points, label = mixture(1, [[0.0], [50.0]], [0.97, 0.03], 4000, 8, spread=0.1)
    np.testing.assert_allclose(find_modes(points).fractions[1], np.mean(label == 1), atol=1e-3)


def test_shallow_valleys_are_no_modes():
    """Gaussians two and a half standard deviations apart have a density of 0.91 between them."""
    points, _ = mixture(2, [[-1.25], [1.25]], [0.5, 0.5], 20_000, 2)
    assert len(find_modes(points).fractions) == 1


def test_weights_move_mass_and_do_not_define_modes():
    points, label = mixture(3, [[-4.0], [4.0]], [0.5, 0.5], 4000, 3)
    modes = find_modes(points, np.where(label == 1, np.log(3.0), 0.0))
    heavy = 3 * np.mean(label == 1)
    np.testing.assert_allclose(modes.fractions[1], heavy / (heavy + np.mean(label == 0)), atol=1e-3)
    np.testing.assert_array_equal(modes.labels, find_modes(points).labels)


def test_standard_errors_are_those_of_repeated_samples():
    found = [
        find_modes(mixture(s, [[-5.0], [5.0]], [0.3, 0.7], 500, 2)[0]) for s in range(100, 160)
    ]
    scores = np.array([(m.fractions[0] - 0.3) / m.stderr[0] for m in found])
    assert abs(scores.mean()) < 5 / np.sqrt(60)
    assert abs(scores.var() - 1) < 5 * np.sqrt(2 / 59)


def test_the_order_of_points_does_not_matter():
    points, _ = mixture(4, circle(3, 8.0), [0.2, 0.3, 0.5], 2000, 4)
    order = np.random.default_rng(seeded(5)).permutation(2000)
    one, other = find_modes(points), find_modes(points[order])
    np.testing.assert_array_equal(one.labels[order], other.labels)


def ring_density(x):
    radius = np.linalg.norm(x[:, :2], axis=1)
    return -0.5 * ((radius - 3) / 0.2) ** 2 - np.log(radius)


def two_density(x):
    log = [np.log(p) - 0.5 * (x[:, 0] - c) ** 2 for p, c in ((0.4, -2), (0.6, 2))]
    return np.logaddexp(*log) - 0.5 * np.sum(x[:, 1:] ** 2, axis=1)


def test_a_density_shows_that_a_ring_is_one_mode():
    points = one_mode("ring", np.random.default_rng(seeded(7)), 1000, 2)
    assert len(find_modes(points, log_density=ring_density).fractions) == 1


def test_a_density_of_two_modes():
    for s, (n, m) in enumerate([(1000, 2), (1000, 6), (1000, 16)]):
        points, _ = mixture(60 + s, [[-2.0], [2.0]], [0.4, 0.6], n, m)
        modes = find_modes(points, log_density=two_density)
        assert len(modes.fractions) == 2
        np.testing.assert_allclose(modes.fractions[0], 0.4, atol=0.03 + 3 * modes.stderr[0])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("far", [12.0, 20.0])
def test_a_far_group_of_fewer_points_than_a_peak_needs_is_no_mode(far):
    for s in range(10):
        rng = np.random.default_rng(seeded(70 + s))
        points = np.concatenate([rng.normal(size=180), far + rng.normal(size=20)])[:, None]

        def density(x):
            return np.logaddexp(np.log(9) - 0.5 * x[:, 0] ** 2, -0.5 * (x[:, 0] - far) ** 2)

        assert len(find_modes(points, log_density=density).fractions) == 1


def test_bad_points_are_refused():
    with refused("points", "(n, m)"):
        find_modes(np.zeros(5))
