"""A NumPy forward map and its vector-Jacobian product as one JAX function."""

from collections.abc import Callable

import jax
import numpy as np


def traceable(
    observe: Callable[[np.ndarray], np.ndarray],
    vjp: Callable[[np.ndarray, np.ndarray], np.ndarray],
    size: int,
    n_observations: int,
) -> Callable[[jax.Array], jax.Array]:
    """A function of ``(..., size, size)`` to ``(..., n_observations)`` for use inside JAX.

    It calls back into Python. Results have the dtype of the argument, whatever precision the
    callbacks work in.
    """

    def flat_observe(x: np.ndarray) -> np.ndarray:
        fields = np.asarray(x).reshape(-1, size, size)
        return observe(fields).reshape(*x.shape[:-2], n_observations).astype(x.dtype)

    def flat_vjp(x: np.ndarray, cotangent: np.ndarray) -> np.ndarray:
        fields = np.asarray(x).reshape(-1, size, size)
        rows = np.asarray(cotangent).reshape(-1, n_observations)
        return vjp(fields, rows).reshape(x.shape).astype(x.dtype)

    @jax.custom_vjp
    def function(x: jax.Array) -> jax.Array:
        if x.shape[-2:] != (size, size):
            raise ValueError(f"x must have shape (..., {size}, {size}), got {x.shape}")
        result = jax.ShapeDtypeStruct((*x.shape[:-2], n_observations), x.dtype)
        return jax.pure_callback(flat_observe, result, x, vmap_method="broadcast_all")

    def forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return function(x), x

    def backward(x: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
        result = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return (jax.pure_callback(flat_vjp, result, x, cotangent, vmap_method="broadcast_all"),)

    function.defvjp(forward, backward)
    return function
