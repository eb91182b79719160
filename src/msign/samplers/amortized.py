"""Amortized SVGD (Feng, Wang and Liu 2017): a Glow network learns to move as particles would."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from msign import checks
from msign.noise import on_device
from msign.priors import Prior
from msign.problems import InverseProblem, Simulator
from msign.samplers.base import Drawn, LogRatio, Sampler, mark, require, require_derivative
from msign.samplers.stein import stein_direction
from msign.training import adam, combine, split_trainable

CLIP = 1.0  # norm of a gradient
STD_OF = 256  # prior draws that say how large fields are
AT_ONCE = 500  # fields that are drawn or weighed at a time


@dataclasses.dataclass(frozen=True)
class AmortizedSVGD(Sampler):
    """A Glow generator of fields, trained along SVGD's directions; its density is known.

    Fields are the network's own, on the lattice; directions are taken in whitened coordinates.

    Attributes:
        blocks: Glow blocks per level, 16 and 32 in the paper's problems.
        hidden: Hidden channels, 32 and 64 there.
        batch: Fields per step, as in the paper.
        rate: Of Adam.
    """

    blocks: int = 16
    hidden: int = 32
    batch: int = 100
    rate: float = 1e-3

    def __post_init__(self) -> None:
        checks.positive("rate", self.rate)
        for name in ("blocks", "hidden", "batch"):
            checks.integer(name, getattr(self, name), 1)

    def check(self, problem: InverseProblem) -> None:
        require_derivative(problem, "amortized SVGD")
        shape = problem.prior.lattice.shape
        if len(shape) != 2 or problem.prior.lattice.channels or any(n % 2 for n in shape):
            raise ValueError(
                f"problem must be on a lattice of two axes with even sides for a Glow generator, "
                f"got shape {shape}"
            )

    def draw(self, simulator: Simulator, scale: int, n: int, key: PRNGKeyArray) -> Drawn:
        require(simulator, n + 2 * self.batch, f"amortized SVGD and weights of {n} fields")
        generator = _Generator(simulator.problem.priors[scale - 1], self, jr.fold_in(key, 0))
        steps, sizes = (simulator.left - n) // (2 * self.batch), list[float]()
        for k in range(steps):
            z = generator.noise(jr.fold_in(jr.fold_in(key, 1), k), self.batch)
            u = generator.whitened(z)
            found = simulator.evaluate(u, scale, gradient=True)
            assert found.gradient is not None
            sizes.append(generator.learn(z, found.gradient.astype(u.dtype) - u))
        trained = mark(simulator)
        u = generator.sample(jr.fold_in(key, 2), n)
        log_weights = simulator.evaluate(u, scale).log_likelihood - generator.log_ratio(u)
        information = {"steps": steps, "direction": [sizes[0], sizes[-1]]}
        return Drawn(
            u,
            information,
            trained=trained,
            log_weights=log_weights,
            log_ratio=generator.log_ratio,
        )


class _Generator:
    """A Glow network whose fields are seen in whitened coordinates, and its optimiser."""

    def __init__(self, prior: Prior, options: AmortizedSVGD, key: PRNGKeyArray):
        from msign.bijections import GlowConfig
        from msign.images.glow import Glow
        from msign.lattice import Lattice

        shape = prior.lattice.shape
        levels = min((n & -n).bit_length() - 1 for n in shape)
        std = float(np.std(np.asarray(prior.sample(jr.fold_in(key, 1), STD_OF), np.float64)))
        config = GlowConfig(blocks=options.blocks, hidden=options.hidden)
        self._glow = Glow(Lattice(shape, 1), levels, config, std=std, key=key)
        self._adam = adam(CLIP, options.rate)
        self._state = self._adam.init(split_trainable(self._glow)[0])
        self._prior, self._step = prior, _step(prior, self._adam)
        self._whitened = eqx.filter_jit(lambda glow, z: _whitened(prior, glow, z))

    def noise(self, key: PRNGKeyArray, n: int) -> tuple[jax.Array, ...]:
        """Of n fields."""
        return self._glow.noise(key, n)

    def whitened(self, z: tuple[jax.Array, ...]) -> np.ndarray:
        """Fields `(n, d)` of noise."""
        return np.asarray(self._whitened(self._glow, z))

    def learn(self, z: tuple[jax.Array, ...], score: np.ndarray) -> float:
        """One step along the direction at fields of this noise; its root mean square."""
        self._glow, self._state, size = self._step(self._glow, self._state, z, score)
        return float(size)

    def sample(self, key: PRNGKeyArray, n: int) -> np.ndarray:
        """N fields in whitened coordinates."""
        parts = range(-(-n // AT_ONCE))
        drawn = [self.whitened(self.noise(jr.fold_in(key, i), AT_ONCE)) for i in parts]
        return np.concatenate(drawn)[:n]

    @property
    def log_ratio(self) -> LogRatio:
        """Log p - log prior of fields in whitened coordinates, of the network as it is now."""
        glow, prior = self._glow, self._prior

        def log_ratio(u: np.ndarray) -> np.ndarray:
            parts = []
            for start in range(0, len(u), AT_ONCE):
                x = prior.unwhiten(on_device(u[start : start + AT_ONCE]))
                own = np.asarray(glow.log_prob(x[..., None]), np.float64)
                parts.append(own - np.asarray(prior.log_prob(x), np.float64))
            return np.concatenate(parts)

        return log_ratio


def _whitened(prior: Prior, glow: Any, z: tuple[jax.Array, ...]) -> jax.Array:
    x = jax.vmap(lambda *entry: glow.forward(entry))(*z)
    return prior.whiten(x[..., 0])


def _step(prior: Prior, optimizer: Any) -> Callable[..., Any]:
    @eqx.filter_jit
    def step(glow: Any, state: Any, z: tuple[jax.Array, ...], score: jax.Array) -> Any:
        trainable, rest = split_trainable(glow)

        def along(trainable: Any) -> tuple[jax.Array, jax.Array]:
            u = _whitened(prior, combine(trainable, rest), z)
            phi = jax.lax.stop_gradient(stein_direction(u, score))
            return -jnp.mean(jnp.sum(phi * u, 1)), phi

        (_, phi), slopes = eqx.filter_value_and_grad(along, has_aux=True)(trainable)
        change, state = optimizer.update(slopes, state, trainable)
        glow = combine(eqx.apply_updates(trainable, change), rest)
        return glow, state, jnp.sqrt(jnp.mean(phi**2))

    return step
