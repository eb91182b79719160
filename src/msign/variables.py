"""The variables of whitened space that a network moves, and their distribution.

An informed flow moves r << d directions of whitened space and leaves all others standard normal; a
Glow stack moves all d. Training, densities and draws need the moved variables alone, so that their
cost does not depend on d where few variables move.

A density is handled by its logarithm minus that of the prior, which is what meets the
log-likelihood: log p - log q = log_ratio - log-likelihood + log Z.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import paramax
from flowjax.bijections import AbstractBijection
from jaxtyping import Array


class Variables(eqx.Module):
    """A distribution of fields of one scale: that of m variables, the rest standard normal.

    Attributes:
        flow: Bijection from m standard normal numbers z to the variables s.
        basis: Orthonormal directions `(d, m)` of whitened space along which s are coordinates;
            None: s are all d whitened coordinates.
        dim: d.
    """

    flow: AbstractBijection
    basis: Array | None
    dim: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        """Number of variables m."""
        return self.flow.shape[0]

    @property
    def alone(self) -> "Variables":
        """The variables without their place in the field: the same program for every scale."""
        return Variables(self.flow, None, self.size)

    def with_flow(self, flow: AbstractBijection) -> "Variables":
        """The variables in their place with another flow."""
        return Variables(flow, self.basis, self.dim)

    def forward(self, z: Array) -> tuple[Array, Array]:
        """The variables s of one field, and log p - log prior there, from standard normal z."""
        s, log_det = paramax.unwrap(self.flow).transform_and_log_det(z)
        return s, 0.5 * jnp.sum((s - z) * (s + z)) - log_det

    def backward(self, s: Array) -> tuple[Array, Array]:
        """Standard normal z of one field with variables s, and log p - log prior there."""
        z, log_det = paramax.unwrap(self.flow).inverse_and_log_det(s)
        return z, 0.5 * jnp.sum((s - z) * (s + z)) + log_det

    def reduce(self, u: Array) -> Array:
        """Variables `(n, m)` of whitened coordinates; pulls gradients back as well."""
        return u if self.basis is None else _product(u, paramax.unwrap(self.basis))

    def lift(self, s: Array, noise: Array) -> Array:
        """Whitened coordinates `(n, d)` with variables s, all others from noise `(n, d)`."""
        if self.basis is None:
            return s
        return noise + _product(s - self.reduce(noise), paramax.unwrap(self.basis).T)


@eqx.filter_jit
def draw(variables: Variables, noise: Array) -> tuple[Array, Array, Array]:
    """Whitened coordinates, variables and log p - log prior of fields, from noise `(n, d)`."""
    s, log_ratio = jax.vmap(variables.forward)(variables.reduce(noise))
    return variables.lift(s, noise), s, log_ratio


@eqx.filter_jit
def log_ratio(variables: Variables, s: Array) -> Array:
    """Log p - log prior of a batch of variables `(n, m)`."""
    return jax.vmap(lambda s: variables.backward(s)[1])(s)


@eqx.filter_jit
def log_ratio_and_score(variables: Variables, s: Array) -> tuple[Array, Array]:
    """Log p - log prior of a batch of variables, and its gradient."""
    return jax.vmap(jax.value_and_grad(lambda s: variables.backward(s)[1]))(s)


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
