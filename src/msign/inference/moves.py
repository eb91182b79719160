"""Markov moves of many particles at once, of a density N(z; 0, I) exp(f(z)) in any dimension.

With an angle a, a slope g and fresh standard normal numbers e, the proposal is

    y' = cos(a) y + sin(a) (e + tan(a / 2) g),

preconditioned Crank-Nicolson (pCN) for g = 0 and the Langevin proposal of the same semi-implicit
scheme for g the gradient of f (Cotter, Roberts, Stuart and White 2013): their acceptance does not
fall as the lattice is refined. Both take the standard normal density as a reference, so they are
made in a `Frame`: coordinates y in which particles have mean zero and at most unit covariance along
the directions that data determine. Without it, one stiff direction makes small steps of all.

Moves inside these directions and outside of them take turns, each with an angle of its own: two
narrow modes allow small steps between them only, while all other coordinates are drawn anew.
"""

from typing import NamedTuple

import numpy as np

STEEP = 0.05  # mean square slope along a direction that is worth to know the covariance there
SLOPES = 256  # of which directions are found
LARGEST = np.pi / 2  # angle at which a proposal forgets where it came from
GAIN = 1.5  # how fast the logarithm of the angle follows the acceptance


class Frame(NamedTuple):
    """Coordinates y of z: those along some directions standardised, all others as they are.

    Attributes:
        basis: Orthonormal directions `(d, m)`.
        mean: Of z along them `(m,)`.
        root: Cholesky factor of a covariance no smaller than that of z `(m, m)`.
    """

    basis: np.ndarray
    mean: np.ndarray
    root: np.ndarray

    @classmethod
    def of(cls, z: np.ndarray, basis: np.ndarray) -> "Frame":
        """That of particles `(n, d)`, along far fewer orthonormal directions `(d, m)`.

        Large proposals forget where they came from: what they reach is the reference. One that is
        narrower than the density reaches its tails too rarely, particles lag behind, the next
        reference is narrower still, and families, which all share it, do not show it. A covariance
        of n draws is too small by (1 - sqrt(m / n))^2 along its worst direction (Marchenko and
        Pastur), so it is made larger by as much.
        """
        r = (z @ basis).astype(np.float64)
        n, m = r.shape
        covariance = np.cov(r.T).reshape(m, m) + 1e-6 * np.eye(m)
        widened = covariance / (1 - np.sqrt(m / n)) ** 2
        return cls(basis, r.mean(0), np.linalg.cholesky(widened))

    @property
    def is_whole(self) -> bool:
        """Whether nothing is outside of the directions."""
        return self.basis.shape[0] == self.basis.shape[1]

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

    def part(self, a: np.ndarray, inside: bool) -> np.ndarray:
        """Components of vectors inside or outside of the directions."""
        inner = (a @ self.basis) @ self.basis.T
        return inner if inside else a - inner

    def _replaced(self, a: np.ndarray, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        return a + ((new - old) @ self.basis.T).astype(a.dtype)


def steep_directions(slope: np.ndarray, most: int) -> np.ndarray:
    """Orthonormal directions `(d, m)` along which slopes `(n, d)` are not small, `most` at most.

    Where the mean square slope of f along a direction is small, the density there is close to
    standard normal (Zahm, Cui, Law, Spantini and Marzouk 2022).
    """
    some = slope[:: -(-len(slope) // SLOPES)].astype(np.float64)
    squares, left = np.linalg.eigh(some @ some.T / len(some))
    found = np.flatnonzero(squares > STEEP)[::-1][:most]
    return (some.T @ left[:, found] / np.sqrt(len(some) * squares[found])).astype(slope.dtype)


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
