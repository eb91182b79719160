"""Glow as it is: squeeze and split, no prior conditioning (the ablation "Glow")."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import paramax
from flowjax.bijections import AbstractBijection
from jaxtyping import Array, PRNGKeyArray

from msign.bijections import GlowConfig, Whitened
from msign.inference.flows.base import FlowKind, Start
from msign.lattice import Lattice
from msign.network import MsIGN
from msign.priors import Prior
from msign.problems.inverse import InverseProblem


@dataclasses.dataclass(frozen=True)
class SplitGlow(FlowKind):
    """One Glow network for the finest field, trained at once: its scales have no models of theirs.

    At the start it gives white noise as large as the prior's fields.

    Attributes:
        config: Hyper-parameters of the stacks, one per level of squeezing.
        rate: Highest learning rate, and
        units: hidden channels of all blocks up to which it holds, as of `Glow`.
    """

    config: GlowConfig = dataclasses.field(default_factory=GlowConfig)
    rate: float = 2e-3
    units: int = 512

    def start(self, given: Start) -> AbstractBijection:
        return self.made(jr.fold_in(given.key, 2), given.network.prior_at(given.scale))

    def learning_rate(self, network: MsIGN, scale: int, train: str) -> float:
        levels = _levels(network.lattices[scale - 1])
        configs = [self.config.at(l, levels) for l in range(1, levels + 1)]
        units = sum(int(np.prod([c.blocks, c.hidden])) for c in configs)
        return self.rate * min(1.0, self.units / max(units, 1))

    def describe(self, flow: AbstractBijection) -> Any:
        return {}

    def like(self, network: MsIGN, scale: int, description: Any) -> AbstractBijection:
        return self.made(jr.key(0), network.prior_at(scale))

    def check(self, problem: InverseProblem) -> None:
        lattice = problem.prior.lattice
        if lattice.ndim != 2 or lattice.channels or not _levels(lattice):
            raise ValueError(
                "problem must be on a lattice of two axes with even sides for a Glow network, got "
                f"shape {lattice.field_shape}"
            )

    @property
    def needs_one_stage(self) -> bool:
        return True

    @property
    def needs_exact_conditioning(self) -> bool:
        return True

    def made(self, key: PRNGKeyArray, prior: Prior) -> Whitened:
        """The network for fields of a prior."""
        from msign.images.glow import Glow  # which stands above inference

        lattice = prior.lattice
        std = float(np.sqrt(np.mean(np.asarray(prior.marginal_std((1, 1)), np.float64) ** 2)))
        levels = _levels(lattice)
        glow = Glow(Lattice(lattice.shape, 1), levels, self.config, std=std, key=key)
        return Whitened(Generated(glow, prior), prior)


class Generated(AbstractBijection):
    """A Glow network as a bijection from noise `(d,)` to whitened coordinates of its field.

    Args:
        glow: Network of images, on the prior's lattice with one channel.
        prior: Whose coordinates these are.
    """

    shape: tuple[int, ...]
    cond_shape: None
    glow: Any
    prior: Prior

    def __init__(self, glow: Any, prior: Prior):
        self.shape = (prior.lattice.dim,)
        self.cond_shape = None
        self.glow = glow
        self.prior = paramax.non_trainable(prior)

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        ends = np.cumsum(self.glow.noise_sizes())[:-1]
        field, log_det = self.glow.transform_and_log_det(tuple(jnp.split(x, ends)))
        return self.prior.whiten(field[..., 0]), log_det + self.prior.log_det

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        field = self.prior.unwhiten(y)[..., None]
        z, log_det = self.glow.inverse_and_log_det(field)
        return jnp.concatenate(z), log_det - self.prior.log_det


def _levels(lattice: Lattice) -> int:
    """How often all sides can be halved."""
    return min((n & -n).bit_length() - 1 for n in lattice.shape)
