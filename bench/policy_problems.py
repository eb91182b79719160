"""Problems on which thresholds are measured: three or more for each part of the engine.

None is the paper's. A fit of each takes seconds. `KINDS` says which parts of the engine a problem
calls: curves of one variable, maps of two, flows trained on an emulator, flows trained on a pool by
gradient steps (a log-likelihood alone), starts without a derivative, a start at the finest scale
with data in every cell, the same without a derivative, and networks on whole small lattices.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import msign
from msign.inference.flows import FlowKind
from rich_problems import cox_process, exp_in_every_cell
from small_problems import (
    few_coordinates,
    four_modes,
    ring,
    six_modes,
    skewed,
    uneven_modes,
)

TRUTH = 99  # seed of the field behind the data


def bent(size: int = 8) -> msign.InverseProblem:
    """Six variables: the first has two modes, others bend with it or are nearly linear."""
    return few_coordinates("bent", size, 6, _bent, _BENT, 0.2, scales=2)


def near(size: int = 8) -> msign.InverseProblem:
    """Ten variables, nearly linear, observed to a twentieth of their prior deviations."""

    def forward(c):
        return c + 0.1 * c * jnp.roll(c, 1, axis=1)

    truth = np.random.default_rng(0).normal(size=10)
    data = np.asarray(forward(jnp.asarray(truth)[None]))[0]
    return few_coordinates("near", size, 10, forward, list(data), 0.05, scales=2)


def counts() -> msign.InverseProblem:
    """Counts in eight parts of a line of 32 cells."""
    prior = msign.LaplacePrior((32,), alpha=0.5, beta=6.0)
    truth = np.asarray(prior.sample(jax.random.key(TRUTH), 1)[0])
    rates = _log_rates(truth[None])[0]
    data = np.random.default_rng(1).poisson(np.exp(rates))
    return msign.InverseProblem(
        prior, _log_rates, data, likelihood=msign.likelihoods.Poisson(), scales=2, name="counts"
    )


def cube(black_box: bool = False) -> msign.InverseProblem:
    """Five exponentials of averages over parts of 4 x 4 x 4 cells."""
    prior = msign.LaplacePrior((4, 4, 4), alpha=0.5, beta=8.0)
    parts = np.random.default_rng(2).uniform(size=(64, 5)) ** 4
    parts /= parts.sum(0)
    xp = np if black_box else jnp

    def forward(x):
        return xp.exp(xp.reshape(xp.asarray(x), (len(x), 64)) @ parts.astype(np.float32))

    truth = np.asarray(prior.sample(jax.random.key(TRUTH), 1))
    data = np.asarray(forward(truth))[0] + 0.1 * np.random.default_rng(1).normal(size=5)
    return msign.InverseProblem(prior, forward, data, 0.1, scales=2, name="cube")


def shell() -> msign.InverseProblem:
    """A thin shell in three variables, by its log-likelihood alone."""
    return _density("shell", 3, lambda c: (c**2).sum(1, keepdims=True), [2.0], 0.25)


def wells() -> msign.InverseProblem:
    """Two uneven wells in each of two variables, two more that bend with them, as a density."""

    def forward(c):
        a, b, c, d = jnp.moveaxis(c, 1, 0)
        return jnp.stack([a**2 + 0.1 * a, b**2 - 0.15 * b, c + 0.5 * a * b, d - a], 1)

    return _density("wells", 4, forward, [1.0, 1.0, 0.3, 0.2], 0.25)


def density() -> msign.InverseProblem:
    """`bent` by its log-likelihood alone."""
    return _density("density", 6, _bent, _BENT, 0.2)


def box_line() -> msign.InverseProblem:
    """Three squares and products of averages over 64 cells of a line, without a derivative."""
    prior = msign.LaplacePrior((64,), alpha=0.5, beta=6.0)
    s = (np.arange(64) + 0.5) / 64
    parts = np.exp(-0.5 * ((s[:, None] - [0.2, 0.4, 0.6, 0.8]) / 0.05) ** 2)
    parts /= parts.sum(0)

    def forward(x):
        a, b, c, d = np.moveaxis(np.asarray(x) @ parts, 1, 0)
        return np.stack([a * b, np.exp(c), d + 0.3 * a**2], 1)

    return msign.InverseProblem(prior, forward, [0.5, 1.5, -0.3], 0.1, scales=3, name="box line")


def box_ring() -> msign.InverseProblem:
    """The ring on 8 x 8 cells, without a derivative."""
    return _in_numpy(ring(8, scales=2))


def tails() -> msign.InverseProblem:
    """Cubes in all of 64 cells of a line, one in ten far off, with Student's noise."""
    prior = msign.LaplacePrior((64,), alpha=0.5, beta=6.0)
    truth = np.asarray(prior.sample(jax.random.key(TRUTH), 1))
    rng = np.random.default_rng(1)
    data = (truth + 0.2 * truth**3)[0] + 0.1 * rng.standard_t(3, size=64)
    data[::10] += rng.normal(size=7)
    likelihood = msign.likelihoods.StudentT(scale=0.1, df=3)
    return msign.InverseProblem(
        prior, lambda x: x + 0.2 * x**3, data, likelihood=likelihood, name="tails"
    )


