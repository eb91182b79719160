"""Counting modes in samples whose modes are known."""

import numpy as np
import pytest

from msign.diagnostics.modes import mode_fractions, mode_labels

RNG = np.random.default_rng(0)


def mixture(shares, centres, n=4000, m=3):
    label = RNG.choice(len(shares), n, p=shares)
    points = RNG.normal(size=(n, m))
    points[:, 0] += np.asarray(centres, float)[label]
    return points, label


def test_one_mode():
    assert mode_fractions(RNG.normal(size=(3000, 5))) == [1.0]
    assert mode_fractions(RNG.uniform(size=(3000, 1))) == [1.0]


@pytest.mark.parametrize("m", [1, 2, 6])
def test_two_unequal_modes(m):
    points, label = mixture([0.3, 0.7], [-4, 4], m=m)
    fractions = sorted(mode_fractions(points))
    np.testing.assert_allclose(
        fractions, sorted([np.mean(label == 0), np.mean(label == 1)]), atol=0.01
    )
    assert len(set(mode_labels(points))) == 2


def test_weights_move_mass_between_modes():
    points, label = mixture([0.5, 0.5], [-4, 4])
    weighted = mode_fractions(points, np.where(label == 1, np.log(3.0), 0.0))
    np.testing.assert_allclose(sorted(weighted), [0.25, 0.75], atol=0.03)


def test_three_modes():
    points, _ = mixture([0.3, 0.3, 0.4], [-8, 0, 8])
    assert len(mode_fractions(points)) == 3
