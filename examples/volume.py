"""Three dimensions: densities of 16 x 16 x 16 cells of rock from 36 readings of gravity.

    msign run examples/volume.py --budget 2e4 --out runs/volume

Gravimeters stand on the ground above a cube of rock. Each feels the pull of all cells, near ones
most. The forward map is linear and the noise is Gaussian: `fit` notices that the posterior is
Gaussian, and there is nothing to train.
"""

import jax.numpy as jnp
import numpy as np

import msign

SIDE, METERS, HEIGHT, NOISE = 16, 6, 0.05, 0.02

s = (np.arange(SIDE) + 0.5) / SIDE
s1, s2, s3 = np.meshgrid(s, s, s, indexing="ij")  # s3 points upwards, the ground is at 1
at = (np.arange(METERS) + 0.5) / METERS
places = [(a, b) for a in at for b in at]
depth = 1 + HEIGHT - s3
distance = [np.sqrt((s1 - a) ** 2 + (s2 - b) ** 2 + depth**2) for a, b in places]
pull = np.stack([(depth / d**3).reshape(-1) / SIDE**3 for d in distance])

ore = (s1 - 0.65) ** 2 + (s2 - 0.4) ** 2 + (s3 - 0.7) ** 2 < 0.05  # a body of heavy rock
truth = np.where(ore, 1.0, 0.0)
readings = pull @ truth.reshape(-1) + NOISE * np.random.default_rng(0).normal(size=len(pull))


def forward(x):
    """Gravity at the meters, of fields of density."""
    return jnp.reshape(x, (len(x), -1)) @ jnp.asarray(pull.T, x.dtype)


prior = msign.LaplacePrior((SIDE, SIDE, SIDE), 1.0, 3.0, kappa=3.0, boundary="neumann")
problem = msign.InverseProblem(
    prior, forward, readings, noise_std=NOISE, name="volume", truth=truth
)
