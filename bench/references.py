"""Long runs of methods that need no flow, compiled as a whole: NUTS, and tempered SMC.

For problems whose forward map is JAX code, in whitened coordinates, where the prior is standard
normal. They share the problem with msign, and nothing else: their transitions are BlackJAX's.
"""

import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import msign

LogLikelihood = Callable[[jax.Array], jax.Array]


def log_likelihood(problem: msign.InverseProblem) -> LogLikelihood:
    """Of one field in whitened coordinates `(d,)`; independent Gaussian noise without a matrix."""
    prior, layout, covariance = problem.prior, problem.layout, problem.noise_cov
    if covariance is None:
        given = problem.likelihood

        def value(predicted: jax.Array) -> jax.Array:
            return given.log_likelihood(given.features(predicted))

    else:
        std = np.sqrt(np.diag(covariance))
        assert np.array_equal(covariance, np.diag(std**2)), "noise must be independent"

        def value(predicted: jax.Array) -> jax.Array:
            return -0.5 * jnp.sum(((problem.data - predicted) / std) ** 2, -1)

    return lambda u: value(layout.flat(problem.forward(prior.unwhiten(u[None]))))[0]


# --- moments of all cells, with their errors ------------------------------------------------------


class Moments(NamedTuple):
    """Of all cells `(d,)`: means, standard deviations, and the standard errors of both."""

    mean: np.ndarray
    std: np.ndarray
    mean_error: np.ndarray
    std_error: np.ndarray

    def differences(self, other: "Moments") -> tuple[np.ndarray, np.ndarray]:
        """Of means and of standard deviations, in units of their combined standard errors."""
        return (
            (self.mean - other.mean) / np.hypot(self.mean_error, other.mean_error),
            (self.std - other.std) / np.hypot(self.std_error, other.std_error),
        )


def moments(x: np.ndarray, average: Callable, error: Callable) -> Moments:
    """From samples `(..., d)`, a way to average them and the standard error of such averages."""
    mean = average(x)
    squares = (x - mean) ** 2
    std = np.sqrt(average(squares))
    return Moments(mean, std, error(x), error(squares) / (2 * std))


def weighted_moments(x: np.ndarray, log_weights: np.ndarray) -> Moments:
    """Of independent draws `(n, d)` with importance weights."""
    w = np.exp(log_weights - log_weights.max())
    w /= w.sum()

    def average(values: np.ndarray) -> np.ndarray:
        return w @ values

    return moments(x, average, lambda v: np.sqrt(w**2 @ (v - average(v)) ** 2))


# --- NUTS -----------------------------------------------------------------------------------------


class Chains(NamedTuple):
    """What long chains say.

    Attributes:
        moments: Of all cells.
        rhat: Of means and of squared deviations, the largest of all cells.
        least: Effective draws of the worst cell, of means and of squared deviations.
        draws: In all chains together.
        leapfrogs: Gradients of all chains, warm-up left out.
        seconds: With warm-up and compiling.
    """

    moments: Moments
    rhat: tuple[float, float]
    least: tuple[float, float]
    draws: int
    leapfrogs: int
    seconds: float

    def save(self, path: pathlib.Path) -> None:
        np.savez(path, moments=np.stack(self.moments), others=np.array([*self.rhat, *self.least]),
                 counts=[self.draws, self.leapfrogs, self.seconds])  # fmt: skip

    @classmethod
    def load(cls, path: pathlib.Path) -> "Chains":
        with np.load(path) as kept:
            a, b, c, d = kept["others"].tolist()
            draws, leapfrogs, seconds = kept["counts"].tolist()
            return cls(
                Moments(*kept["moments"]), (a, b), (c, d), int(draws), int(leapfrogs), seconds
            )


