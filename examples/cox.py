"""A log-Gaussian Cox process: the density of trees, of which some 200 were counted.

    msign run examples/cox.py --budget 6e4 --out runs/cox

Trees are counted in each of 20 x 20 cells. The logarithm of their density is a Gaussian field;
given it, counts are Poisson distributed. There is a count in every cell, so that `fit` chooses a
flow of all cells (`Cellwise`).
"""

import jax.numpy as jnp
import numpy as np

import msign

SIDE = 20
MEAN = np.log(0.6)  # of the log of the expected count of a cell

s = (np.arange(SIDE) + 0.5) / SIDE
s1, s2 = np.meshgrid(s, s, indexing="ij")
valley = np.exp(-((s2 - 0.5 - 0.25 * np.sin(2 * np.pi * s1)) ** 2) / 0.02)
truth = 2.2 * valley - 1.6  # trees stand along a winding valley
counts = np.random.default_rng(0).poisson(np.exp(truth))

prior = msign.LaplacePrior((SIDE, SIDE), 0.5, 4.0, kappa=4.0, boundary="neumann", mean=MEAN)
problem = msign.InverseProblem(
    prior,
    lambda x: jnp.reshape(x, (len(x), -1)),  # the log of the expected count of each cell
    counts.reshape(-1),
    likelihood=msign.likelihoods.Poisson(),
    name="cox",
    truth=truth,
)
