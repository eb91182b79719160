"""A flow that works in the prior's whitened coordinates."""

import jax.numpy as jnp
import paramax
from flowjax.bijections import AbstractBijection
from jaxtyping import Array

from msign.priors import Prior


class Whitened(AbstractBijection):
    """A bijection on whitened coordinates, as a bijection on fields.

    The network, which runs in whitened coordinates, applies `inner` directly and never leaves
    them.

    Args:
        inner: Bijection of shape `(d,)`.
        prior: Whose `whiten` gives the coordinates.
    """

    shape: tuple[int, ...]
    cond_shape: tuple[int, ...] | None
    inner: AbstractBijection
    prior: Prior

    def __init__(self, inner: AbstractBijection, prior: Prior):
        if inner.shape != (prior.lattice.dim,):
            raise ValueError(f"inner must have shape {(prior.lattice.dim,)}, got {inner.shape}")
        self.shape = prior.lattice.field_shape
        self.cond_shape = inner.cond_shape
        self.inner = inner
        self.prior = paramax.non_trainable(prior)

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        u, log_det = self.inner.transform_and_log_det(self.prior.whiten(x), condition)
        return self.prior.unwhiten(u), jnp.asarray(log_det)

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        u, log_det = self.inner.inverse_and_log_det(self.prior.whiten(y), condition)
        return self.prior.unwhiten(u), jnp.asarray(log_det)
