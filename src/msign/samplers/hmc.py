"""Hamiltonian Monte Carlo (Neal 2011) and NUTS (Hoffman and Gelman 2014) in whitened coordinates.

There the prior is standard normal, so that the unit mass matrix is the prior's.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from msign import checks
from msign.problems import InverseProblem, Simulator
from msign.samplers.base import Drawn, Sampler, require, require_derivative
from msign.samplers.chains import (
    FIRST_SIZE,
    Kernel,
    Population,
    mean_acceptance,
    sampled,
    tuned,
)
from msign.samplers.lockstep import log_posterior

ACCEPTED = (0.3, 0.75)  # acceptance at which the paper calls a chain well mixed (appendix F)
JITTER = 0.2  # of the step size, so that no direction is passed through in whole periods
PHASES = 3  # of burn-in: the step size is tuned, lengths are tried, and it is tuned again


@dataclasses.dataclass(frozen=True)
class HMC(Sampler):
    """HMC with a step size tuned to an acceptance, and a length chosen among a few.

    Attributes:
        chains: Number of chains.
        lengths: Leapfrog steps of a trajectory that are tried; the one that moves farthest for its
            simulations, with an acceptance of 30 to 75 percent, is used.
        wanted: Acceptance that the step size is tuned to.
        burn_in: Part of the budget.
    """

    chains: int = 50
    lengths: tuple[int, ...] = (4, 8, 16, 32)
    wanted: float = 0.6
    burn_in: float = 0.2

    def __post_init__(self) -> None:
        checks.integer("chains", self.chains, 1)
        for length in self.lengths:
            checks.integer("lengths", length, 1)

    def check(self, problem: InverseProblem) -> None:
        require_derivative(problem, "HMC")

    def draw(self, simulator: Simulator, scale: int, n: int, key: PRNGKeyArray) -> Drawn:
        chains, begin = min(self.chains, n), simulator.nfs
        cost = 2 * chains
        require(simulator, cost * (1 + 4 * min(self.lengths)), f"HMC with {chains} chains")
        until = begin + int(self.burn_in * simulator.left)
        population = Population(_hmc(), simulator, scale, chains, key)
        middle = sorted(self.lengths)[len(self.lengths) // 2]
        affordable = (until - simulator.nfs) // (20 * cost)  # twenty sweeps to tune with
        first = max(min(self.lengths), min(middle, affordable))
        ends = np.linspace(simulator.nfs, until, 1 + PHASES).astype(int)
        size = tuned(population, FIRST_SIZE, self.wanted, ends[1], (np.int32(first),))
        length, tried = self._best(population, size, ends[2], first)
        size = tuned(population, size, self.wanted, until, (np.int32(length),))
        information = {"step_size": size, "length": length, "tried": tried}
        return sampled(population, n, size, (np.int32(length),), information)

    def _best(
        self, population: Population, size: float, until: int, first: int
    ) -> tuple[int, dict[str, Any]]:
        """The length that moves farthest per simulation, and what was seen of each."""
        simulator, tried = population.simulator, {}
        share = (until - simulator.nfs) // len(self.lengths)
        for length in self.lengths:
            sweeps = share // (2 * population.chains * length)
            rates, moved = [], []
            for _ in range(sweeps):
                before = population.positions(0)
                said = population.sweep(size, np.int32(length))
                if said is None:
                    break
                rates.append(mean_acceptance(population.kernel, said))
                moved.append(np.mean(np.sum((population.positions(0) - before) ** 2, 1)))
            if rates:
                tried[str(length)] = {
                    "acceptance": float(np.mean(rates)),
                    "moved": float(np.mean(moved) / length),
                }
        low, high = ACCEPTED
        fine = {k: v for k, v in tried.items() if low <= v["acceptance"] <= high} or tried
        best = max(fine, key=lambda k: fine[k]["moved"], default=str(first))
        return int(best), tried


@dataclasses.dataclass(frozen=True)
class NUTS(Sampler):
    """The no-U-turn sampler with a step size by dual averaging, as Stan begins.

    Attributes:
        chains: Number of chains.
        doublings: Of a trajectory, at most.
        wanted: Acceptance that the step size is tuned to.
        burn_in: Part of the budget.
    """

    chains: int = 16
    doublings: int = 8
    wanted: float = 0.8
    burn_in: float = 0.2

    def __post_init__(self) -> None:
        checks.integer("chains", self.chains, 1)
        checks.integer("doublings", self.doublings, 1)

    def check(self, problem: InverseProblem) -> None:
        require_derivative(problem, "NUTS")

    def draw(self, simulator: Simulator, scale: int, n: int, key: PRNGKeyArray) -> Drawn:
        chains = min(self.chains, n)
        require(simulator, 2 * chains * 20, f"NUTS with {chains} chains")
        until = simulator.nfs + int(self.burn_in * simulator.left)
        population = Population(_nuts(self.doublings), simulator, scale, chains, key)
        size = tuned(population, FIRST_SIZE, self.wanted, until)
        return sampled(population, n, size, (), {"step_size": size})


@functools.cache
def _hmc() -> Kernel:
    from blackjax.mcmc import hmc

    kernel = hmc.build_kernel()

    def step(key: Any, state: Any, size: jax.Array, length: jax.Array) -> Any:
        unit = jnp.ones_like(state.position)
        now = size * jr.uniform(jr.fold_in(key, 1), minval=1 - JITTER, maxval=1 + JITTER)
        state, info = kernel(key, state, log_posterior, now, unit, length)
        return state, info.acceptance_rate

    return Kernel(
        lambda u: hmc.init(u, log_posterior), step, lambda rate: rate, True, (np.int32(1),)
    )


@functools.cache
def _nuts(doublings: int) -> Kernel:
    from blackjax.mcmc import nuts

    kernel = nuts.build_kernel()

    def step(key: Any, state: Any, size: jax.Array) -> Any:
        unit = jnp.ones_like(state.position)
        state, info = kernel(key, state, log_posterior, size, unit, doublings)
        return state, info.acceptance_rate

    return Kernel(lambda u: nuts.init(u, log_posterior), step, lambda rate: rate, together=False)
