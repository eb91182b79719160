"""Many Markov chains of one kernel under a budget: burn-in with a tuned step size, then samples.

Kernels are BlackJAX's. Chains pause for their simulations (`lockstep`), which are made for all of
them at once. A step for which the budget does not last is dropped.
"""

import functools
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from msign.noise import default_dtype, normal
from msign.problems import Simulator
from msign.samplers.base import Drawn, mark
from msign.samplers.lockstep import Answer, Program, Request

FAR = 10.0  # norm over that of a prior draw beyond which a trajectory has diverged
FIRST_SIZE = 0.2  # of steps, in prior standard deviations
BOLD = 10  # factor that dual averaging tries first, taken back: few sweeps tune
LAGS = (1, 2, 5, 10, 20, 50)  # at which autocorrelation is reported, in kept states


class Kernel(NamedTuple):
    """A Markov kernel of the posterior, of one chain.

    Attributes:
        init: From a field `(d,)` to the state of a chain, which has it as `position`.
        step: `(key, state, size, *options)` to the next state and its information.
        acceptance: The part of the information that the step size is tuned by; None: it has none.
        together: Whether all chains take the same simulations, so that they run as one program.
        options: Examples of the options of a step.
    """

    init: Callable[..., Any]
    step: Callable[..., Any]
    acceptance: Callable[[Any], Any] | None
    together: bool
    options: tuple[Any, ...] = ()

    def programs(self, chains: int, dim: int) -> tuple[Program, Program]:
        """`init` and `step` of all chains, or of one of them, as programs that pause."""
        u: Any = jax.ShapeDtypeStruct((dim,), default_dtype())
        key, size = jr.key(0), jax.ShapeDtypeStruct((), default_dtype())
        init, step = self.init, self.step
        if self.together:
            u, key = jax.ShapeDtypeStruct((chains, dim), u.dtype), jr.split(key, chains)
            init = jax.vmap(init)
            step = jax.vmap(step, (0, 0, None, *(None for _ in self.options)))
        state = jax.eval_shape(init, u)
        return Program(init, u), Program(step, key, state, size, *self.options)


@functools.cache
def _programs(kernel: Kernel, chains: int, dim: int, dtype: np.dtype) -> tuple[Program, Program]:
    """Made once, so that runs of several seeds share what is compiled."""
    return kernel.programs(chains, dim)


class Trace:
    """States of chains, in limited number: beyond it every other one is dropped.

    Args:
        most: States that are kept, at most.
    """

    def __init__(self, most: int):
        self.states: list[np.ndarray] = []
        self._most, self._every, self._seen = most, 1, 0

    def add(self, state: np.ndarray) -> None:
        """The next state `(chains, d)`."""
        if self._seen % self._every == 0:
            self.states.append(state)
        self._seen += 1
        if len(self.states) > self._most:
            self.states, self._every = self.states[::2], 2 * self._every


class Population:
    """Chains of a kernel that are run in step.

    Args:
        kernel: The kernel.
        simulator: Of the problem.
        scale: Of the fields.
        chains: Number of chains, which start from draws of the prior.
        key: Of all random numbers.
    """

    def __init__(
        self, kernel: Kernel, simulator: Simulator, scale: int, chains: int, key: PRNGKeyArray
    ):
        self.kernel, self.simulator, self.scale, self.chains = kernel, simulator, scale, chains
        self._key, self._count = jr.fold_in(key, 1), 0
        dim = simulator.problem.priors[scale - 1].lattice.dim
        starts = jnp.asarray(normal(jr.fold_in(key, 0), (chains, dim)))
        groups = [starts] if kernel.together else list(starts)
        begin, self._step = _programs(kernel, chains, dim, default_dtype())
        finished = self._finish({i: begin.start(u) for i, u in enumerate(groups)})
        self.states = [finished[i] for i in range(len(groups))]

    def positions(self, group: int) -> np.ndarray:
        """Fields of a group of chains `(chains of it, d)`."""
        return np.atleast_2d(np.asarray(self.states[group].position))

    def sweep(self, size: float, *options: Any) -> dict[int, Any] | None:
        """One step of every chain, and what the kernel says of it by group.

        None where the budget did not last for the longest of them. Where a trajectory comes to
        fields that cannot be simulated, it has diverged.
        """
        started = {i: self._started(i, size, options) for i in range(len(self.states))}
        with self.simulator.rejecting():
            found = self._finish(started)
        for group, (state, _) in found.items():
            self.states[group] = state
        if len(found) < len(self.states):
            return None
        return {i: said for i, (_, said) in found.items()}

    def _started(
        self, group: int, size: float, options: tuple[Any, ...]
    ) -> Generator[Request, Answer, Any]:
        self._count += 1
        key = jr.fold_in(self._key, self._count)
        keys = jr.split(key, self.chains) if self.kernel.together else key
        return self._step.start(keys, self.states[group], default_dtype().type(size), *options)

    def _finish(self, running: dict[int, Generator[Request, Answer, Any]]) -> dict[int, Any]:
        """What programs return, run until all have ended or the budget has."""
        finished: dict[int, Any] = {}
        waiting: dict[int, Request] = {}
        answers: dict[int, Answer | None] = dict.fromkeys(running)
        while running:
            for i in list(running):
                try:
                    waiting[i] = running[i].send(answers[i])  # type: ignore[arg-type]
                except StopIteration as end:
                    finished[i] = end.value
                    del running[i]
            if not running:
                break
            found = self._simulated([waiting[i] for i in running])
            if found is None:
                for program in running.values():
                    program.close()
                break
            answers = dict(zip(running, found, strict=True))
        return finished

    def _simulated(self, requests: list[Request]) -> list[Answer] | None:
        """Answers to requests, which all want gradients or none does; None: beyond the budget.

        Where a trajectory has diverged there is nothing to simulate: the likelihood is zero.
        """
        shapes = [r.u.shape for r in requests]
        u = np.concatenate(
            [
                np.asarray(r.u).reshape(-1, shape[-1])
                for r, shape in zip(requests, shapes, strict=True)
            ]
        )
        gradient = requests[0].gradient
        if len(u) * (2 if gradient else 1) > self.simulator.left:
            return None
        values = np.full(len(u), -np.inf, u.dtype)
        slopes = np.zeros_like(u) if gradient else None
        lengths = np.linalg.norm(u.astype(np.float64), axis=1)  # single precision overflows
        near = np.flatnonzero(lengths < FAR * np.sqrt(u.shape[1]))
        if len(near):
            found = self.simulator.evaluate(u[near], self.scale, gradient)
            values[near] = found.log_likelihood
            if slopes is not None:
                slopes[near] = found.gradient
        answers, row = [], 0
        for shape in shapes:
            rows = slice(row, row + int(np.prod(shape[:-1])))
            own = None if slopes is None else slopes[rows].reshape(shape)
            answers.append(Answer(values[rows].reshape(shape[:-1]), own))
            row = rows.stop
        return answers


