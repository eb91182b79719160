"""Three dimensions: slowness of 16 x 16 x 16 cells of rock from 24 travel times.

    msign run examples/volume.py --budget 4e4 --out runs/volume

Straight rays cross the rock from one borehole to another and from the ground to a tunnel. The time
that each takes is the sum of exp(x) along it: slowness is positive, and its logarithm has a Gaussian
prior.
"""

import jax.numpy as jnp
import numpy as np

import msign

SIDE, STEPS, NOISE = 16, 64, 0.05


def ray_weights(start, end):
    """Share of a straight ray that lies in each cell."""
    points = np.linspace(start, end, STEPS)
    cells = np.clip((points * SIDE).astype(int), 0, SIDE - 1)
    weights = np.zeros((SIDE, SIDE, SIDE))
    np.add.at(weights, tuple(cells.T), 1 / STEPS)
    return weights.reshape(-1)


depths = (0.15, 0.38, 0.62, 0.85)
pairs = [((0.0, a, 0.5), (1.0, b, 0.5)) for a in depths for b in depths]
pairs += [((a, b, 0.0), (a, b, 1.0)) for a in depths for b in (0.25, 0.6)]
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
problem = msign.InverseProblem(
    prior, forward, times, noise_std=NOISE, name="volume", truth=truth
)
