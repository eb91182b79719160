"""Products of fields' simulations with the derivative of the features, counted."""

from collections.abc import Callable

import numpy as np
from jaxtyping import ArrayLike

from msign import checks
from msign.problems.at_scale import ScaleModel, compiled_rows
from msign.problems.coarse_noise import CoarseNoise

Products = Callable[..., tuple[np.ndarray, np.ndarray]]


def linearised(
    noise: CoarseNoise,
    model: ScaleModel,
    function: Products,
    arrays: tuple[np.ndarray, ...],
    columns: int,
    products: int,
    solved: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """A function of the model, chunk by chunk: features and products with their derivative.

    Args:
        noise: Likelihoods of all scales.
        model: Of the scale.
        function: One of the model's: of arrays, the likelihood, and the rows to pad them to.
        arrays: Fields in whitened coordinates `(n, d)`, and what their derivative is applied to.
        columns: Of the latter.
        products: That are counted for each field.
        solved: Whether the field itself is not counted.
    """
    u, maps = arrays[0], noise.maps
    if not model.differentiable:
        raise ValueError("forward must have a derivative (JAX code, or a vjp), got none")
    checks.shape("u", u.shape, (model.prior.lattice.dim,))
    check_batch("u", u, 1)
    for other in arrays[1:]:
        if other.shape != (len(u), columns):
            raise ValueError(
                f"products must be with arrays of shape {(len(u), columns)}, got {other.shape}"
            )
    cost = len(u) * (products + (not solved))
    maps.require(cost + noise.cost(model.scale))
    likelihood = noise.likelihood(model.scale).device
    maps.spend(cost)
    parts, chunk = [], max(1, maps.block // products)
    rows = compiled_rows(len(u), chunk)
    for start in range(0, len(u), chunk):
        pieces = [a[start : start + chunk] for a in arrays]
        with maps.named(model, lambda: pieces[0], start):  # noqa: B023  (called in this round)
            found = function(*pieces, likelihood, rows)
        bad = [~np.isfinite(a.reshape(len(a), -1)).all(1) for a in found]
        maps.reject(model, pieces[0], start, np.any(bad, axis=0))
        parts.append(found)
    features, derivatives = zip(*parts, strict=True)
    return np.concatenate(features), np.concatenate(derivatives)


def check_batch(name: str, a: ArrayLike, axes: int) -> None:
    """Refuse fields, of `axes` axes each, that are not a batch of at least one."""
    shape = np.shape(a)
    if len(shape) != axes + 1:
        raise ValueError(f"{name} must be a batch of fields with one leading axis, got {shape}")
    if shape[0] == 0:
        raise ValueError(f"{name} must hold at least one field, got none")
