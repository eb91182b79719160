"""What a report shows of a posterior: samples and their statistics, drawn once for all figures."""

from typing import Any, NamedTuple

import numpy as np
from scipy.spatial import cKDTree

from msign.diagnostics.modes import find_model_modes
from msign.inference import Posterior
from msign.report.marginals import Exact, Functional, functionals
from msign.report.views import Scale, value_scale

DRAWS, FEWEST, VALUES = 4000, 200, 2**24  # fields; the least; and as many numbers as fit in memory
SAMPLES = 6  # fields that are shown one by one
NEIGHBOURS = 2000  # fields of the certificate that say to which mode another field belongs
BAND = (0.05, 0.95)
SEED = 0


class Contents(NamedTuple):
    """What there is to show.

    Attributes:
        posterior: Of which.
        summary: Its numbers.
        fields: Samples `(n, *field_shape)`.
        mean, std: Of them.
        band: Ends of their middle 90 percent, cell by cell `(2, *field_shape)`.
        refined: The same few samples at every scale, coarse to fine.
        values: Colours of fields.
        mode_means: Mean field of each mode.
        functionals: Whose marginals are worth looking at.
        exact: The exact density of the first of these, where it is known.
        truth: The field behind the data, where it is known.
    """

    posterior: Posterior
    summary: dict[str, Any]
    fields: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    band: np.ndarray
    refined: dict[int, np.ndarray]
    values: Scale
    mode_means: list[np.ndarray]
    functionals: list[Functional]
    exact: Exact | None
    truth: np.ndarray | None


def contents_of(posterior: Posterior) -> Contents:
    """Draw from a posterior what a report shows of it."""
    n = int(min(DRAWS, max(FEWEST, VALUES // posterior.prior.lattice.dim)))
    fields = np.asarray(posterior.sample(n, SEED), np.float64)
    scales = range(1, posterior.scale + 1)
    refined = {l: np.asarray(posterior.sample(SAMPLES, SEED, scale=l)) for l in scales}
    means = _mode_means(posterior, fields)
    known = posterior.known
    return Contents(
        posterior,
        posterior.summary(),
        fields,
        fields.mean(0),
        fields.std(0),
        np.quantile(fields, BAND, axis=0),
        refined,
        value_scale(refined[posterior.scale]),
        means,
        functionals(posterior, fields, means),
        Exact(known.values, known.density) if known.weights.size else None,
        known.truth if known.truth.size else None,
    )


def _mode_means(posterior: Posterior, fields: np.ndarray) -> list[np.ndarray]:
    """Means of the samples of each mode that the certificate's fields have.

    A sample belongs to the mode of the nearest of these, in the variables that are kept of them.
    """
    kept = posterior.certificates[posterior.scale].coordinates
    modes = find_model_modes(posterior.variables, kept)
    count = len(modes.fractions)
    if count == 1:
        return [fields.mean(0)]
    u, _ = posterior.whitened_samples(len(fields), SEED)
    basis = posterior.basis
    s = (u if basis is None else u @ basis)[:, : kept.shape[1]]
    nearest = cKDTree(kept[:NEIGHBOURS]).query(s)[1]
    labels = modes.labels[nearest]
    return [
        fields[labels == k].mean(0) if (labels == k).any() else np.full(fields.shape[1:], np.nan)
        for k in range(count)
    ]
