"""Markov moves of many particles at once, of a density N(z; 0, I) exp(f(z)) in any dimension.

With an angle a, a slope g and fresh standard normal numbers e, the proposal is

    y' = cos(a) y + sin(a) (e + tan(a / 2) g),

preconditioned Crank-Nicolson (pCN) for g = 0 and the Langevin proposal of the same semi-implicit
scheme for g the gradient of f (Cotter, Roberts, Stuart and White 2013): their acceptance does not
fall as the lattice is refined. Both need the standard normal density as a reference, so they are made
in a `Frame`: coordinates y in which the particles themselves have mean zero and unit covariance
along the directions that data determine. One angle then serves all coordinates.
"""

from typing import NamedTuple

import numpy as np

PER_VARIABLE = 10  # particles for each variable whose covariance they estimate
LARGEST = np.pi / 2  # angle at which a proposal forgets where it came from
GAIN = 1.5  # how fast the logarithm of the angle follows the acceptance


class Frame(NamedTuple):
    """Coordinates y of z: those along some directions standardised, all others as they are.

    Attributes:
        basis: Orthonormal directions `(d, m)`.
        mean: Of z along them `(m,)`.
        root: Cholesky factor of its covariance `(m, m)`.
    """

    basis: np.ndarray
    mean: np.ndarray
    root: np.ndarray

    @classmethod
    def of(cls, z: np.ndarray, basis: np.ndarray | None) -> "Frame":
        """That of particles `(n, d)`; along no direction where they are too few to say."""
        d = z.shape[1]
        directions = (
            np.eye(d, dtype=z.dtype) if basis is None and len(z) >= PER_VARIABLE * d else basis
        )
        if directions is None or len(z) < PER_VARIABLE * directions.shape[1]:
            return cls(np.zeros((d, 0), z.dtype), np.zeros(0), np.zeros((0, 0)))
        r = (z @ directions).astype(np.float64)
        covariance = np.cov(r.T).reshape(2 * r.shape[1:]) + 1e-6 * np.eye(r.shape[1])
        return cls(directions, r.mean(0), np.linalg.cholesky(covariance))

    def enter(self, z: np.ndarray) -> np.ndarray:
        """From z to y."""
        r = z @ self.basis
        return self._replaced(z, r, np.linalg.solve(self.root, (r - self.mean).T).T)

    def leave(self, y: np.ndarray) -> np.ndarray:
        """From y to z."""
        r = y @ self.basis
        return self._replaced(y, r, r @ self.root.T + self.mean)

    def log_change(self, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Log N(z; 0, I) - log N(y; 0, I), up to a constant `(n,)`."""
        inner, outer = ((a @ self.basis).astype(np.float64) for a in (y, z))
        return 0.5 * (inner**2 - outer**2).sum(1)

    def slope(self, y: np.ndarray, z: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Gradient in y of f + log_change, from that of f in z."""
        s, inner, outer = (a @ self.basis for a in (slope, y, z))
        return self._replaced(slope, s, (s - outer) @ self.root + inner)

    def _replaced(self, a: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        return a + ((new - old) @ self.basis.T).astype(a.dtype)


def proposed(
    y: np.ndarray, slope: np.ndarray | None, noise: np.ndarray, angle: float
) -> np.ndarray:
    """Proposals `(n, d)` by standard normal noise."""
    drift = noise if slope is None else noise + np.tan(angle / 2) * slope
    return (np.cos(angle) * y + np.sin(angle) * drift).astype(y.dtype)


def log_drift(
    y: np.ndarray, new: np.ndarray, slope: np.ndarray | None, angle: float
) -> np.ndarray | float:
    """Log-density of the proposal `new` from y over that of pCN, which the reference balances."""
    if slope is None:
        return 0.0
    e = (new - np.cos(angle) * y) / np.sin(angle)
    drift = np.tan(angle / 2) * slope
    return np.einsum("ni,ni->n", e - 0.5 * drift, drift, dtype=np.float64)


def adapted(angle: float, acceptance: float, wanted: float) -> float:
    """The angle of the next proposals, towards a wanted acceptance."""
    return float(min(LARGEST, angle * np.exp(GAIN * (acceptance - wanted))))
