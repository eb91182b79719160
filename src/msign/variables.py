"""The variables of whitened space that a network moves, and their distribution.

An informed flow moves r << d directions of whitened space and leaves all others standard normal; a
Glow stack moves all d. Training, densities and draws need the moved variables alone, so that their
cost does not depend on d where few variables move.

A density is handled by its logarithm minus that of the prior, which is what meets the
log-likelihood: log p - log q = log_ratio - log-likelihood + log Z.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import paramax
from flowjax.bijections import AbstractBijection
from jaxtyping import Array, ArrayLike

from msign.devices import gathered, spread

PIECES = (128, 2048)  # rows that a program is given at a time: of few, of many
VALUES_AT_ONCE = 2**24  # and no more numbers than these


class Variables(eqx.Module):
    """A distribution of fields of one scale: that of m variables, the rest standard normal.

    Attributes:
        flow: Bijection from m standard normal numbers z to the variables s.
        basis: Orthonormal directions `(d, m)` of whitened space along which s are coordinates;
            None: s are all d whitened coordinates.
        dim: d.
        lanes: Whether the fields of a batch lie along the last axis while the flow acts on them:
            many times faster for a few variables each, whose sums become sums of long vectors.
    """

    flow: AbstractBijection
    basis: Array | None
    dim: int = eqx.field(static=True)
    lanes: bool = eqx.field(static=True, default=True)

    @property
    def size(self) -> int:
        """Number of variables m."""
        return self.flow.shape[0]

    @property
    def alone(self) -> "Variables":
        """The variables without their place in the field: the same program for every scale."""
        return Variables(self.flow, None, self.size, self.lanes)

    @property
    def directions(self) -> np.ndarray | None:
        """The basis as an array of the host."""
        return None if self.basis is None else np.asarray(paramax.unwrap(self.basis))

    def with_flow(self, flow: AbstractBijection) -> "Variables":
        """The variables in their place with another flow."""
        return Variables(flow, self.basis, self.dim, self.lanes)

    def forward(self, z: Array) -> tuple[Array, Array]:
        """Variables `(n, m)` and log p - log prior `(n,)` of fields, from standard normal z."""
        s, log_det = self._batched(paramax.unwrap(self.flow).transform_and_log_det, z)
        return s, 0.5 * jnp.sum((s - z) * (s + z), -1) - log_det

    def backward(self, s: Array) -> tuple[Array, Array]:
        """Standard normal z `(n, m)` and log p - log prior `(n,)` of fields with variables s."""
        z, log_det = self._batched(paramax.unwrap(self.flow).inverse_and_log_det, s)
        return z, 0.5 * jnp.sum((s - z) * (s + z), -1) + log_det

    def log_ratio_and_score(self, s: Array) -> tuple[Array, Array]:
        """Log p - log prior of fields, and its gradient."""
        ratio, pull = jax.vjp(lambda s: self.backward(s)[1], s)
        return ratio, pull(jnp.ones_like(ratio))[0]

    def score(self, s: Array, z: Array) -> Array:
        """The gradient of log p, of variables whose noise is known and need not be found."""
        inverse = paramax.unwrap(self.flow).inverse_and_log_det
        _, pull = jax.vjp(lambda s: self._batched(inverse, s), s)
        return pull((-z, jnp.ones(len(z), z.dtype)))[0]

    def _batched(
        self, bijection: Callable[[Array], tuple[Array, Array]], x: Array
    ) -> tuple[Array, Array]:
        if not self.lanes:
            return jax.vmap(bijection)(x)
        y, log_det = jax.vmap(bijection, in_axes=1, out_axes=(1, 0))(x.T)
        return y.T, log_det

    def reduce(self, u: Array) -> Array:
        """Variables `(n, m)` of whitened coordinates; pulls gradients back as well."""
        return u if self.basis is None else _product(u, paramax.unwrap(self.basis))


def draw(variables: Variables, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whitened coordinates, variables and log p - log prior of fields, from noise `(n, d)`.

    The flow alone is a compiled program; what depends on the lattice are two products.
    """
    basis = variables.directions
    z = noise if basis is None else noise @ basis
    s, log_ratio = moved(variables, z)
    return s if basis is None else noise + (s - z) @ basis.T, s, log_ratio


def moved(variables: Variables, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Variables `(n, m)` and log p - log prior of fields, from their own noise `(n, m)`."""
    s, log_ratio = in_pieces(lambda part: _forward(variables.alone, part), z)
    return s, log_ratio


@eqx.filter_jit
def _forward(variables: Variables, z: Array) -> tuple[Array, Array]:
    """Of the variables alone, so that one program serves all scales with as many of them."""
    return variables.forward(z)


def pulled_back(variables: Variables, noise: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Gradient in the noise `(n, d)` of f(u) - (log p - log prior), from that of f in u."""
    basis = variables.directions
    z, slope = (noise, gradient) if basis is None else (noise @ basis, gradient @ basis)
    (found,) = in_pieces(lambda *part: (_pulled_back(variables.alone, *part),), z, slope)
    return found if basis is None else gradient + (found - slope) @ basis.T


@eqx.filter_jit
def _pulled_back(variables: Variables, z: Array, slope: Array) -> Array:
    (_, ratio), pull = jax.vjp(variables.forward, z)
    return pull((slope, -jnp.ones_like(ratio)))[0]


def log_ratio(variables: Variables, s: ArrayLike) -> np.ndarray:
    """Log p - log prior of a batch of variables `(n, m)`."""
    return in_pieces(lambda part: (_log_ratio(variables.alone, part),), np.asarray(s))[0]


@eqx.filter_jit
def _log_ratio(variables: Variables, s: Array) -> Array:
    return variables.backward(s)[1]


def in_pieces(
    program: Callable[..., tuple[Array, ...]], *arrays: np.ndarray
) -> tuple[np.ndarray, ...]:
    """What a program makes of the rows of arrays of one length.

    It is given pieces of one size out of two, so that it is compiled at most twice however many
    rows there are.
    """
    n, width = arrays[0].shape
    size = min(PIECES[n > PIECES[0]], max(1, VALUES_AT_ONCE // max(1, width)))
    padding = [(0, -n % size), (0, 0)]
    whole = [np.pad(rows, padding, mode="edge") for rows in arrays]
    pieces = (slice(i, i + size) for i in range(0, len(whole[0]), size))
    parts = [program(*(spread(rows[piece]) for rows in whole)) for piece in pieces]
    columns = ([gathered(part) for part in column] for column in zip(*parts, strict=True))
    return tuple(np.concatenate(column)[:n] for column in columns)


@eqx.filter_jit
def log_ratio_and_score(variables: Variables, s: Array) -> tuple[Array, Array]:
    """Log p - log prior of a batch of variables, and its gradient."""
    return variables.log_ratio_and_score(s)


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
