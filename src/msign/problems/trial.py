"""Trying a forward map and its derivative once on prior draws, before anything expensive."""

from collections.abc import Sequence
from typing import NoReturn

import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from msign import user_code
from msign.noise import as_array, normal
from msign.problems.coarse_noise import CoarseNoise
from msign.problems.failures import SimulationError
from msign.problems.forward_maps import ForwardMaps, not_finite

STEP = 1e-4  # of finite differences, in units of a prior draw


def check_every_scale(noise: CoarseNoise, key: PRNGKeyArray, scales: Sequence[int]) -> None:
    """Shapes and finiteness of the same two prior draws at scales, of a forward map in JAX."""
    maps = noise.maps
    maps.require(2 * len(scales) + noise.cost(min(scales)))
    likelihoods = [noise.likelihood(scale).host for scale in scales]
    maps.spend(2 * len(scales))
    u = normal(key, (2, maps.problem.dim))
    everywhere = maps.observe_everywhere(u, scales[::-1])[::-1]
    for scale, likelihood, observed in zip(scales, likelihoods, everywhere, strict=True):
        values = likelihood.log_likelihood(likelihood.features(observed))
        bad = np.isfinite(observed).all(1) & ~np.isfinite(values)
        if bad.any():
            at_scale = maps.problem.every_scale.whitened(u, scale)
            i = int(np.flatnonzero(bad)[0])
            why = not_finite(observed[i], values[i])
            maps.reject(maps.at_scale(scale), at_scale, 0, bad, why)


def refuse_all_rejected(maps: ForwardMaps, u: np.ndarray, tried: int) -> NoReturn:
    """Say why, where a problem rejects whatever is tried: that is a mistake, and no failure.

    One of the fields is simulated again, in this process, in order to have the error itself.
    """
    problem = maps.problem
    model = problem.at_scale(problem.scales)
    try:
        features = problem.likelihood.features(model.observe(model.fields(u)))
        why = not_finite(features, float(problem.likelihood.log_likelihood(features)[0]))
    except Exception as error:
        why = user_code.raised(error)
    raise SimulationError(
        f"all {tried} forward simulations that were tried were rejected; that of a prior draw "
        f"{why}",
        np.asarray(model.fields(u))[0],
    )


def check_vjp(maps: ForwardMaps, key: PRNGKeyArray, tolerance: float) -> None:
    """Compare a given vjp with finite differences of the forward map in random directions."""
    problem = maps.problem
    prior, layout, model = problem.prior, problem.layout, maps.at_scale(problem.scales)
    forward, vjp = model.forward, model.vjp
    assert vjp is not None
    x = np.asarray(prior.sample(key, 2), np.float64)
    direction = np.asarray(prior.sample(jr.fold_in(key, 1), 2), np.float64)
    maps.spend(3 * len(x))
    with maps.named(model, lambda: np.asarray(prior.whiten(as_array(x)))):
        outer = [np.asarray(forward(x + s * STEP * direction)) for s in (1, -1)]
        slope = (layout.flat(outer[0]) - layout.flat(outer[1])) / (2 * STEP)
        cotangent = normal(jr.fold_in(key, 2), slope.shape).astype(np.float64)
        pulled = np.asarray(vjp(x, layout.spread(cotangent, outer[0].shape)))
    if pulled.shape != x.shape:
        raise ValueError(f"vjp must return shape {x.shape}, got {pulled.shape}")
    axes = tuple(range(1, x.ndim))
    ours, theirs = (pulled * direction).sum(axes), (cotangent * slope).sum(1)
    size = np.abs(cotangent * slope).sum(1) + 1e-30
    error = np.max(np.abs(ours - theirs) / size)
    if not error < tolerance:
        names = "vjp must be the transposed derivative of forward"
        if not problem.has_observations:
            names = "gradient must be that of log_likelihood"
        raise ValueError(
            f"{names}: along a random direction it "
            f"gives {ours[0]:.6g} where finite differences give {theirs[0]:.6g}"
        )
