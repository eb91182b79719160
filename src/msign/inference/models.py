"""What a stage trains: a core on m variables, and how these sit in whitened coordinates.

Two kinds of core. `FlowCore`: a flow on the coordinates along m directions of whitened space, all
others standard normal; its cost does not depend on d. `NetworkCore`: the MsIGN network itself, on
all d_l coordinates.

A density is handled as its excess, log p - log prior, which is what meets the log-likelihood:
log p - log q = excess - log-likelihood + log Z.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import paramax
from flowjax.bijections import AbstractBijection, Chain, Identity, Indexed
from jaxtyping import Array, PRNGKeyArray, PyTree

from msign.bijections.subspace import InformedConfig, SubspaceFlow, informed_stack
from msign.bijections.whitened import Whitened
from msign.network import MsIGN
from msign.priors import Prior


class Core(eqx.Module):
    """A trainable distribution of m variables, standard normal before training."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of variables m."""

    @abstractmethod
    def forward(self, z: Array) -> tuple[Array, Array]:
        """The variables s of one field, and its excess, from standard normal z."""

    @abstractmethod
    def backward(self, s: Array) -> tuple[Array, Array]:
        """Standard normal z and excess of the variables s of one field."""

    @abstractmethod
    def trainable(self, last_only: bool) -> PyTree:
        """Which leaves a stage may train (a tree of booleans)."""


class FlowCore(Core):
    """A flow on a few variables. `ranks`: its size each time that it grew."""

    flow: AbstractBijection
    ranks: tuple[int, ...] = eqx.field(static=True)

    @property
    def size(self) -> int:
        return self.ranks[-1]

    def forward(self, z: Array) -> tuple[Array, Array]:
        s, log_det = self.flow.transform_and_log_det(z)
        return s, 0.5 * jnp.sum((s - z) * (s + z)) - log_det

    def backward(self, s: Array) -> tuple[Array, Array]:
        z, log_det = self.flow.inverse_and_log_det(s)
        return z, 0.5 * jnp.sum((s - z) * (s + z)) + log_det

    def trainable(self, last_only: bool) -> PyTree:
        return jax.tree.map(eqx.is_inexact_array, self, is_leaf=_fixed)


class NetworkCore(Core):
    """The MsIGN network up to one scale."""

    network: MsIGN
    scale: int = eqx.field(static=True)

    @property
    def size(self) -> int:
        return self.network.lattices[self.scale - 1].dim

    def forward(self, z: Array) -> tuple[Array, Array]:
        ends = [lattice.dim for lattice in self.network.lattices[: self.scale - 1]]
        result = self.network.forward(tuple(jnp.split(z, ends)))
        return result.u, result.excess

    def backward(self, s: Array) -> tuple[Array, Array]:
        result = self.network.backward(s, self.scale)
        return result.z, result.excess

    def trainable(self, last_only: bool) -> PyTree:
        spec = jax.tree.map(lambda _: False, self, is_leaf=_fixed)
        for l in range(self.scale if last_only else 1, self.scale + 1):
            flow = jax.tree.map(eqx.is_inexact_array, self.network.flows[l - 1], is_leaf=_fixed)
            spec = eqx.tree_at(lambda m, l=l: m.network.flows[l - 1], spec, flow)
        return spec


class StageModel(eqx.Module):
    """A distribution of fields of one scale.

    Attributes:
        core: Distribution of the trained variables.
        basis: Orthonormal directions `(d, m)` along which these are coordinates; None: they are
            all d whitened coordinates.
        dim: d.
    """

    core: Core
    basis: Array | None
    dim: int = eqx.field(static=True)

    def with_core(self, core: Core) -> "StageModel":
        """The same directions with another distribution along them."""
        return eqx.tree_at(lambda m: m.core, self, core)

    def noise(self, eta: Array) -> Array:
        """The core's own noise z `(n, m)` out of that of whole fields `(n, d)`."""
        return self.reduce(eta)

    def reduce(self, u: Array) -> Array:
        """Trained variables `(n, m)` of whitened coordinates; also pulls gradients back."""
        return u if self.basis is None else _product(u, self.basis)

    def lift(self, s: Array, eta: Array) -> Array:
        """Whitened coordinates `(n, d)` with trained variables s, the rest from eta `(n, d)`."""
        return s if self.basis is None else eta + _product(s - self.reduce(eta), self.basis.T)

    def to_network(self, prior: Prior, scale: int) -> MsIGN:
        """The network whose field of this scale has this distribution."""
        if isinstance(self.core, NetworkCore):
            inner = self.core.network
            return MsIGN(prior, scale, inner.flows[:scale], conditioning=inner.conditioning)
        assert isinstance(self.core, FlowCore) and self.basis is not None
        priors = prior.hierarchy(scale)
        flows: list[AbstractBijection] = [Identity(p.lattice.field_shape) for p in priors[:-1]]
        flows.append(Whitened(SubspaceFlow(self.basis, self.core.flow), priors[-1]))
        return MsIGN(prior, scale, flows)


def informed_flow(key: PRNGKeyArray, ranks: tuple[int, ...], config: InformedConfig) -> Chain:
    """The flow of a `FlowCore`, grown from rank to rank.

    Each time: couplings of all variables, then the flow so far on the leading ones, then an affine
    map of all. New couplings thus stand next to the noise, where every variable has unit variance
    however sharply the data determine it.
    """
    flow: AbstractBijection | None = None
    for i, rank in enumerate(ranks):
        couplings, affine = informed_stack(jax.random.fold_in(key, i), rank, config).bijections
        if flow is None:
            flow = Chain([couplings, affine])
        else:
            flow = Chain([couplings, Indexed(flow, jnp.arange(flow.shape[0]), (rank,)), affine])
    assert isinstance(flow, Chain)
    return flow


@eqx.filter_jit
def forward_all(core: Core, z: Array) -> tuple[Array, Array]:
    """`forward` of a batch."""
    return jax.vmap(core.forward)(z)


@eqx.filter_jit
def excess_all(core: Core, s: Array) -> Array:
    """Excess of a batch of trained variables."""
    return jax.vmap(lambda s: core.backward(s)[1])(s)


def draw(model: StageModel, eta: Array) -> tuple[Array, Array, Array]:
    """Whitened coordinates, trained variables and excess of fields, from their noise `(n, d)`."""
    s, excess = forward_all(model.core, model.noise(eta))
    return model.lift(s, eta), s, excess


def split_trainable(core: Core, last_only: bool = False) -> tuple[PyTree, PyTree]:
    """Trainable leaves, and the rest."""
    return eqx.partition(core, core.trainable(last_only), is_leaf=_fixed)


def combine(trainable: PyTree, rest: PyTree) -> Core:
    """Inverse of `split_trainable`."""
    return eqx.combine(trainable, rest, is_leaf=_fixed)


def lift_directions(prior: Prior, basis: np.ndarray) -> np.ndarray:
    """Directions of the next coarser scale's whitened space, in that of `prior`."""
    d = prior.lattice.dim
    padded = np.concatenate([basis.T, np.zeros((basis.shape[1], d - basis.shape[0]))], 1)
    return np.asarray(jax.vmap(prior.rotation().transform)(jnp.asarray(padded)).T, np.float64)


def _fixed(leaf: object) -> bool:
    return isinstance(leaf, paramax.NonTrainable)


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
