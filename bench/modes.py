"""How often the mode finder is right, on samples whose modes are known.

    python bench/modes.py [--seeds 50]

For each distribution, number of variables m and of points n: the fraction of seeds for which the
number of modes is right and, of several modes, every fraction within four standard errors.
"""

import argparse
from collections.abc import Callable

import numpy as np

from msign.diagnostics.modes import find_modes

Sample = Callable[[np.random.Generator, int, int], np.ndarray]


def gaussians(centres: np.ndarray, shares: list[float], spread: float = 1.0) -> Sample:
    def draw(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
        x = spread * rng.normal(size=(n, m))
        x[:, : centres.shape[1]] += centres[rng.choice(len(shares), n, p=shares)]
        return x

    return draw


def line(*places: float) -> np.ndarray:
    return np.array(places, float)[:, None]


def circle(k: int, radius: float) -> np.ndarray:
    angle = 2 * np.pi * np.arange(k) / k
    return radius * np.stack([np.cos(angle), np.sin(angle)], 1)


def banana(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    x = rng.normal(size=(n, m))
    x[:, 1] = 0.2 * x[:, 1] + x[:, 0] ** 2
    return x


def ring(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    x = rng.normal(size=(n, m))
    angle, radius = rng.uniform(0, 2 * np.pi, n), 3 + 0.2 * rng.normal(size=n)
    x[:, 0], x[:, 1] = radius * np.cos(angle), radius * np.sin(angle)
    return x


def heavy(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    return rng.normal(size=(n, m)) / np.sqrt(rng.chisquare(3, size=(n, 1)) / 3)


def funnel(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    x = rng.normal(size=(n, m))
    x[:, 1:] *= np.exp(0.5 * x[:, :1])
    return x


def curved(rng: np.random.Generator, n: int, m: int) -> np.ndarray:
    """Two modes on a curved ridge, narrower in the valley, whose marginal density is 0.35."""
    x = rng.normal(size=(n, m))
    x[:, 0] += 1.87 * rng.choice([-1, 1], n)
    x[:, 1] *= 0.9 + 0.1 * np.minimum(np.abs(x[:, 0]) / 1.87, 1)
    x[:, 1] += 0.3 * x[:, 0] ** 2
    return x @ np.linalg.qr(rng.normal(size=(m, m)))[0]


# Name: sample, masses of the modes in the order of `find_modes` (None: only their number counts).
CASES: dict[str, tuple[Sample, int, list[float] | None]] = {
    "Gaussian": (lambda rng, n, m: rng.normal(size=(n, m)), 1, None),
    "box": (lambda rng, n, m: rng.uniform(size=(n, m)), 1, None),
    "ridge": (lambda rng, n, m: rng.normal(size=(n, m)) * np.geomspace(1, 0.02, m), 1, None),
    "Student t": (heavy, 1, None),
    "exponential": (lambda rng, n, m: rng.exponential(size=(n, m)), 1, None),
    "funnel": (funnel, 1, None),
    "banana": (banana, 1, None),
    "ring": (ring, 1, None),
    "two at 4 std": (gaussians(line(-2, 2), [0.5, 0.5]), 2, [0.5, 0.5]),
    "two at 6 std": (gaussians(line(-3, 3), [0.5, 0.5]), 2, [0.5, 0.5]),
    "two, curved": (curved, 2, None),
    "0.03 : 0.97": (gaussians(line(-5, 5), [0.03, 0.97]), 2, [0.03, 0.97]),
    "three on a line": (gaussians(line(-8, 0, 8), [0.2, 0.3, 0.5]), 3, [0.2, 0.3, 0.5]),
    "four on a circle": (gaussians(circle(4, 6), [0.25] * 4), 4, None),
    "five on a circle": (gaussians(circle(5, 8), [0.2] * 5), 5, None),
}
PLANE = ("banana", "ring", "funnel", "two, curved", "four on a circle", "five on a circle")


def is_right(name: str, n: int, m: int, seed: int) -> bool:
    sample, count, shares = CASES[name]
    modes = find_modes(sample(np.random.default_rng(seed), n, m))
    if len(modes.fractions) != count:
        return False
    return shares is None or bool(np.all(np.abs(modes.fractions - shares) < 4 * modes.stderr))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--points", type=int, nargs="*", default=[200, 1000, 4000, 20_000])
    options = parser.parse_args()
    print(f"{'':18s}  m" + "".join(f"{n:>9d}" for n in options.points))
    for name in CASES:
        for m in (2, 6, 32) if name in PLANE else (1, 2, 6, 32):
            right = [
                np.mean([is_right(name, n, m, seed) for seed in range(options.seeds)])
                for n in options.points
            ]
            print(f"{name:18s} {m:2d}" + "".join(f"{r:9.2f}" for r in right), flush=True)


if __name__ == "__main__":
    main()
