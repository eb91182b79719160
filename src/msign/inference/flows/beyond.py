"""What a trained flow leaves out: a Gaussian of further directions, given those that it moves.

Beyond the directions that an informed flow moves there are others of which data say a little each,
and together half a nat. Given the variables s of the flow, the log-likelihood is nearly quadratic
in the coordinates t along them, and its gradient

    g(s, t) = b(s) + E(s) t

nearly linear, with coefficients that follow what data pull at: of residuals r(s), J(s) their
slopes and H their curvatures, g = -J^T r and E = -J^T J - r H. So b and E are regressed on the
scores of the observations, as polynomials of s predict these: of each simulation the gradient says
one number for every direction, where its log-likelihood says one. What is the same for all s is
taken off first, by coordinates in which the mean precision of t is one, so that what is left of E
is small.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from msign.bijections.conditional import ConditionalGaussian, Range
from msign.bijections.polynomials import RIDGE, Polynomials, Terms, solve_normal
from msign.devices import fields_at_once
from msign.inference.flows.directions import ROWS_PER_DIRECTION, subspace_from_gradients
from msign.inference.simulate import drawn_parts
from msign.problems.simulator import Simulator
from msign.variables import VALUES_AT_ONCE, Variables, in_pieces

TESTED = 5  # one in so many fields says what a fit is worth, and is not fitted
SHRUNK = 1e-2  # ridge of the regression, relative to the mean square of a regressor
KEPT = 8 * VALUES_AT_ONCE  # numbers of whole gradients, by which directions are found
PART = 2048  # rows of regressors at a time


class Beyond(NamedTuple):
    """A Gaussian of further directions.

    Attributes:
        basis: Orthonormal directions `(d, k)`, orthogonal to those of the flow.
        layer: Of the flow's variables and of the coordinates along these.
        before: Nats lost by leaving the directions out, by fields that were not fitted.
        after: What is still lost along them.
    """

    basis: np.ndarray
    layer: ConditionalGaussian
    before: float
    after: float


class Seen(NamedTuple):
    """Fields of a model with their gradients outside of its directions.

    Attributes:
        s: Variables `(n, r)`.
        score: Derivatives of the log-likelihood with respect to features `(n, m)`.
        t: Coordinates along further directions `(n, k)`.
        g: Gradients along these `(n, k)`.
    """

    s: np.ndarray
    score: np.ndarray
    t: np.ndarray
    g: np.ndarray

    def rows(self, which: slice) -> "Seen":
        """Some of the fields."""
        return Seen(*(a[which] for a in self))

    def in_coordinates(self, turn: np.ndarray, scales: np.ndarray) -> "Seen":
        """With coordinates t' of t = turn c t', and the gradients of all but -|t'|^2 / 2."""
        t, g = (self.t @ turn) / scales, (self.g - self.t) @ turn * scales
        return self._replace(t=t.astype(np.float32), g=(g + t).astype(np.float32))


