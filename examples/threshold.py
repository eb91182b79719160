"""Wet or dry: where the water stands, from answers at 100 places.

    msign run examples/threshold.py --budget 6e4 --out runs/threshold

Each answer says on which side of a threshold the field lies, and is less sure the closer it is.
Nobody measures the field, and yet its shape is found.
"""

import jax.numpy as jnp
import numpy as np

import msign

SIDE, PLACES, THRESHOLD, BLUNT = 24, 100, 0.0, 0.15

rng = np.random.default_rng(1)
s = (np.arange(SIDE) + 0.5) / SIDE
s1, s2 = np.meshgrid(s, s, indexing="ij")
truth = 1.3 * np.sin(2.2 * np.pi * s1 + 0.4) * np.cos(2 * np.pi * s2) - 0.5 * s2 + 0.25
places = rng.choice(SIDE**2, size=PLACES, replace=False)
answers = (truth.reshape(-1)[places] + BLUNT * rng.logistic(size=PLACES) > THRESHOLD).astype(float)


def forward(x):
    """Logits of a yes at each place."""
    return (jnp.reshape(x, (len(x), -1))[:, places] - THRESHOLD) / BLUNT


prior = msign.LaplacePrior((SIDE, SIDE), 1.0, 8.0, kappa=3.0, boundary="neumann")
problem = msign.InverseProblem(
    prior,
    forward,
    answers,
    likelihood=msign.likelihoods.Bernoulli(),
    name="threshold",
    truth=truth,
)
