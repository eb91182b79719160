"""What every sampler promises: one call, a budget that is never exceeded, samples of a scale."""

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from msign import checks
from msign.noise import as_array
from msign.problems import InverseProblem, Simulator

LogRatio = Callable[[np.ndarray], np.ndarray]


class Cost(NamedTuple):
    """Forward simulations, and seconds."""

    nfs: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Samples:
    """Fields of one scale, and what they cost.

    Attributes:
        fields: `(n, *field_shape)`, each with the same weight.
        u: The same in whitened coordinates `(n, d)`.
        nfs: Forward simulations used.
        seconds: Time used.
        trained: Simulations and seconds of them after which samples came: of burn-in, or of
            training. None: more samples are to be had by another run alone.
        chain: Markov chain of each field `(n,)`, those of a chain in its order; None: no chains.
        family: First draw from which each particle descends `(n,)`; None: no particles.
        log_weights: Posterior over the method's own density, up to a constant `(n,)`, where the
            fields are independent draws of a density that is known.
        log_ratio: Log p - log prior of any fields in whitened coordinates, where p is known.
        log_evidence: Estimate of the log evidence, where the method has one.
        information: Acceptance, convergence, tuned options, by name.
    """

    fields: np.ndarray
    u: np.ndarray
    nfs: int
    seconds: float
    trained: Cost | None = None
    chain: np.ndarray | None = None
    family: np.ndarray | None = None
    log_weights: np.ndarray | None = None
    log_ratio: LogRatio | None = None
    log_evidence: float | None = None
    information: dict[str, Any] = dataclasses.field(default_factory=dict)


class Drawn(NamedTuple):
    """What a sampler leaves to be made into `Samples`; names as there, `trained` from `mark`."""

    u: np.ndarray
    information: dict[str, Any]
    trained: Cost | None = None
    chain: np.ndarray | None = None
    family: np.ndarray | None = None
    log_weights: np.ndarray | None = None
    log_ratio: LogRatio | None = None
    log_evidence: float | None = None


class Sampler(ABC):
    """A way to sample the posterior of a scale: an object that holds its options.

    A new one writes `check` and `draw`.
    """

    def run(
        self, problem: InverseProblem, scale: int, budget: int, n: int, seed: int = 0
    ) -> Samples:
        """Sample the posterior of a scale.

        Args:
            problem: What is inferred.
            scale: Of the fields.
            budget: Forward simulations that may be used, a hard limit.
            n: Fields wanted.
            seed: Same seed, same numbers.
        """
        self.check(problem)
        checks.integer("scale", scale, 1, problem.scales)
        checks.integer("n", n, 1)
        checks.integer("seed", seed, 0)
        simulator = Simulator(problem, checks.integer("budget", budget, 1))
        began = time.perf_counter()
        if scale < problem.scales:
            simulator.prepare()
        drawn = self.draw(simulator, scale, n, jr.fold_in(jr.key(seed), scale))
        if drawn.trained is not None:
            trained = drawn.trained._replace(seconds=drawn.trained.seconds - began)
            drawn = drawn._replace(trained=trained)
        prior = problem.priors[scale - 1]
        return Samples(
            fields=np.asarray(prior.unwhiten(as_array(drawn.u))),
            nfs=simulator.nfs,
            seconds=time.perf_counter() - began,
            **drawn._asdict(),
        )

    @abstractmethod
    def check(self, problem: InverseProblem) -> None:
        """Refuse a problem that this sampler cannot do, before anything is simulated."""

    @abstractmethod
    def draw(self, simulator: Simulator, scale: int, n: int, key: PRNGKeyArray) -> Drawn:
        """N fields of a scale with what the simulator's budget allows."""


def require_derivative(problem: InverseProblem, method: str) -> None:
    """Refuse a problem without a derivative."""
    if not problem.differentiable:
        raise ValueError(
            f"problem must have a derivative (JAX code, or a vjp) for {method}, got "
            f"{problem.name!r} without one"
        )


def mark(simulator: Simulator) -> Cost:
    """Simulations so far, and the time on the clock, where burn-in or training ends."""
    return Cost(simulator.nfs, time.perf_counter())


def require(simulator: Simulator, simulations: int, purpose: str) -> None:
    """Refuse a budget that does not last for the least that a sampler does."""
    if simulator.left < simulations:
        raise ValueError(
            f"budget must leave at least {simulations} forward simulations for {purpose}, "
            f"got {simulator.budget} of which {simulator.nfs} are used"
        )
