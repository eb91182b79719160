"""Noise of images and images of noise, computed in double precision whatever the weights are.

A trained flow stretches some directions a hundredfold, and the rounding errors of its layers with
them. Arrays go in and come out in the precision of the weights; only the layers in between are
double, which leaves one rounding of the noise.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike

from msign.images.model import Model


def encode(model: Model, v: ArrayLike) -> tuple[np.ndarray, ...]:
    """Noise of fields, the coarsest scale first."""
    given = np.asarray(v)
    with jax.enable_x64(True):
        z = _doubled(model).encode(given.astype(np.float64))
        return tuple(np.asarray(entry, given.dtype) for entry in z)


def decode(model: Model, z: Sequence[ArrayLike]) -> np.ndarray:
    """Fields of noise, the coarsest scale first."""
    given = [np.asarray(entry) for entry in z]
    with jax.enable_x64(True):
        v = _doubled(model).decode([entry.astype(np.float64) for entry in given])
        return np.asarray(v, given[0].dtype)


def _doubled(model: Model) -> Model:
    return jax.tree.map(lambda a: a.astype(jnp.float64) if eqx.is_inexact_array(a) else a, model)
