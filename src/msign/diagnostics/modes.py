"""Counting modes: clusters that a valley separates, and their masses."""

import numpy as np
from jaxtyping import ArrayLike
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA


def mode_labels(points: ArrayLike, max_modes: int = 4, depth: float = 0.5) -> np.ndarray:
    """Which mode each of `(n, m)` points belongs to.

    Points are projected on their two leading principal components and clustered by K-means. The
    largest number of clusters counts of which each two are separated by a valley: half-way
    between their centres, along the line through them, the density of their points falls below
    `depth` times its lower peak. One mode if there are none.
    """
    x = np.asarray(points, np.float64)
    if x.shape[1] > 2:
        x = PCA(2, random_state=0).fit_transform(x)
    for k in range(max_modes, 1, -1):
        if len(x) < 20 * k:
            continue
        labels = KMeans(k, n_init=4, random_state=0).fit_predict(x)
        pairs = [(i, j) for i in range(k) for j in range(i)]
        if all(valley_depth(x, labels, i, j) < depth for i, j in pairs):
            return labels
    return np.zeros(len(x), int)


def mode_fractions(
    points: ArrayLike, log_weights: ArrayLike | None = None, max_modes: int = 4
) -> list[float]:
    """Masses of the modes, from the lowest to the highest centre on the leading axis."""
    x = np.asarray(points, np.float64)
    labels = mode_labels(x, max_modes)
    a = np.zeros(len(x)) if log_weights is None else np.asarray(log_weights, np.float64)
    w = np.exp(a - a.max())
    axis = x[:, 0] if x.shape[1] <= 2 else PCA(1, random_state=0).fit_transform(x)[:, 0]
    names = sorted(set(labels), key=lambda k: axis[labels == k].mean())
    return [float(w[labels == k].sum() / w.sum()) for k in names]


def valley_depth(x: np.ndarray, labels: np.ndarray, i: int, j: int) -> float:
    """Density between two clusters over its lower peak, on the line through their centres."""
    a, b = x[labels == i].mean(0), x[labels == j].mean(0)
    both = x[(labels == i) | (labels == j)]
    direction = (b - a) / max(np.linalg.norm(b - a), 1e-300)
    t = (both - a) @ direction / max(np.linalg.norm(b - a), 1e-300)
    density, edges = np.histogram(t, bins=np.linspace(-0.5, 1.5, 33))
    smooth = np.convolve(density, np.ones(3) / 3, "same")
    centres = 0.5 * (edges[1:] + edges[:-1])
    left, right = smooth[centres < 0.5].max(), smooth[centres >= 0.5].max()
    valley = smooth[(centres > 0.2) & (centres < 0.8)].min()
    return float(valley / max(min(left, right), 1e-300))


def find_modes(points, log_weights=None, log_density=None):  # temporary, by the main developer
    import collections

    f = np.asarray(mode_fractions(points, log_weights))
    return collections.namedtuple("Modes", "fractions stderr")(f, 0 * f)
