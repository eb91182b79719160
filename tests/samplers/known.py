"""A target with two modes and a stiff Gaussian part, known exactly, whose simulations count."""

import dataclasses
import importlib.util

import jax.numpy as jnp
import numpy as np

import msign
from msign.samplers import (
    HMC,
    MGVI,
    NUTS,
    SVGD,
    AmortizedSVGD,
    CrankNicolson,
    EllipticalSlice,
    GeoVI,
    InformedSMC,
    LaplaceMixture,
    ProjectedSVGD,
    TemperedSMC,
)

SAMPLERS = {
    "hmc": HMC(chains=20, lengths=(4, 8)),
    "nuts": NUTS(chains=20, doublings=5),
    "pcn": CrankNicolson(chains=20),
    "slice": EllipticalSlice(chains=20),
    "smc": TemperedSMC(),
    "smc-pcn": TemperedSMC("pcn"),
    "ismc": InformedSMC(),
    "svgd": SVGD(),
    "psvgd": ProjectedSVGD(),
    "asvgd": AmortizedSVGD(blocks=2, hidden=8, batch=50, rate=5e-3),
    "laplace": LaplaceMixture(starts=12),
}
EXACT = ("hmc", "nuts", "pcn", "slice", "smc", "smc-pcn", "ismc")  # up to Monte Carlo error
GRADIENT = ("hmc", "nuts", "svgd", "psvgd", "asvgd", "laplace")
if importlib.util.find_spec("nifty") is not None:  # of which test_nifty.py says that it is missing
    SAMPLERS |= {"mgvi": MGVI(), "geovi": GeoVI(iterations=3, pairs=2)}
    GRADIENT += ("mgvi", "geovi")


@dataclasses.dataclass
class Counted:
    """Counts of fields simulated, and differentiated."""

    forward: int = 0
    vjp: int = 0


def two_modes_and_a_stiff_sum(derivative: bool = True) -> tuple[msign.InverseProblem, Counted]:
    """Observes u_0^2 = 1 and u_1 + u_2 = 1/2 of four whitened coordinates, in NumPy."""
    prior, counted = msign.LaplacePrior((2, 2), alpha=0.5, beta=2.0), Counted()
    whiten = np.asarray(prior.whiten(jnp.eye(4).reshape(4, 2, 2)), np.float64)  # u = x @ whiten

    def forward(x):
        counted.forward += len(x)
        u = x.reshape(-1, 4) @ whiten
        return np.stack([u[:, 0] ** 2, u[:, 1] + u[:, 2]], 1)

    def vjp(x, cotangents):
        counted.vjp += len(x)
        u = x.reshape(-1, 4) @ whiten
        slope = np.zeros_like(u)
        slope[:, 0] = 2 * u[:, 0] * cotangents[:, 0]
        slope[:, 1] = slope[:, 2] = cotangents[:, 1]
        return (slope @ whiten.T).reshape(x.shape)

    problem = msign.InverseProblem(
        prior,
        forward,
        [1.0, 0.5],
        noise_std=[0.25, 0.3],
        vjp=vjp if derivative else None,
        scales=1,
        name="known",
    )
    counted.forward = 0  # the constructor tries whether it is JAX code
    return problem, counted


def functions(u: np.ndarray) -> np.ndarray:
    """Functions `(n, 6)` whose means are known."""
    total, difference = u[:, 1] + u[:, 2], u[:, 1] - u[:, 2]
    return np.stack([np.sign(u[:, 0]), np.abs(u[:, 0]), total, total**2, difference**2, u[:, 3]], 1)


def exact() -> tuple[np.ndarray, np.ndarray, float]:
    """Means and variances of the functions, and the log evidence."""
    a = np.linspace(-6, 6, 20_001)
    density = np.exp(-0.5 * a**2 - 0.5 * ((a**2 - 1) / 0.25) ** 2) / np.sqrt(2 * np.pi)
    mass = density.sum() * (a[1] - a[0])
    size, square = (np.average(f, weights=density) for f in (np.abs(a), a**2))
    precision = 0.5 + 1 / 0.09  # of u_1 + u_2, whose prior variance is 2
    mean, variance = 0.5 / 0.09 / precision, 1 / precision
    second = mean**2 + variance
    fourth = mean**4 + 6 * mean**2 * variance + 3 * variance**2
    means = np.array([0.0, size, mean, second, 2.0, 0.0])
    variances = np.array([1.0, square - size**2, variance, fourth - second**2, 8.0, 1.0])
    # Noise leaves out its constant: N(1/2; 0, 2 + 0.09) times sqrt(2 pi) 0.3.
    log_gaussian = -0.5 * np.log((2 + 0.09) / 0.09) - 0.5 * 0.25 / (2 + 0.09)
    return means, variances, float(np.log(mass) + log_gaussian)
