"""Pictures of fields on every kind of lattice."""

import numpy as np
import pytest

from msign import LaplacePrior
from msign.report.data_fit import weighted_quantiles
from msign.report.marginals import prior_moments
from msign.report.views import LARGEST_SIDE, estimate_figure, panels, samples_figure, value_scale


def prior_on(shape, channels=None):
    return LaplacePrior(shape, alpha=1.0, beta=2.0, mean=0.5, channels=channels)


@pytest.mark.parametrize(
    ("shape", "channels", "count"),
    [((8,), None, 1), ((8,), 2, 2), ((4, 6), None, 1), ((4, 6), 5, 3), ((2, 4, 6), 2, 6)],
)
def test_every_lattice_has_panels_and_figures(shape, channels, count):
    prior = prior_on(shape, channels)
    fields = np.random.default_rng(0).normal(size=(6, *prior.lattice.field_shape))
    assert len(panels(prior, fields[0])) == count
    scale = value_scale(fields)
    band = np.quantile(fields, [0.05, 0.95], axis=0)
    given = prior, fields.mean(0), fields.std(0), band, fields[0], scale
    assert len(estimate_figure(*given).axes) >= count
    assert samples_figure(prior, fields, scale).axes


def test_colours_are_about_zero_only_for_fields_of_both_signs():
    both, positive = np.linspace(-1, 3, 1000), np.linspace(2, 3, 1000)
    assert value_scale(both).low == -value_scale(both).high
    assert 2 <= value_scale(positive).low < value_scale(positive).high <= 3
    assert value_scale(np.ones(9)).low < value_scale(np.ones(9)).high


def test_large_fields_are_thinned():
    prior = prior_on((600, 20))
    assert panels(prior, np.zeros((600, 20)))[0].values.shape[0] <= LARGEST_SIDE


def test_moments_of_a_weighted_sum_under_the_prior_are_exact():
    prior = prior_on((4, 4))
    weights = np.random.default_rng(1).normal(size=(4, 4))
    columns = np.asarray(prior.unwhiten(np.eye(16))) - np.asarray(prior.unwhiten(np.zeros((1, 16))))
    covariance = np.einsum("kij,kab->ijab", columns, columns)
    mean, std = prior_moments(prior, weights)
    assert mean == pytest.approx(0.5 * weights.sum())
    assert std**2 == pytest.approx(np.einsum("ij,ijab,ab", weights, covariance, weights))


def test_weighted_quantiles_are_those_of_repeated_values():
    values = np.random.default_rng(2).normal(size=(50, 3))
    counts = np.random.default_rng(3).integers(1, 9, size=50)
    repeated = np.repeat(values, counts, axis=0)
    found = weighted_quantiles(values, counts / counts.sum())
    expected = np.quantile(repeated, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0, method="inverted_cdf")
    np.testing.assert_allclose(found, expected)
