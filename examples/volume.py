"""Three dimensions: slowness of 12 x 12 x 12 cells of rock from 64 travel times.

    msign run examples/volume.py --budget 1e5 --out runs/volume

Straight rays cross the rock along its three axes, 32 of them aslant. The time that each takes is the
mean of exp(x) along it: slowness is positive, and its logarithm has a Gaussian prior.
"""

import jax.numpy as jnp
import numpy as np

import msign

SIDE, STEPS, NOISE = 12, 64, 0.03


def ray_weights(start, end):
    """Share of a straight ray that lies in each cell."""
    points = np.linspace(start, end, STEPS)
    cells = np.clip((points * SIDE).astype(int), 0, SIDE - 1)
    weights = np.zeros((SIDE, SIDE, SIDE))
    np.add.at(weights, tuple(cells.T), 1 / STEPS)
    return weights.reshape(-1)


depths = (0.15, 0.38, 0.62, 0.85)
pairs = [((0.0, a, c), (1.0, b, c)) for a in depths for b in depths for c in (0.35, 0.65)]
pairs += [((a, b, 0.0), (a, b, 1.0)) for a in depths for b in depths]
pairs += [((a, 0.0, b), (a, 1.0, b)) for a in depths for b in depths]
rays = np.stack([ray_weights(*pair) for pair in pairs])

s = (np.arange(SIDE) + 0.5) / SIDE
s1, s2, s3 = np.meshgrid(s, s, s, indexing="ij")
ore = (s1 - 0.6) ** 2 + (s2 - 0.4) ** 2 + (s3 - 0.5) ** 2 < 0.06  # a body of slow rock
truth = np.where(ore, 0.8, 0.0)
times = rays @ np.exp(truth.reshape(-1)) + NOISE * np.random.default_rng(0).normal(size=len(rays))


def forward(x):
    """Travel times of fields of log-slowness."""
    return jnp.exp(jnp.reshape(x, (len(x), -1))) @ jnp.asarray(rays.T, x.dtype)


prior = msign.LaplacePrior((SIDE, SIDE, SIDE), 1.0, 3.0, kappa=3.0, boundary="neumann")
problem = msign.InverseProblem(prior, forward, times, noise_std=NOISE, name="volume", truth=truth)
