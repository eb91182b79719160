"""Problems whose data inform all of a field: hundreds of nats away from the prior.

Each function makes one; `noise` and truth are those of a fixed seed.
"""

import jax
import jax.numpy as jnp
import numpy as np

import msign
from msign.problems.elliptic import load

TRUTH = 99  # seed of the field behind the data


def exp_in_every_cell(size: int = 32, noise: float = 0.2, black_box: bool = False):
    """Data exp(x) + noise in every cell."""
    prior = msign.LaplacePrior((size, size), alpha=0.5, beta=6.0)
    truth = np.asarray(prior.sample(jax.random.key(TRUTH), 1)[0])
    data = np.exp(truth) + noise * np.random.default_rng(1).normal(size=truth.shape)
    xp = np if black_box else jnp
    return msign.InverseProblem(
        prior,
        lambda x: xp.exp(x).reshape(len(x), -1),
        data.reshape(-1),
        noise,
        truth=truth,
        name="exp in every cell",
    )


def products_in_every_cell(size: int = 32, noise: float = 0.2):
    """Each cell times the mean of all, which a change of sign leaves as it is, and the mean itself.

    The mean m is observed as 1 with noise 2, so that the odds of the two signs are exp(m / 2): 2.7
    for a mean of two, which the products say to a hundredth.
    """
    prior = msign.LaplacePrior((size, size), alpha=0.5, beta=6.0)
    truth = np.asarray(prior.sample(jax.random.key(TRUTH), 1)[0])
    truth = truth + 2 - truth.mean()
    products = truth * truth.mean() + noise * np.random.default_rng(1).normal(size=truth.shape)

    def forward(x):
        mean = x.mean((1, 2), keepdims=True)
        return jnp.concatenate([(x * mean).reshape(len(x), -1), mean[:, 0]], 1)

    return msign.InverseProblem(
        prior,
        forward,
        np.append(products.reshape(-1), 1.0),
        np.append(np.full(size**2, noise), 2.0),
        truth=truth,
        name="products in every cell",
    )


def linear_in_every_cell(size: int = 64, noise: float = 0.2):
    """Data x + noise in every cell."""
    prior = msign.LaplacePrior((size, size), alpha=0.5, beta=6.0)
    truth = np.asarray(prior.sample(jax.random.key(TRUTH), 1)[0])
    data = truth + noise * np.random.default_rng(1).normal(size=truth.shape)
    return msign.InverseProblem(
        prior,
        lambda x: x.reshape(len(x), -1),
        data.reshape(-1),
        noise,
        truth=truth,
        name="linear in every cell",
    )


def cox_process(size: int = 32, points: float = 130.0):
    """Counts of a log-Gaussian Cox process: exponential covariance, about `points` in all.

    Variance 1.91 and correlation length 1/33 of the side, the pines of Moller, Syversveen and
    Waagepetersen (1998).
    """
    s = (np.arange(size) + 0.5) / size
    cells = np.stack(np.meshgrid(s, s, indexing="ij"), -1).reshape(-1, 2)
    distance = np.linalg.norm(cells[:, None] - cells, axis=-1)
    variance = 1.91
    prior = msign.DensePrior(variance * np.exp(-33 * distance), (size, size))
    offset = float(np.log(points / size**2) - variance / 2)
    truth = np.asarray(prior.sample(jax.random.key(TRUTH), 1)[0], np.float64)
    counts = np.random.default_rng(1).poisson(np.exp(truth + offset))
    return msign.InverseProblem(
        prior,
        lambda x: x + offset,
        counts,
        likelihood=msign.likelihoods.Poisson(),
        truth=truth,
        name="Cox process",
    )


def elliptic_at_points(size: int = 64, points: int = 13, percent: float = 1.0):
    """Pressure in points x points cells of the elliptic problem, noise in percent of its maximum.

    The truth is a draw of the prior.
    """
    from msign.problems.fem import EllipticSolver

    prior = msign.LaplacePrior((size, size), alpha=0.5, beta=2.0)
    cells = np.round((np.arange(points) + 1) / (points + 1) * size - 0.5).astype(int)
    seen = np.zeros((points, points, size, size))
    seen[np.arange(points)[:, None], np.arange(points), cells[:, None], cells] = 1.0
    solver = EllipticSolver(size, load, seen.reshape(-1, size, size))
    truth = np.asarray(prior.sample(jax.random.key(TRUTH), 1)[0], np.float64)
    clean = solver.observe(truth[None])[0]
    noise = 0.01 * percent * float(np.abs(clean).max())
    return msign.InverseProblem(
        prior,
        solver.observe,
        clean + noise * np.random.default_rng(1).normal(size=clean.shape),
        noise,
        vjp=solver.vjp,
        forward_and_vjp=solver.observe_and_vjp,
        truth=truth,
        name="elliptic at points",
    )
