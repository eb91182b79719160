"""Polynomials of few variables: many functions at once, with the terms that they are fitted by.

What an emulator learns of a forward map (`inference.methods.polynomial`), and what a Gaussian of
some variables depends on given others (`conditional`).
"""

import itertools
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array

from msign.noise import on_device

RIDGE = 1e-6  # relative to the mean square of the terms, as small as single precision allows


class Polynomials(eqx.Module):
    """M functions of r variables: quadratic in all of these, cubic in the leading ones.

    Of standardised variables x = (s - centre) / spread. Tensors are symmetric in the variables, so
    that values and derivatives share their products.

    Attributes:
        centre: `(r,)`.
        spread: `(r,)`.
        constant: `(m,)`.
        linear: `(m, r)`.
        quadratic: `(r, m r)`.
        cubic: `(k k, m k)`, k leading variables.
    """

    centre: Array
    spread: Array
    constant: Array
    linear: Array
    quadratic: Array
    cubic: Array

    @classmethod
    def of(
        cls,
        terms: "Terms",
        cubic: int,
        coefficients: np.ndarray,
        centre: np.ndarray,
        spread: np.ndarray,
    ) -> "Polynomials":
        """Those with the coefficients `(terms, m)`, and room for `cubic` leading variables."""
        r, m = terms.rank, coefficients.shape[1]
        ends = np.cumsum([1, r, len(terms.pairs)])
        constant, linear, pairs, triples = np.split(coefficients, ends)
        arrays = (
            centre,
            spread,
            constant[0],
            linear.T,
            _symmetric(r, terms.pairs, pairs).transpose(0, 2, 1).reshape(r, m * r),
            _symmetric(cubic, terms.triples, triples)
            .transpose(0, 1, 3, 2)
            .reshape(cubic * cubic, m * cubic),
        )
        return cls(*(on_device(a) for a in arrays))

    @property
    def leading(self) -> int:
        """Number of variables that have cubic terms."""
        return round(np.sqrt(self.cubic.shape[0]))

    def values(self, s: Array) -> Array:
        """Of the variables of one field `(m,)`."""
        return self.values_and_slopes(s)[0]

    def values_and_slopes(self, s: Array) -> tuple[Array, Array]:
        """Values `(m,)` and derivatives `(m, r)`."""
        x = (s - self.centre) / self.spread
        m, r = self.linear.shape
        k = self.leading
        head = x[:k]
        second = (x @ self.quadratic).reshape(m, r)
        third = ((head[:, None] * head).reshape(-1) @ self.cubic).reshape(m, k)
        values = self.constant + jnp.sum((self.linear + second) * x, -1)
        values += jnp.sum(third * head, -1)
        slopes = (self.linear + 2 * second).at[:, :k].add(3 * third)
        return values, slopes / self.spread


class Terms(NamedTuple):
    """Of a polynomial in r variables: indices of its quadratic and cubic terms."""

    rank: int
    pairs: np.ndarray
    triples: np.ndarray

    @classmethod
    def of(cls, rank: int, cubic: int, most: int) -> "Terms":
        """At most `most` terms: cubic ones, in the leading variables, go first, then quadratic."""
        terms = cls(rank, _ordered(rank, 2), _ordered(min(rank, cubic), 3))
        if len(terms) > most:
            few = max(0, min(rank, int(np.sqrt(2 * max(0, most - rank - 1)) - 0.5)))
            terms = cls(rank, _ordered(few, 2), np.zeros((0, 3), int))
        return terms

    def __len__(self) -> int:
        return 1 + self.rank + self.pairs.shape[0] + self.triples.shape[0]

    def design(self, x: np.ndarray) -> np.ndarray:
        """All terms of standardised variables `(n, r)`, in single precision."""
        x = x.astype(np.float32)
        quadratic = x[:, self.pairs[:, 0]] * x[:, self.pairs[:, 1]]
        a, b, c = self.triples.T
        return np.concatenate(
            [np.ones_like(x[:, :1]), x, quadratic, x[:, a] * x[:, b] * x[:, c]], 1
        )


def solve_normal(gram: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Coefficients of normal equations, with the least ridge at which rounding leaves these sound.

    Far fields whose cubes dwarf everything else make single precision too poor for `RIDGE`.
    """
    ridge = RIDGE
    while True:
        try:
            return scipy.linalg.solve(gram + ridge * np.diag(np.diag(gram)), right, assume_a="pos")
        except np.linalg.LinAlgError:
            ridge *= 10


def _symmetric(variables: int, index: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Symmetric tensors `(variables, ..., m)` of monomials `(terms, degree)`, one for each m."""
    degree = index.shape[1]
    tensor = np.zeros((variables,) * degree + coefficients.shape[1:])
    orders = list(itertools.permutations(range(degree)))
    for order in orders:
        tensor[tuple(index[:, order].T)] += coefficients / len(orders)
    return tensor


def _ordered(variables: int, degree: int) -> np.ndarray:
    """Indices `(terms, degree)` of all monomials of a degree, each once."""
    grid = np.stack(np.meshgrid(*[np.arange(variables)] * degree, indexing="ij"), -1)
    grid = grid.reshape(-1, degree)
    return grid[np.all(np.diff(grid, axis=1) >= 0, axis=1)]