def nuts(problem: msign.InverseProblem, chains: int, warm_up: int, draws: int, seed: int) -> Chains:
    """Chains that begin at draws of the prior, each with its own window adaptation (Stan's)."""
    import blackjax
    from blackjax.diagnostics import effective_sample_size, potential_scale_reduction

    likelihood = log_likelihood(problem)
    began = time.monotonic()

    def log_density(u: jax.Array) -> jax.Array:
        return likelihood(u) - 0.5 * jnp.sum(u**2)

    def run(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        first, second, third = jr.split(key, 3)
        adaptation = blackjax.window_adaptation(
            blackjax.nuts, log_density, adaptation_info_fn=lambda *_: ()
        )
        found, _ = adaptation.run(second, jr.normal(first, (problem.dim,)), warm_up)
        kernel = blackjax.nuts(log_density, **found.parameters).step

        def step(state: Any, key: jax.Array) -> Any:
            state, info = kernel(key, state)
            return state, (problem.prior.unwhiten(state.position), info.num_integration_steps)

        return jax.lax.scan(step, found.state, jr.split(third, draws))[1]

    fields, leapfrogs = jax.jit(jax.vmap(run))(jr.split(jr.key(seed), chains))
    x = np.asarray(fields, np.float64).reshape(chains, draws, -1)
    seen: list[tuple[float, float]] = []

    def error(values: np.ndarray) -> np.ndarray:
        parts = np.array_split(values.astype(np.float32), -(-values.shape[2] // 64), axis=2)
        effective = np.concatenate([effective_sample_size(part) for part in parts])
        rhat = max(float(np.max(potential_scale_reduction(part))) for part in parts)
        seen.append((rhat, float(effective.min())))
        return values.std((0, 1)) / np.sqrt(effective)

    found = moments(x, lambda v: v.mean((0, 1)), error)
    rhat, least = zip(*seen, strict=True)
    count = int(np.sum(leapfrogs))
    return Chains(found, rhat, least, chains * draws, count, time.monotonic() - began)


# --- tempered SMC from the prior ------------------------------------------------------------------


class Setting(NamedTuple):
    """One way to run it: particles, trajectories of each per temperature, leapfrogs of each."""

    particles: int = 4096
    sweeps: int = 1
    leapfrogs: int = 5
    ess: float = 0.5


class Cloud(NamedTuple):
    """What it ends with; `nfs` counts a simulation for each value and one for each gradient."""

    fields: np.ndarray
    log_evidence: float
    temperatures: int
    acceptance: float
    nfs: int
    seconds: float
    cpu: float


WANTED, GAIN = 0.8, 1.0  # acceptance that step sizes are adapted to, and how fast
FIRST_STEP = 0.3
QUARTER = (
    np.pi / 2
)  # of a period of unit frequency; after half of one a particle is its mirror image
AT_ONCE = 512  # particles that are moved by one call of compiled code


def tempered(problem: msign.InverseProblem, setting: Setting, seed: int) -> Cloud:
    """Adaptive tempered SMC, its particles moved by HMC with their own variances as masses.

    That is tuned in its favour: with one mass for all directions steps are those of the stiffest.
    """
    from blackjax.mcmc import hmc
    from blackjax.smc import ess, resampling, solver

    began, cpu = time.monotonic(), time.process_time()
    likelihood, kernel = log_likelihood(problem), hmc.build_kernel()
    values = jax.jit(jax.vmap(likelihood))

    @jax.jit
    def moved(u: jax.Array, key: jax.Array, t: Any, step: Any, mass: jax.Array) -> Any:
        def log_density(u: jax.Array) -> jax.Array:
            return t * likelihood(u) - 0.5 * jnp.sum(u**2)

        def one(u: jax.Array, key: jax.Array) -> Any:
            longest = QUARTER / setting.leapfrogs
            size = jnp.minimum(step, longest) * jr.uniform(key, minval=0.8, maxval=1.2)
            state, info = kernel(
                jr.fold_in(key, 1), hmc.init(u, log_density), log_density, size, mass,
                setting.leapfrogs,
            )  # fmt: skip
            return state.position, info.acceptance_rate

        u, rate = jax.vmap(one)(u, jr.split(key, len(u)))
        return u, jax.vmap(likelihood)(u), rate

    n, key = setting.particles, jr.key(seed)
    u = jr.normal(key, (n, problem.dim))
    parts = [slice(i, i + AT_ONCE) for i in range(0, n, AT_ONCE)]
    l = jnp.concatenate([values(u[part]) for part in parts])
    t, step, log_z, nfs, rates = 0.0, FIRST_STEP, 0.0, n, list[float]()
    steps = 0
    while t < 1:
        key, top = jr.fold_in(key, 1), l.max()
        rise = float(ess.ess_solver(lambda a: a, l - top, setting.ess, 1 - t, solver.dichotomy))
        rise = 1 - t if not rise < 1 - t else rise
        log_weights = np.asarray(rise * (l - top), np.float64)
        weights = np.exp(log_weights)
        log_z += rise * float(top) + float(np.log(weights.mean()))
        weights = jnp.asarray(weights / weights.sum())
        u = u[resampling.systematic(jr.fold_in(key, 2), weights, n)]
        t, steps = (1.0 if rise == 1 - t else t + rise), steps + 1
        for k in range(setting.sweeps):
            mass, own = u.var(0), jr.fold_in(jr.fold_in(key, 3), k)
            found = [
                moved(u[part], jr.fold_in(own, i), t, step, mass) for i, part in enumerate(parts)
            ]
            u, l, rate = (jnp.concatenate(a) for a in zip(*found, strict=True))
            rates.append(float(rate.mean()))
            step = min(1.0, step * float(np.exp(GAIN * (rates[-1] - WANTED))))
            nfs += 2 * n * setting.leapfrogs
    fields = np.asarray(problem.prior.unwhiten(u)).reshape(n, -1)
    return Cloud(
        fields, log_z, steps, float(np.mean(rates)), nfs,
        time.monotonic() - began, time.process_time() - cpu,
    )  # fmt: skip
