"""Chains that need no derivative and whose acceptance does not fall as the lattice is refined."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import PRNGKeyArray

from msign import checks
from msign.problems import InverseProblem, Simulator
from msign.samplers.base import Drawn, Sampler, require
from msign.samplers.chains import FIRST_SIZE, Kernel, Population, sampled, tuned
from msign.samplers.lockstep import log_likelihood


@dataclasses.dataclass(frozen=True)
class CrankNicolson(Sampler):
    """Preconditioned Crank-Nicolson (Cotter, Roberts, Stuart and White 2013).

    Attributes:
        chains: Number of chains.
        wanted: Acceptance that the step size is tuned to.
        burn_in: Part of the budget.
    """

    chains: int = 50
    wanted: float = 0.25
    burn_in: float = 0.2

    def __post_init__(self) -> None:
        checks.integer("chains", self.chains, 1)

    def check(self, problem: InverseProblem) -> None:
        """Any problem will do."""

    def draw(self, simulator: Simulator, scale: int, n: int, key: PRNGKeyArray) -> Drawn:
        chains = min(self.chains, n)
        require(simulator, 20 * chains, f"pCN with {chains} chains")
        until = simulator.nfs + int(self.burn_in * simulator.left)
        population = Population(_crank_nicolson(), simulator, scale, chains, key)
        size = tuned(population, FIRST_SIZE, self.wanted, until)
        return sampled(population, n, size, (), {"step_size": size})


@dataclasses.dataclass(frozen=True)
class EllipticalSlice(Sampler):
    """Elliptical slice sampling (Murray, Adams and MacKay 2010); nothing to tune.

    Attributes:
        chains: Number of chains.
        burn_in: Part of the budget.
    """

    chains: int = 50
    burn_in: float = 0.2

    def __post_init__(self) -> None:
        checks.integer("chains", self.chains, 1)

    def check(self, problem: InverseProblem) -> None:
        """Any problem will do."""

    def draw(self, simulator: Simulator, scale: int, n: int, key: PRNGKeyArray) -> Drawn:
        chains = min(self.chains, n)
        require(simulator, 50 * chains, f"elliptical slice sampling with {chains} chains")
        until = simulator.nfs + int(self.burn_in * simulator.left)
        dim = simulator.problem.priors[scale - 1].lattice.dim
        population = Population(_slice(dim), simulator, scale, chains, key)
        while simulator.nfs < until and population.sweep(0.0) is not None:
            pass
        return sampled(population, n, 0.0, (), {})


@functools.cache
def _crank_nicolson() -> Kernel:
    """BlackJAX's Metropolis-Hastings of the likelihood, with proposals that keep the prior.

    With a step size h a proposal is exp(-h) u + sqrt(1 - exp(-2 h)) noise.
    """
    from blackjax.mcmc import random_walk

    kernel = random_walk.build_rmh()

    def step(key: Any, state: Any, size: jax.Array) -> Any:
        def proposed(key: Any, u: jax.Array) -> jax.Array:
            noise = jr.normal(key, u.shape, u.dtype)
            return jnp.exp(-size) * u + jnp.sqrt(-jnp.expm1(-2 * size)) * noise

        state, info = kernel(key, state, log_likelihood, proposed)
        return state, info.acceptance_rate

    def init(u: jax.Array) -> Any:
        return random_walk.init(u, log_likelihood)

    return Kernel(init, step, lambda rate: rate, together=True)


@functools.cache
def _slice(dim: int) -> Kernel:
    from blackjax.mcmc import elliptical_slice

    kernel = elliptical_slice.build_kernel(jnp.ones(dim), jnp.zeros(dim))

    def step(key: Any, state: Any, _: jax.Array) -> Any:
        state, info = kernel(key, state, log_likelihood)
        return state, info.subiter

    def init(u: jax.Array) -> Any:
        return elliptical_slice.init(u, log_likelihood)

    return Kernel(init, step, None, together=False)
