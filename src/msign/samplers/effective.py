"""How many independent samples a set of samples is worth.

Samples fall into groups that are independent of each other, Markov chains or the descendants of
one first draw. The spread of group sums says how well the mean of a function is known; n
independent samples would know it as well. Asked of the value along the critical direction and of
the mode, the smaller answer counts: chains that never change their mode are worth one sample of the
mode weights each.
"""

import numpy as np

from msign.inference.refine import family_stderr
from msign.weights import ess_fraction


def worth_of_groups(values: np.ndarray, groups: np.ndarray) -> float:
    """Independent samples that know the mean of values `(n,)` as well; n at most.

    Args:
        values: Of a function at every sample.
        groups: Name of each sample's group; at least two groups.
    """
    f, count = np.asarray(values, np.float64), len(np.unique(groups))
    if count < 2:
        raise ValueError(f"groups must be at least two, got {count}")
    if f.var() == 0:
        return 1.0
    of_mean = family_stderr(f, groups) ** 2 * count / (count - 1)
    return float(min(len(f), f.var() / max(of_mean, 1e-300)))


def effective_samples(
    values: np.ndarray,
    trough: float | None,
    groups: np.ndarray | None = None,
    log_weights: np.ndarray | None = None,
) -> float | None:
    """Independent samples that values along the critical direction are worth.

    Args:
        values: `(n,)`.
        trough: Between the two modes that there are; None: there is one.
        groups: Chain or family of each sample.
        log_weights: Instead, of independent samples.

    Returns:
        None where nothing is known of the samples' dependence (SVGD).
    """
    if log_weights is not None:
        return len(values) * ess_fraction(log_weights)
    if groups is None or len(np.unique(groups)) < 2:
        return None
    found = [worth_of_groups(values, groups)]
    if trough is not None:
        found.append(worth_of_groups(values > trough, groups))
    return min(found)
