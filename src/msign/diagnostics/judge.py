"""The paper's T / I / F "by eye" as numbers: a marginal against what it should be.

Along the critical direction a posterior has one mode or two. A method is assessed by the modes that
it found, by the balance between them, by the valley that separates them, and by its bias within
each. The thresholds stand in `Thresholds` alone, and are printed with every table.

What counts as a mode is settled before any method is looked at: by a symmetry of the posterior that
changes the sign along the direction, where there is one, else by the valley of the reference. The
symmetry comes first because it is exact: half of the mass lies on each side of zero, a method that
has less than a twentieth of its samples on one side has lost a mode, and that is so whether the
valley in between is deep or shallow. With a shallow one T says less: where the reference has a
valley of 0.75 or more of the peak, none of the samples' can be too high, so that separation is not
tested, and to keep the balance is easier than over a barrier. The depth is therefore printed
beside the letters.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
from scipy.stats import gaussian_kde, wasserstein_distance

from msign import checks

GRID = 400
NARROWER = 0.35  # factor on the usual width of density estimates, which is made for one mode
MOST = 5000  # values that a density is estimated from
EDGE = 0.05  # part of the values outside of which no valley is looked for
FEWEST = 10  # values that can tell anything


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """What makes a T (all of them) and an F (a mode is missing); I is everything between.

    Attributes:
        found: A mode is found if its share is at least this part of what it should be.
        balance: Largest error of a mode's share.
        separation: How much higher the valley may be than it should, over the lower peak.
        bias: Largest distance (Wasserstein, of order one) of the marginal within a mode from what
            it should be, in standard deviations within the mode.
        depth: Valley over the lower peak below which there are two modes.
    """

    found: float = 0.1
    balance: float = 0.1
    separation: float = 0.25
    bias: float = 0.5
    depth: float = 0.5

    def line(self) -> str:
        """The rule in words."""
        return (
            f"T: every mode has at least {self.found:g} of its share, shares are off by at most "
            f"{self.balance:g}, the valley is at most {self.separation:g} of the lower peak too "
            f"high, and the marginal within a mode is off by at most {self.bias:g} of its standard "
            "deviation. F: a mode is missing. I: all else."
        )


THRESHOLDS = Thresholds()


class Marginal(NamedTuple):
    """What the marginal along the critical direction should be.

    Attributes:
        values: Of reference samples `(n,)`.
        trough: Between two modes; None: there is one.
        depth: Density at the trough over the lower peak.
    """

    values: np.ndarray
    trough: float | None
    depth: float

    @classmethod
    def of(
        cls,
        values: np.ndarray,
        middle: float | None = None,
        thresholds: Thresholds = THRESHOLDS,
    ) -> "Marginal":
        """That of reference samples.

        With a `middle`, about which the posterior is symmetric, its halves are two modes, however
        shallow the valley between them.
        """
        t = np.asarray(values, np.float64)
        if middle is not None:
            return cls(t, middle, depth_at(t, middle))
        place, depth = deepest_valley(t)
        return cls(t, place if depth < thresholds.depth else None, depth)

    @property
    def shares(self) -> tuple[float, ...]:
        """Of the modes, from left to right."""
        return shares(self.values, self.trough)


class Judgement(NamedTuple):
    """How samples do along the critical direction.

    Attributes:
        letter: T, I or F.
        modes: Found, of those that there are.
        shares: Of the samples, in the modes that there should be.
        balance: Largest error of these.
        depth: Density of the samples at the trough over the lower peak.
        bias: As in `Thresholds`; infinite where a mode is missing.
    """

    letter: str
    modes: int
    shares: tuple[float, ...]
    balance: float
    depth: float
    bias: float


def judge(values: np.ndarray, truth: Marginal, thresholds: Thresholds = THRESHOLDS) -> Judgement:
    """Samples' values along the critical direction against what they should be."""
    t = checks.finite_array("values", values)
    own, wanted = shares(t, truth.trough), truth.shares
    found = [a >= thresholds.found * b for a, b in zip(own, wanted, strict=True)]
    balance = max(abs(a - b) for a, b in zip(own, wanted, strict=True))
    depth = 1.0 if truth.trough is None else depth_at(t, truth.trough)
    if not all(found):
        return Judgement("F", sum(found), own, balance, depth, float("inf"))
    pairs = zip(_sides(t, truth.trough), _sides(truth.values, truth.trough), strict=True)
    bias = max(wasserstein_distance(a, b) / b.std() for a, b in pairs)
    separated = truth.trough is None or depth <= truth.depth + thresholds.separation
    good = separated and balance <= thresholds.balance and bias <= thresholds.bias
    return Judgement("T" if good else "I", sum(found), own, balance, depth, float(bias))


def shares(values: np.ndarray, trough: float | None) -> tuple[float, ...]:
    """Parts of the values left and right of the trough, or all of them."""
    if trough is None:
        return (1.0,)
    right = float(np.mean(values > trough))
    return 1 - right, right


def deepest_valley(values: np.ndarray) -> tuple[float, float]:
    """Place of the deepest valley between two peaks, and its density over the lower peak's."""
    grid, density = estimated_density(values)
    left = np.maximum.accumulate(density)
    right = np.maximum.accumulate(density[::-1])[::-1]
    depth = density / np.minimum(left, right)
    low, high = np.quantile(values, [EDGE, 1 - EDGE])
    depth = np.where((grid > low) & (grid < high), depth, 1.0)
    place = int(np.argmin(depth))
    return float(grid[place]), float(depth[place])


def depth_at(values: np.ndarray, trough: float) -> float:
    """Density at a place over that of the lower of the peaks on both sides; 1 at most."""
    if len(np.unique(values)) < FEWEST:
        return 1.0
    grid, density = estimated_density(values)
    here = float(np.interp(trough, grid, density))
    peaks = [density[side].max() if side.any() else 0.0 for side in (grid <= trough, grid > trough)]
    return min(1.0, here / max(min(peaks), 1e-300))


def estimated_density(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A grid, and the density of the values on it."""
    some = np.asarray(values, np.float64)[:: -(-len(values) // MOST)]
    spread = max(float(np.ptp(some)), 1e-12)
    grid = np.linspace(some.min() - 0.1 * spread, some.max() + 0.1 * spread, GRID)
    if np.ptp(some) < 1e-12:
        return grid, np.ones(GRID) / (1.2 * spread)
    estimate = gaussian_kde(some, lambda k: NARROWER * k.scotts_factor())
    return grid, estimate(grid)


def _sides(values: np.ndarray, trough: float | None) -> list[np.ndarray]:
    return [values] if trough is None else [values[values <= trough], values[values > trough]]
