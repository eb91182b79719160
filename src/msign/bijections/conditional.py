"""A Gaussian of many variables given few others: what data say in passing, of many directions.

Behind a flow of the directions that data inform most there are many more of which they say a
little each. Given the first ones these are nearly Gaussian, and nearly standard normal: closed
forms do for them, where couplings would have to be learned.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import paramax
from flowjax.bijections import AbstractBijection
from jaxtyping import Array, ArrayLike

from msign.bijections.channels import bounded
from msign.bijections.polynomials import Polynomials, Terms
from msign.bijections.triangular import lower_inverse
from msign.noise import on_device

MAX_LOG_SCALE = 2.0  # of one variable: factors up to 7


class Range(NamedTuple):
    """The smallest and the largest values that a fit has seen."""

    low: Array
    high: Array

    @classmethod
    def of(cls, values: np.ndarray) -> "Range":
        """Of the rows of values `(n, m)`."""
        return cls(on_device(values.min(0)), on_device(values.max(0)))

    def limited(self, values: Array) -> Array:
        """Values that do not leave the range."""
        return jnp.clip(values, self.low, self.high)


class ConditionalGaussian(AbstractBijection):
    """The last k of r + k variables, normal noise z, made Gaussian given the first ones, s.

    With functions f_0 = 1, f_1, ..., f_q of s, x standardised s, and symmetric matrices E_j,

        b(s) = sum_j f_j(s) B_j (1, x),    E(s) = sum_j f_j(s) E_j,
        t = c (b + E b + (e^(D / 2) + T) z),

    D the diagonal of E and T what is below it: t / c = y has mean and covariance of the density
    proportional to exp(b . y - y . (I - E) y / 2), to first order in E. It is not trained.
    Functions and x do not leave the range that their fit has seen.

    Args:
        functions: f_1, ..., f_q.
        seen: The range of x and of the functions.
        shifts: B `(q + 1, k, 1 + r)`.
        matrices: E `(q + 1, k, k)`, each symmetric.
        scales: c `(k,)`, positive.
    """

    shape: tuple[int, ...]
    cond_shape: None
    functions: Polynomials
    seen: tuple[Range, Range]
    shifts: Array
    matrices: Array
    scales: Array

    def __init__(
        self,
        functions: Polynomials,
        seen: tuple[Range, Range],
        shifts: ArrayLike,
        matrices: ArrayLike,
        scales: ArrayLike,
    ):
        shifts, matrices, scales = (np.asarray(a) for a in (shifts, matrices, scales))
        q, r = functions.linear.shape
        k = matrices.shape[-1]
        if matrices.shape != (q + 1, k, k) or shifts.shape != (q + 1, k, 1 + r):
            raise ValueError(
                f"shifts and matrices must have shapes {(q + 1, k, 1 + r)} and {(q + 1, k, k)}, "
                f"got {shifts.shape} and {matrices.shape}"
            )
        if scales.shape != (k,) or not (scales > 0).all():
            raise ValueError(f"scales must be {k} positive numbers, got {scales}")
        self.shape = (r + k,)
        self.cond_shape = None
        arrays = (on_device(a) for a in (shifts, matrices, scales))
        fixed = map(paramax.non_trainable, (functions, seen, *arrays))
        self.functions, self.seen, self.shifts, self.matrices, self.scales = fixed

    @classmethod
    def identity(cls, given: int, moved: int, functions: int, cubic: int) -> "ConditionalGaussian":
        """The map that does nothing, of this many variables, functions, and cubic variables."""
        one = np.zeros((1, given)), np.zeros((1, functions))
        zero = np.zeros((1 + given, functions)), np.zeros(given), np.ones(given)
        return cls(
            Polynomials.of(Terms.of(given, 0, 0), min(given, cubic), *zero),
            (Range.of(one[0]), Range.of(one[1])),
            np.zeros((functions + 1, moved, 1 + given)),
            np.zeros((functions + 1, moved, moved)),
            np.ones(moved),
        )

    @property
    def structure(self) -> tuple[int, int, int]:
        """How many variables it moves, of how many functions and cubic variables (`identity`)."""
        functions, matrices = paramax.unwrap((self.functions, self.matrices))
        return matrices.shape[1], len(functions.constant), functions.leading

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        s, z = jnp.split(x, [self.functions.linear.shape[1]])
        f, mean = self._mean(s)
        log_scale = self._log_scale(f)
        y = mean + jnp.exp(log_scale) * z + self._applied(f, jnp.tril(self.matrices, -1), z)
        return jnp.concatenate([s, self.scales * y]), (log_scale + jnp.log(self.scales)).sum()

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        s, t = jnp.split(y, [self.functions.linear.shape[1]])
        f, mean = self._mean(s)
        log_scale = self._log_scale(f)
        below = jnp.tensordot(f, jnp.tril(self.matrices, -1), 1)
        z = lower_inverse(below + jnp.diag(jnp.exp(log_scale))) @ (t / self.scales - mean)
        return jnp.concatenate([s, z]), -(log_scale + jnp.log(self.scales)).sum()

    def _mean(self, s: Array) -> tuple[Array, Array]:
        """The functions (1, f) of s, and the mean of the last variables, each over its scale."""
        own, (range_x, range_f) = self.functions, self.seen
        one = jnp.ones(1, s.dtype)
        x = jnp.concatenate([one, range_x.limited((s - own.centre) / own.spread)])
        f = jnp.concatenate([one, range_f.limited(own.values(s))])
        shift = self._applied(f, self.shifts, x)
        return f, shift + self._applied(f, self.matrices, shift)

    def _log_scale(self, f: Array) -> Array:
        return bounded(0.5 * f @ jnp.diagonal(self.matrices, axis1=1, axis2=2), MAX_LOG_SCALE)

    @staticmethod
    def _applied(f: Array, stack: Array, x: Array) -> Array:
        """sum_j f_j M_j x, with no sum of matrices for each field."""
        products = stack.reshape(-1, stack.shape[-1]) @ x
        return f @ products.reshape(stack.shape[:2])