def box_cubic() -> msign.InverseProblem:
    """Cubes in all of 16 cells of a line, without a derivative."""
    prior = msign.LaplacePrior((16,), alpha=0.5, beta=6.0)
    truth = np.asarray(prior.sample(jax.random.key(TRUTH), 1))
    data = (truth + 0.2 * truth**3)[0] + 0.2 * np.random.default_rng(1).normal(size=16)
    return msign.InverseProblem(
        prior, lambda x: np.asarray(x) + 0.2 * np.asarray(x) ** 3, data, 0.2, name="box cubic"
    )


_BENT = [1.0, 0.8, 1.2, -0.3, 0.5]


def _bent(c):
    a, b, c, d, e, f = jnp.moveaxis(c, 1, 0)
    bending = jnp.exp(0.5 * c) + 0.3 * b * d
    return jnp.stack([a**2 + 0.2 * a, b + 0.5 * a**2, bending, d - e, jnp.sin(e) + f], 1)


def _log_rates(x):
    return 1.0 + x.reshape(len(x), 8, 4).mean(2)


def _density(
    name: str, count: int, forward: Callable, data: list[float], noise: float
) -> msign.InverseProblem:
    """A problem on 4 x 4 cells that is a log-likelihood alone."""
    given = few_coordinates(name, 4, count, forward, data, noise, scales=2)
    observe, wanted = given.forward, jnp.asarray(data)

    def log_likelihood(x):
        return -0.5 * (((observe(x) - wanted.astype(x.dtype)) / noise) ** 2).sum(1)

    return msign.InverseProblem(given.prior, log_likelihood=log_likelihood, scales=2, name=name)


def _in_numpy(given: msign.InverseProblem) -> msign.InverseProblem:
    """The same problem without a derivative."""
    inside = jax.jit(given.forward)

    def forward(x):
        return np.asarray(inside(jnp.asarray(x)))

    return msign.InverseProblem(
        given.prior, forward, given.data, 0.25, scales=given.scales, name=given.name
    )


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem with its budget.

    Attributes:
        kind: The part of the engine that learns it.
        make: The problem.
        budget: Of a fit.
        flow: Where it is not chosen.
    """

    kind: str
    make: Callable[[], msign.InverseProblem]
    budget: int
    flow: FlowKind | None = None


LINE, PLANE, EMULATED, STEPS = "line", "plane", "emulated", "steps"
BOX, RICH, RICH_BOX, GLOW = "box", "rich", "rich box", "glow"
SMALL = msign.Informed(msign.InformedConfig(blocks=4, hidden=32))
SMALL_GLOW = msign.Glow(msign.GlowConfig(blocks=4, hidden=16))
CASES: dict[str, Case] = {
    "uneven": Case(LINE, uneven_modes, 60_000),
    "six modes": Case(LINE, six_modes, 60_000),
    "skewed": Case(LINE, skewed, 60_000),
    "ring": Case(PLANE, lambda: ring(8, scales=2), 30_000),
    "four modes": Case(PLANE, lambda: four_modes(8, scales=2), 30_000),
    "bent": Case(EMULATED, bent, 20_000, SMALL),
    "near": Case(EMULATED, near, 20_000, SMALL),
    "counts": Case(EMULATED, counts, 20_000, SMALL),
    "cube": Case(EMULATED, cube, 20_000, SMALL),
    "shell": Case(STEPS, shell, 15_000, SMALL),
    "wells": Case(STEPS, wells, 15_000, SMALL),
    "density": Case(STEPS, density, 15_000, SMALL),
    "box line": Case(BOX, box_line, 20_000, SMALL),
    "box ring": Case(BOX, box_ring, 20_000, SMALL),
    "box cube": Case(BOX, lambda: cube(black_box=True), 20_000, SMALL),
    "exp": Case(RICH, lambda: exp_in_every_cell(8), 40_000),
    "cox": Case(RICH, lambda: cox_process(8, 30.0), 40_000),
    "tails": Case(RICH, tails, 40_000),
    "box exp": Case(
        RICH_BOX, lambda: exp_in_every_cell(4, black_box=True), 10_000, msign.Cellwise()
    ),
    "box cox": Case(RICH_BOX, lambda: box_cox(), 10_000, msign.Cellwise()),
    "box cubic": Case(RICH_BOX, box_cubic, 10_000, msign.Cellwise()),
    "glow ring": Case(GLOW, lambda: ring(4, scales=2), 60_000, SMALL_GLOW),
    "glow bent": Case(GLOW, lambda: bent(4), 60_000, SMALL_GLOW),
    "glow four": Case(GLOW, lambda: four_modes(4, scales=2), 60_000, SMALL_GLOW),
    "glow shell": Case(GLOW, shell, 20_000, SMALL_GLOW),
    "glow wells": Case(GLOW, wells, 20_000, SMALL_GLOW),
    "glow density": Case(GLOW, density, 20_000, SMALL_GLOW),
}


def box_cox() -> msign.InverseProblem:
    """Counts in all of 4 x 4 cells, without a derivative."""
    given = cox_process(4, 20.0)
    prior, counts = given.prior, given.data
    offset = float(np.log(20 / 16) - 1.91 / 2)
    return msign.InverseProblem(
        prior,
        lambda x: np.asarray(x).reshape(len(x), -1) + offset,
        counts,
        likelihood=msign.likelihoods.Poisson(),
        name="box cox",
    )
