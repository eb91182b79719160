"""Maps of two variables: a spline of the first, and splines of the second that the first chooses.

Every density on a plane is that of such a map of standard normal noise (Knothe 1957, Rosenblatt
1952): what the first variable is distributed like by itself, and the second given the first.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from flowjax.bijections import AbstractBijection
from jaxtyping import Array

from msign.bijections.spline import Bins, SplineMap, bins_of, evaluated, sizes_of, spline_numbers
from msign.noise import on_device


class PlaneMap(AbstractBijection):
    """A spline of z_1 to s_1, one of z_2 to s_2 whose bins are piecewise linear in s_1, and a turn.

    The identity at the start. Bins are known at some values of s_1, and in between they are means
    of those at both neighbours: knots that lie where a density turns move along with it, and both
    directions are closed forms.

    Args:
        knots: Bins of the spline of z_1.
        conditional: Bins of those of z_2.
        rows: Values of s_1 at which these are known.
        interval: Splines act on [-interval, interval] and are the identity outside.
        least: Smallest width, height and derivative.
    """

    shape: tuple[int, ...]
    cond_shape: None
    first: SplineMap
    gaps: Array
    numbers: Array
    angle: Array

    def __init__(self, knots: int, conditional: int, rows: int, interval: float, least: float):
        self.shape = (2,)
        self.cond_shape = None
        self.first = SplineMap(1, knots, interval, least)
        self.gaps = on_device(np.zeros(rows - 1))
        self.numbers = on_device(np.zeros((spline_numbers(conditional), rows)))
        self.angle = on_device(np.zeros(()))

    @property
    def conditional(self) -> int:
        """Bins of the splines of z_2."""
        return (self.numbers.shape[0] + 1) // 3

    @property
    def rows(self) -> int:
        """Values of s_1 at which these are known."""
        return self.numbers.shape[1]

    def with_first(self, first: SplineMap) -> "PlaneMap":
        """The map with another spline of z_1."""
        return eqx.tree_at(lambda m: m.first, self, first)

    def turned(self, angle: float) -> "PlaneMap":
        """The map with another angle."""
        return eqx.tree_at(lambda m: m.angle, self, on_device(np.asarray(angle, float)))

    def with_conditionals(self, places: np.ndarray, numbers: np.ndarray) -> "PlaneMap":
        """The map with splines `(3 conditional - 1, rows)` of z_2 at values of s_1.

        These values are in increasing order, the first and the last at both ends of the interval.
        """
        least = self.first.least
        gaps = np.log(np.maximum(np.diff(places) - least, 1e-3 * least))
        parts = (on_device(gaps), on_device(numbers))
        return eqx.tree_at(lambda m: (m.gaps, m.numbers), self, parts)

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        along, first = self.first.transform_and_log_det(x[:1])
        across, second = evaluated(x[1], self._bins(along[0]), self.first.interval, False)
        return self._turned(along[0], across, 1), first + second

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        s = self._turned(y[0], y[1], -1)
        along, first = self.first.inverse_and_log_det(s[:1])
        across, second = evaluated(s[1], self._bins(s[0]), self.first.interval, True)
        return jnp.stack([along[0], across]), first + second

    def _turned(self, a: Array, b: Array, sign: int) -> Array:
        cos, sin = jnp.cos(self.angle), sign * jnp.sin(self.angle)
        return jnp.stack([cos * a - sin * b, sin * a + cos * b])

    def _bins(self, s: Array) -> Bins:
        """Of the spline of z_2 at a value of s_1."""
        interval, least = self.first.interval, self.first.least
        gaps = sizes_of(self.gaps, interval, least)
        past = jnp.clip((s + interval - jnp.cumsum(gaps) + gaps) / gaps, 0, 1)  # of each gap
        # Parts of all rows: a product is faster than to look up two of them.
        one, none = jnp.ones_like(past[:1]), jnp.zeros_like(past[:1])
        near = jnp.concatenate([one, past]) - jnp.concatenate([past, none])
        parts = bins_of(self.numbers, interval, least)
        return Bins(*(jnp.matmul(part, near, precision="highest") for part in parts))
