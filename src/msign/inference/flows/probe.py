"""What the start of a stage knows of the likelihood: gradients at fields of the model so far.

With a derivative these are simulated. Without one they come from a regression of what the
simulations predict: they then lie in the span of few directions, and neither they nor the fields,
which can be many, are ever held as arrays of all fields and all cells.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax.random as jr
import numpy as np
import paramax
from jaxtyping import PRNGKeyArray

from msign.inference.simulate import drawn_parts, part_size
from msign.noise import generator, normal
from msign.problems.simulator import Simulator
from msign.variables import Variables, draw

LINEAR = 1e-4  # relative second difference below which a function of fields is linear
LINES = 4  # random lines along which second differences are taken


class Fields(NamedTuple):
    """Fields of a model, drawn anew, the same each time, whenever they are looked at.

    Attributes:
        model: That draws them.
        key: Random key.
        n: How many.
    """

    model: Variables
    key: PRNGKeyArray
    n: int

    def pieces(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Rows and whitened coordinates `(rows, d)`, a part at a time."""
        dim, start = self.model.dim, 0
        for u, _, _ in drawn_parts(self.model, self.key, self.n, part_size(dim)):
            yield slice(start, start + len(u)), u.astype(np.float64)
            start += len(u)

    def along(self, basis: np.ndarray) -> np.ndarray:
        """Coordinates `(n, r)` along directions `(d, r)`."""
        return np.concatenate([u @ basis for _, u in self.pieces()])


class Given(NamedTuple):
    """Fields that are kept as they are, in parts of `(n, d)` whitened coordinates."""

    u: tuple[np.ndarray, ...]

    def along(self, basis: np.ndarray) -> np.ndarray:
        """Coordinates `(n, r)` along directions `(d, r)`."""
        return np.concatenate([u @ basis for u in self.u])