class StepSize:
    """A step size, tuned to an acceptance by BlackJAX's dual averaging until it is fixed."""

    def __init__(self, size: float, wanted: float):
        from blackjax.adaptation.step_size import dual_averaging_adaptation

        self._init, self._update, _ = dual_averaging_adaptation(wanted)
        self._state = self._init(size / BOLD)
        self._update = jax.jit(self._update)
        self.size = size

    def learn(self, acceptance: float) -> None:
        """Take the acceptance of a sweep with the present size."""
        self._state = self._update(self._state, acceptance)
        self.size = float(np.exp(self._state.log_step_size))

    def fix(self) -> None:
        """Go on with the mean of the sizes so far."""
        self.size = float(np.exp(self._state.log_step_size_avg))


def mean_acceptance(kernel: Kernel, said: dict[int, Any]) -> float:
    """Over all chains of a sweep."""
    assert kernel.acceptance is not None
    rates = [np.mean(np.asarray(kernel.acceptance(info), np.float64)) for info in said.values()]
    return float(np.nan_to_num(np.mean(rates)))


def tuned(
    population: Population, size: float, wanted: float, until: int, options: tuple[Any, ...] = ()
) -> float:
    """The step size with a wanted acceptance.

    Found by sweeps `until` the simulator has made as many; their states are no samples.
    """
    found, learnt = StepSize(size, wanted), False
    while population.simulator.nfs < until:
        said = population.sweep(found.size, *options)
        if said is None:
            break
        found.learn(mean_acceptance(population.kernel, said))
        learnt = True
    if learnt:
        found.fix()
    return found.size


def sampled(
    population: Population,
    n: int,
    size: float,
    options: tuple[Any, ...],
    information: dict[str, Any],
) -> Drawn:
    """Sweeps until the budget ends; n states, evenly spaced in every chain."""
    kernel, per_chain = population.kernel, -(-n // population.chains)
    traces = [Trace(2 * per_chain) for _ in population.states]
    accepted, sweeps, trained = 0.0, 0, mark(population.simulator)
    while True:
        said = population.sweep(size, *options)
        if said is None:
            break
        sweeps += 1
        for group, trace in enumerate(traces):
            trace.add(population.positions(group))
        if kernel.acceptance is not None:
            accepted += mean_acceptance(kernel, said)
    if not sweeps:
        raise ValueError(
            f"budget must last for a step of all {population.chains} chains after burn-in, got "
            f"{population.simulator.budget}"
        )
    states = np.concatenate([np.stack(t.states, 1) for t in traces])  # (chains, kept, d)
    u, chain = thinned(states, n)
    information = {
        **information,
        "chains": population.chains,
        "steps": sweeps,
        "distinct": len(np.unique(u, axis=0)),
        "autocorrelation": autocorrelation(states),
    }
    if kernel.acceptance is not None:
        information["acceptance"] = accepted / sweeps
    return Drawn(u, information, trained=trained, chain=chain)


def thinned(states: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """N of the states `(chains, kept, d)`, evenly spaced, and the chain of each.

    With fewer states than wanted some are repeated.
    """
    chains, kept = states.shape[:2]
    counts = np.full(chains, n // chains) + (np.arange(chains) < n % chains)
    parts, names = [], []
    for c, count in enumerate(counts):
        index = np.round(np.linspace(0, kept - 1, count + 1)[1:]).astype(int)
        parts.append(states[c, index])
        names.append(np.full(count, c))
    return np.concatenate(parts), np.concatenate(names)


def autocorrelation(states: np.ndarray) -> dict[str, float]:
    """Of the coordinate that changes most slowly, by lag in kept states, over all chains."""
    kept = states.shape[1]
    centred = states - states.mean((0, 1))
    variance = (centred**2).mean((0, 1)) + 1e-30
    lags = [lag for lag in LAGS if lag < kept]
    if not lags:
        return {}
    by_lag = np.stack([(centred[:, lag:] * centred[:, :-lag]).mean((0, 1)) for lag in lags])
    slowest = int(np.argmax((by_lag / variance).sum(0)))
    return {str(lag): float(by_lag[i, slowest] / variance[slowest]) for i, lag in enumerate(lags)}
