"""Pictures of fields on every kind of lattice."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from msign import LaplacePrior
from msign.inference.predictive import Predictive
from msign.report.contents import contents_of
from msign.report.curves import LOWEST
from msign.report.data_fit import predictive_figure, residual_figure, weighted_quantiles
from msign.report.marginals import prior_moments, telling_cells
from msign.report.posterior import all_figures
from msign.report.views import LARGEST_SIDE, estimate_figure, panels, samples_figure, value_scale
from report.untrained import SHAPES, problem_on, untrained


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


def outside(figure):
    """Labels, titles and notes of a figure that do not lie inside it as a whole."""
    FigureCanvasAgg(figure).draw()
    texts = [text for legend in figure.legends for text in legend.get_texts()]
    for axes in figure.axes:
        texts += [axes.xaxis.label, axes.yaxis.label, axes.title, axes._left_title, *axes.texts]
    page = figure.bbox.padded(1.0)
    extents = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    return [t for t, at in extents if not (page.contains(*at.p0) and page.contains(*at.p1))]


@pytest.mark.parametrize("name", SHAPES)
def test_no_text_of_a_figure_is_cut_off(name):
    posterior = untrained(problem_on(SHAPES[name]))
    for row in posterior.records[1:]:
        row["jeffreys"] = LOWEST / 10
    figures = all_figures(contents_of(posterior))
    assert {k: outside(figure) for k, figure in figures.items() if outside(figure)} == {}


def test_cells_are_chosen_by_what_data_say_about_them_not_by_less_spread_alone():
    """Of two modes, whose cell is wider than under the prior, and of a narrow one."""
    rng = np.random.default_rng(4)
    prior = prior_on((8,))
    noise = rng.standard_normal((2, 4000, prior.lattice.dim))
    fields = np.asarray(prior.unwhiten(noise[0]))
    wide = np.asarray(prior.unwhiten(noise[1])).std(0)
    modes = fields.copy()
    modes[:, 5] += 2 * wide[5] * rng.choice([-1, 1], 4000)
    narrow = fields.copy()
    narrow[:, 2] = narrow[:, 2].mean() + 0.2 * (narrow[:, 2] - narrow[:, 2].mean())
    shifted = fields.copy()
    shifted[:, 3] += 2 * wide[3]
    for changed, cell in ((modes, 5), (narrow, 2), (shifted, 3)):
        most, least = telling_cells(prior, changed)
        assert most == cell != least


@pytest.mark.parametrize("figure", [predictive_figure, residual_figure])
def test_predictions_are_seen_where_a_single_sample_has_all_the_weight(figure):
    """Quantiles are all equal then, and a line from one to the other is nothing."""
    predicted = np.array([[0.1, 0.2], [5.0, 6.0]])
    weights = np.array([0.0, -900.0])
    given = Predictive(np.array([1.0, 2.0]), predicted, predicted, predicted, weights)
    marks = [line for line in figure(given).axes[0].lines if len(line.get_xdata()) == 2]
    assert any(
        np.array_equal(line.get_ydata(), predicted[0]) and line.get_marker() != "None"
        for line in marks
    )