class Probe(NamedTuple):
    """Fields simulated at the start of a stage.

    Attributes:
        fields: All n of them.
        kept: Which of the n simulations succeeded; all that follows is of these.
        gradients: Of the log-likelihood, as coefficients `(kept, k)` of the span.
        span: Orthonormal directions `(d, k)`; None: gradients are those of all d coordinates.
        log_likelihood: `(kept,)`.
    """

    fields: Fields | Given
    kept: np.ndarray
    gradients: np.ndarray
    span: np.ndarray | None
    log_likelihood: np.ndarray

    def along(self, basis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates and gradients `(kept, r)` along directions `(d, r)`."""
        within = basis if self.span is None else self.span.T @ basis
        return self.fields.along(basis)[self.kept], self.gradients @ within

    def joined(self, other: "Probe") -> "Probe":
        """Both, of gradients in all coordinates, as one."""
        assert isinstance(self.fields, Given) and isinstance(other.fields, Given)
        pairs = zip(self._arrays, other._arrays, strict=True)
        kept, gradients, values = (np.concatenate(pair) for pair in pairs)
        return Probe(Given(self.fields.u + other.fields.u), kept, gradients, None, values)

    @property
    def _arrays(self) -> tuple[np.ndarray, ...]:
        return self.kept, self.gradients, self.log_likelihood


def probe_with_gradients(
    simulator: Simulator, scale: int, model: Variables, key: PRNGKeyArray, n: int
) -> Probe:
    """N fields of a model with the gradients of their log-likelihoods."""
    u = draw(model, normal(key, (n, model.dim)))[0].astype(np.float64)
    found = simulator.evaluate(u, scale, gradient=True)
    assert found.gradient is not None
    gradients = np.asarray(found.gradient, np.float64)
    kept = np.all(np.isfinite(gradients), axis=1)
    return Probe(Given((u,)), kept, gradients[kept], None, found.log_likelihood[kept])


def probe_without_gradients(
    simulator: Simulator,
    scale: int,
    model: Variables,
    most: int,
    per_direction: int,
    per_cell: int,
    allowance: int,
    key: PRNGKeyArray,
) -> Probe:
    """Gradients from features alone: exact where these are linear in the field, else regressed.

    Args:
        simulator: That evaluates fields.
        scale: Of the stage.
        model: That draws the fields.
        most: Directions of which all second-order terms may be fitted, where none is known yet.
        per_direction: Fields for each direction that data may inform, where slopes are exact.
        per_cell: Fields for each cell, where they are regressed.
        allowance: Simulations that may be spent.
        key: Random key.
    """
    d, slopes = model.dim, None
    enough = per_direction * min(d, simulator.problem.layout.m)
    if allowance >= 3 * LINES + d + 1 + enough:
        slopes = _slopes_of_linear_features(simulator, scale, d, jr.fold_in(key, 1))
        allowance -= 3 * LINES + (0 if slopes is None else d + 1)
    wanted = per_cell * d if slopes is None else enough
    fields = Fields(model, jr.fold_in(key, 0), max(2, min(wanted, allowance)))
    known = _known_directions(model, most)
    found = []
    for _, u in fields.pieces():
        seen = simulator.evaluate(u, scale)
        found.append((u @ known, seen.features, seen.log_likelihood))
    s, features, log_likelihood = map(np.concatenate, zip(*found, strict=True))
    kept = np.all(np.isfinite(features), axis=1)
    score = np.asarray(simulator.likelihood(scale).score(features[kept]), np.float64)
    if slopes is None:
        gradients, span = _regressed(fields, known, s, features, score, kept)
    else:
        span, triangle = np.linalg.qr(slopes)
        gradients = score @ triangle.T
    return Probe(fields, kept, gradients, span, log_likelihood[kept])


def _known_directions(model: Variables, most: int) -> np.ndarray:
    """Directions `(d, r)` that the model moves; before there are any, all of a small lattice."""
    if model.basis is not None:
        return np.asarray(paramax.unwrap(model.basis), np.float64)
    return np.eye(model.dim, model.dim if model.dim <= most else 0)


def _slopes_of_linear_features(
    simulator: Simulator, scale: int, d: int, key: PRNGKeyArray
) -> np.ndarray | None:
    """The derivative `(d, m)` of features that are linear in the field; None where they are not.

    Second differences along random lines tell. Of a linear function differences of any size are
    exact: one field for each coordinate.
    """
    a, b = generator(key).normal(size=(2, LINES, d))
    lines = simulator.evaluate(np.concatenate([a - b, a, a + b]), scale).features
    if not is_linear(np.asarray(lines, np.float64)):
        return None
    origin = simulator.evaluate(np.zeros((1, d)), scale).features
    size, slopes = part_size(d), []
    for start in range(0, d, size):
        rows = min(size, d - start)
        slopes.append(simulator.evaluate(np.eye(rows, d, start), scale).features - origin)
    found = np.concatenate(slopes).astype(np.float64)
    return found if np.all(np.isfinite(found)) else None


def is_linear(values: np.ndarray) -> bool:
    """Whether second differences vanish, of values `(3 lines, ...)` at a - b, a and a + b."""
    before, here, after = np.split(values, 3)
    return bool(np.abs(before - 2 * here + after).max() < LINEAR * np.abs(after - before).max())


def _regressed(
    fields: Fields,
    known: np.ndarray,
    s: np.ndarray,
    features: np.ndarray,
    score: np.ndarray,
    kept: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of the log-likelihood by regression: coefficients `(kept, k)` and span `(d, k)`.

    Features are fitted by a quadratic in the known variables s plus terms linear in the rest of the
    field, whose slopes may vary linearly with s; the gradient is the score times the derivative
    of the fit. Slopes that do not stand out of the sampling noise are zero.
    """
    s, features = s[kept], np.asarray(features[kept], np.float64)
    along_known, left, weights = _quadratic(s, features, score)
    n, m, d = *features.shape, known.shape[0]
    sums = np.zeros((m * weights.shape[1], d))
    rows, done = np.flatnonzero(kept), 0
    for piece, u in fields.pieces():
        inside = u[rows[(rows >= piece.start) & (rows < piece.stop)] - piece.start]
        now = slice(done, done + len(inside))
        rest = inside - (inside @ known) @ known.T
        sums += _products(left[now], weights[now]).T @ rest
        done = now.stop
    slopes = sums / n
    noise = np.einsum("nm,nq->mq", left**2, weights**2).reshape(-1) / n * d / n
    slopes[(slopes**2).sum(1) < 2 * noise] = 0.0
    slopes -= (slopes @ known) @ known.T
    span, triangle = np.linalg.qr(slopes.T)
    along_rest = np.concatenate(
        [
            _products(score[a : a + part_size(d)], weights[a : a + part_size(d)]) @ triangle.T
            for a in range(0, n, part_size(d))
        ]
    )
    return np.concatenate([along_known, along_rest], 1), np.concatenate([known, span], 1)


def _quadratic(
    s: np.ndarray, features: np.ndarray, score: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A quadratic fit of features `(n, m)` in variables `(n, r)`.

    Returns gradients of the log-likelihood along the variables `(n, r)`, what the fit leaves
    `(n, m)`, and orthogonal weights 1, s_1, ..., s_r `(n, 1 + r)` of unit mean square.
    """
    n, r = s.shape
    upper = np.triu_indices(r)
    centre, spread = s.mean(0), s.std(0) + 1e-12
    t = (s - centre) / spread
    design = np.concatenate([np.ones((n, 1)), t, t[:, upper[0]] * t[:, upper[1]]], 1)
    fit, *_ = np.linalg.lstsq(design, features, rcond=1e-8)
    linear, second = fit[1 : r + 1], np.zeros((r, r, features.shape[1]))
    second[upper] = fit[r + 1 :]
    second = second + second.transpose(1, 0, 2)
    # The derivative along s is linear in t: score times (linear + t second), summed over features.
    gradients = (
        score @ linear.T + np.einsum("nm,nk,kjm->nj", score, t, second, optimize=True)
    ) / spread
    weights = np.linalg.qr(np.concatenate([np.ones((n, 1)), t], 1))[0] * np.sqrt(n)
    return gradients, features - design @ fit, weights


def _products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """All products of columns of `(n, m)` and `(n, q)`, as `(n, m q)`."""
    return (a[:, :, None] * b[:, None, :]).reshape(len(a), -1)
