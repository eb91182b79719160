"""A problem to start from: a field on 16 x 16 cells, seen through a few noisy averages.

    msign check FILE  # shapes, derivative, what coarse scales lose, how long it takes
    msign run FILE --budget 2e4 --out runs/first
    msign runs  # what there is, with its verdicts

It runs as it is. Replace the three parts below by your own.
"""

import jax.numpy as jnp
import numpy as np

import msign

# 1. What is known of the field before any data. Sides that are products of 2, 3 and 5 have coarse
#    scales. alpha: how smooth (larger is smoother). beta: how large; look at a few draws,
#    prior.sample(jax.random.key(0), 5). Boundaries: "dirichlet" (zero), "neumann", "periodic".
prior = msign.LaplacePrior((16, 16), alpha=0.5, beta=4.0, boundary="dirichlet")

# 2. What a field would let us measure, without noise. `fields` is a batch (n, 16, 16), what comes
#    back is (n, m). Here it is JAX code, so that it is compiled and differentiated. A function in
#    NumPy, or one that calls a program, works as well; give its derivative as vjp=..., or none.
CORNERS = [(0, 4), (4, 12), (8, 0), (12, 8), (4, 4)]  # of windows of 4 x 4 cells


def forward(fields):  # type: ignore[no-untyped-def]
    """Averages over windows of the field."""
    return jnp.stack([fields[:, i : i + 4, j : j + 4].mean((1, 2)) for i, j in CORNERS], axis=1)


# 3. What was measured, and how exact that is. Counts, answers of yes or no, outliers:
#    likelihood=msign.likelihoods.Poisson() and others instead of noise_std.
NOISE = 0.1
data = np.array([0.1, -0.2, 0.3, 0.0, 0.25])

problem = msign.InverseProblem(
    prior,
    forward,
    data,
    noise_std=NOISE,
    name="first",
    # inflate=0,             # do not add the error of coarse scales to their noise (msign check)
    # on_failure="reject",   # a simulation that fails counts as impossible, instead of stopping
    # missing="drop",        # ignore NaN in the data
)