def fields_wanted(variables: int, most: int, observations: int) -> int:
    """Fields by which all coefficients can be told."""
    fitted = ROWS_PER_DIRECTION * (observations + 1) * (1 + variables + most)
    return -(-fitted * TESTED // (TESTED - 1))


def gaussian_beyond(
    simulator: Simulator,
    scale: int,
    model: Variables,
    most: int,
    per_direction: int,
    tolerance: float,
    cubic: int,
    allowance: int,
    key: PRNGKeyArray,
) -> Beyond | None:
    """The Gaussian of what a trained model leaves out; None where it would bring nothing.

    Args:
        simulator: That evaluates fields.
        scale: Of the model.
        model: Trained, with directions of its own.
        most: Further directions at the most.
        per_direction: Gradients by which each of them is found.
        tolerance: Nats that may be lost by leaving directions out.
        cubic: Leading variables of which the predicted scores have cubic terms.
        allowance: Simulations that may be spent.
        key: Random key.
    """
    r, m = model.size, simulator.problem.layout.m
    n = min(allowance // 2, fields_wanted(r, most, m))
    first = min(n, per_direction * most, KEPT // model.dim)
    most = min(most, first // per_direction, model.dim - r)
    if most < 1:
        return None
    basis, seen = _simulated(simulator, scale, model, key, n, first, most, tolerance)
    if basis is None or len(seen.s) < TESTED:
        return None
    cut = len(seen.s) - len(seen.s) // TESTED
    functions = _scores(
        seen.rows(slice(cut)), cubic, cut // (ROWS_PER_DIRECTION * (1 + r + basis.shape[1])) - 1
    )
    if functions is None:
        return None
    turn, scales = _mean_precision(seen.rows(slice(cut)))
    turned = seen.in_coordinates(turn, scales)
    layer, after = _fitted(
        functions, scales, turned.rows(slice(cut)), turned.rows(slice(cut, None))
    )
    before = _nats(seen.g[cut:])
    return Beyond(basis @ turn, layer, before, after) if after < before else None


def _simulated(
    simulator: Simulator,
    scale: int,
    model: Variables,
    key: PRNGKeyArray,
    n: int,
    first: int,
    most: int,
    tolerance: float,
) -> tuple[np.ndarray | None, Seen]:
    """Directions that matter by the `first` of n fields, and all fields along them."""
    own, basis = model.directions, None
    assert own is not None
    seen, waiting = [], []
    size = fields_at_once(model.dim, simulator.problem.traceable)
    for u, s, _ in drawn_parts(model, jr.fold_in(key, 0), n, size):
        found = simulator.evaluate(u, scale, gradient=True)
        gradient = np.asarray(found.gradient)
        kept = np.all(np.isfinite(gradient), axis=1)
        score = np.asarray(simulator.likelihood(scale).score(found.features[kept]))
        gradient = gradient[kept] - (gradient[kept] @ own) @ own.T
        waiting.append((s[kept], score, u[kept], gradient))
        first -= len(u)
        if first > 0:
            continue
        if basis is None:
            basis = _directions(np.concatenate([w[3] for w in waiting]), own, most, tolerance)
            if basis is None:
                break
        seen += [(s, score, u @ basis, g @ basis) for s, score, u, g in waiting]
        waiting = []
    columns = zip(*seen, strict=True) if seen else [[np.zeros((0, 0))]] * 4
    return basis, Seen(*(np.concatenate(c).astype(np.float32) for c in columns))


def _directions(
    gradients: np.ndarray, own: np.ndarray, most: int, tolerance: float
) -> np.ndarray | None:
    """Orthonormal directions outside of those of the flow; None where data say too little there."""
    if len(gradients) < 2 or 0.5 * np.mean(np.sum(gradients**2, 1)) <= tolerance:
        return None
    found = subspace_from_gradients(gradients, most, tolerance).basis
    return np.linalg.qr(found - own @ (own.T @ found))[0]


def _scores(fitted: Seen, cubic: int, most: int) -> Polynomials | None:
    """The scores of the observations, or the leading combinations of these, as polynomials of s."""
    if most < 0:
        return None
    s, score = fitted.s.astype(np.float64), fitted.score.astype(np.float64)
    varying = score - score.mean(0)
    _, sizes, combinations = np.linalg.svd(varying.T @ varying)
    most = min(most, int(np.sum(sizes > RIDGE * sizes[0])))
    values = score @ combinations[:most].T
    r = s.shape[1]
    terms = Terms.of(r, cubic, len(s) // ROWS_PER_DIRECTION)
    centre, spread = s.mean(0), s.std(0) + 1e-12
    design = terms.design((s - centre) / spread)
    coefficients = solve_normal((design.T @ design).astype(np.float64), design.T @ values)
    return Polynomials.of(terms, min(r, cubic), coefficients, centre, spread)


class Regressors(NamedTuple):
    """What b and E are linear in: products of functions (1, f) with (1, x) and with t.

    Attributes:
        f: `(n, 1 + q)`.
        x: `(n, 1 + r)`.
        t: `(n, k)`.
    """

    f: np.ndarray
    x: np.ndarray
    t: np.ndarray

    def normal(self, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums of products of all regressors with each other, and with the columns of g."""
        size = self.f.shape[1] * (self.x.shape[1] + self.t.shape[1])
        gram, right = np.zeros((size, size)), np.zeros((size, g.shape[1]))
        for start in range(0, len(g), PART):
            rows = slice(start, start + PART)
            design = self.design(rows)
            gram += design.T @ design
            right += design.T @ g[rows]
        return gram, right

    def design(self, rows: slice) -> np.ndarray:
        """All regressors of some rows."""
        both = np.concatenate([self.x[rows], self.t[rows]], 1)
        return (self.f[rows][:, :, None] * both[:, None, :]).reshape(len(both), -1)


def _mean_precision(fitted: Seen) -> tuple[np.ndarray, np.ndarray]:
    """The principal axes of what t is on average, given s, and its deviations along them.

    From gradients that are regressed on s and t at once, linearly. No direction is wider than under
    the prior.
    """
    n, k = fitted.t.shape
    design = np.concatenate([np.ones((n, 1)), fitted.s, fitted.t], 1).astype(np.float64)
    found = solve_normal(design.T @ design, design.T @ fitted.g.astype(np.float64))[-k:]
    values, turn = np.linalg.eigh(np.eye(k) - 0.5 * (found + found.T))
    return turn, np.maximum(values, 1.0) ** -0.5


def _fitted(
    functions: Polynomials, scales: np.ndarray, fitted: Seen, tested: Seen
) -> tuple[ConditionalGaussian, float]:
    """The layer fitted to some fields, and the nats that it loses by others."""
    (known, seen), (fresh, _) = (_regressors(functions, rows) for rows in (fitted, tested))
    gram, right = known.normal(fitted.g)
    found = solve_normal(gram + SHRUNK * np.diag(np.diag(gram)), right)
    shifts, matrices = _split(found, known)
    lost = _nats(tested.g - _predicted(fresh, shifts, matrices))
    return ConditionalGaussian(functions, seen, shifts, matrices, scales), lost


def _regressors(functions: Polynomials, rows: Seen) -> tuple[Regressors, tuple[Range, Range]]:
    """Those of some fields, and the range of x and of the functions."""
    x = (rows.s - np.asarray(functions.centre)) / np.asarray(functions.spread)
    (f,) = in_pieces(lambda part: (_values(functions, part),), rows.s)
    one = np.ones((len(x), 1))
    parts = np.concatenate([one, f], 1), np.concatenate([one, x], 1), rows.t
    return Regressors(*(a.astype(np.float32) for a in parts)), (Range.of(x), Range.of(f))


def _split(found: np.ndarray, given: Regressors) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients as B and E of `ConditionalGaussian`, the latter made symmetric."""
    both = found.reshape(given.f.shape[1], -1, found.shape[1])
    shifts, matrices = np.split(both.transpose(0, 2, 1), [given.x.shape[1]], axis=2)
    return shifts, 0.5 * (matrices + matrices.transpose(0, 2, 1))


def _predicted(given: Regressors, shifts: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    """Gradients `(n, k)`."""
    both = np.concatenate([shifts, matrices], 2).transpose(0, 2, 1)
    return given.design(slice(None)) @ both.reshape(-1, both.shape[2]).astype(np.float32)


def _nats(g: np.ndarray) -> float:
    return 0.5 * float(np.mean(np.sum(g.astype(np.float64) ** 2, axis=1)))


@eqx.filter_jit
def _values(functions: Polynomials, s: Array) -> Array:
    return jax.vmap(functions.values)(s)
