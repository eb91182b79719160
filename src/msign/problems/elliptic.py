"""The paper's elliptic problem (section 6.1.2, appendix F): log-permeability from fluid pressure.

-div(e^x grad u) = f on the unit square, u = 0 on its edge; 15 local averages of u are observed.
Load and observations are mirror symmetric in s2, the truth is antisymmetric: the posterior has two
modes, mirror images of each other.
"""

import numpy as np
from numpy.typing import ArrayLike

from msign import checks
from msign.priors import LaplacePrior
from msign.problems.inverse import InverseProblem

GAMMA = 0.02
WELLS = ((2, 0.25, 0.3), (2, 0.25, 0.7), (-1, 0.7, 0.3), (-1, 0.7, 0.7))
HARD_SCALE = 64.0


def elliptic(
    size: int = 64,
    observation_scale: float = 16.0,
    hard: bool = False,
    noise_seed: int | None = None,
    inflate: int = 300,
    gamma: float = GAMMA,
) -> InverseProblem:
    """The elliptic problem on size x size cells.

    Args:
        size: Cells per side, a power of two, at least 16.
        observation_scale: Factor on the L2-normalised observations; 1 makes the posterior
            unimodal, 16 separates its modes by 11 nats.
        hard: The discrete normalisation, an observation scale of 64: a barrier of some 430 nats.
        noise_seed: Add noise of this seed to the data; None: noise-free data.
        inflate: Prior draws that estimate the discretisation error, which inflates the noise of the
            coarser scales; 0: off.
        gamma: Standard deviation of the noise.
    """
    from msign.problems.fem import EllipticSolver  # and with it Numba, which others need not have

    if checks.integer("size", size, 16) & (size - 1):
        raise ValueError(f"size must be a power of two, got {size}")
    scale = HARD_SCALE if hard else checks.positive("observation_scale", observation_scale)
    solver = EllipticSolver(size, load, scale * observation_patches(size) / size**2)
    data = solver.observe(truth(size))
    if noise_seed is not None:
        noise = np.random.default_rng(checks.integer("noise_seed", noise_seed, 0))
        data = data + gamma * noise.normal(size=len(data))
    return InverseProblem(
        LaplacePrior((size, size), alpha=0.5, beta=2.0),
        solver.observe,
        data,
        noise_std=checks.positive("gamma", gamma),
        vjp=solver.vjp,
        forward_and_vjp=solver.observe_and_vjp,
        inflate=inflate,
        name="elliptic",
        symmetry=mirror,
        truth=truth(size),
    )


def truth(size: int) -> np.ndarray:
    """sin(pi s1) sin(2 pi s2) at the cells' centres."""
    s = (np.arange(size) + 0.5) / size
    return np.sin(np.pi * s)[:, None] * np.sin(2 * np.pi * s)


def load(s1: np.ndarray, s2: np.ndarray) -> np.ndarray:
    """The right-hand side f: two sources and two sinks (f4 = (0.7, 0.7)).

    The paper gives f4 the centre of f3, which would break the symmetry that it relies on.
    """
    bumps = [a * np.exp(-10 * ((s1 - b) ** 2 + (s2 - c) ** 2)) for a, b, c in WELLS]
    return 50 / np.pi * np.sum(bumps, axis=0)


def observation_patches(size: int) -> np.ndarray:
    """The 15 measurement functions `(15, size, size)`, each of L2 norm one.

    A patch is the cells whose centres lie within 1/16 of its own in each coordinate. Five columns
    in s1 of three functions each: one patch on the axis of symmetry, and two mirrored pairs.
    """
    s = (np.arange(size) + 0.5) / size
    patches = []
    for column, offset in patch_centres():
        across = np.abs(s - column) <= 1 / 16
        along = (np.abs(s - 0.5 - offset) <= 1 / 16) | (np.abs(s - 0.5 + offset) <= 1 / 16)
        patch = np.outer(across, along).astype(float)
        patches.append(patch / np.sqrt(patch.sum() / size**2))
    return np.stack(patches)


def patch_centres() -> list[tuple[float, float]]:
    """Of each measurement function: s1 of its patches, and their distance from the axis."""
    return [(column / 6, offset) for column in range(1, 6) for offset in (0, 1 / 6, 1 / 3)]


def mirror(x: ArrayLike) -> np.ndarray:
    """The field reflected in s2, under which the posterior does not change."""
    return np.asarray(x)[..., ::-1]
