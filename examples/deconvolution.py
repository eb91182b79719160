"""A positive signal behind a blur: 64 readings of a spectrum of 128 channels.

    msign run examples/deconvolution.py --budget 5e4 --out runs/deconvolution

The instrument smears the spectrum. Its logarithm has a Gaussian prior, so that the spectrum itself
is positive, and the forward map is not linear in the field.
"""

import jax.numpy as jnp
import numpy as np

import msign

CELLS, READINGS, WIDTH, NOISE = 128, 64, 0.03, 0.06

s = (np.arange(CELLS) + 0.5) / CELLS
centres = np.linspace(0.03, 0.97, READINGS)
blur = np.exp(-0.5 * ((s - centres[:, None]) / WIDTH) ** 2)
blur /= blur.sum(1, keepdims=True)

lines = ((0.25, 0.035, 2.5), (0.41, 0.035, 1.5), (0.7, 0.06, 2.0))  # where, how wide, how high
spectrum = 0.3 + sum(h * np.exp(-0.5 * ((s - c) / w) ** 2) for c, w, h in lines)
readings = blur @ spectrum + NOISE * np.random.default_rng(0).normal(size=READINGS)


def forward(x):
    """Readings of a spectrum exp(x)."""
    return jnp.exp(x) @ jnp.asarray(blur.T, x.dtype)


prior = msign.LaplacePrior((CELLS,), 0.5, 20.0, kappa=12.0, boundary="neumann", mean=-0.5)
problem = msign.InverseProblem(
    prior, forward, readings, noise_std=NOISE, name="deconvolution", truth=np.log(spectrum)
)
