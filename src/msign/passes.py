"""The network's passes over batches of fields, each compiled as a whole.

`MsIGN`'s methods check their arguments and call these; here is no checking, only mathematics.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from flowjax.bijections import AbstractBijection, Chain, Identity, Scan
from jaxtyping import Array, PRNGKeyArray

from msign.bijections import Squeezed, Whitened

if TYPE_CHECKING:
    from msign.network import MsIGN


def _log_normal(u: Array) -> Array:
    return -0.5 * jnp.sum(u**2) - 0.5 * u.size * math.log(2 * math.pi)


def _batched(f: Any, *arrays: Array, trailing: Sequence[int]) -> Any:
    """Vmap `f` over all leading axes of `arrays`, whose last `trailing` axes are one item."""
    lead = arrays[0].shape[: arrays[0].ndim - trailing[0]]
    flat = [a.reshape(-1, *a.shape[a.ndim - t :]) for a, t in zip(arrays, trailing, strict=True)]
    out = jax.vmap(f)(*flat)
    return jax.tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), out)


@eqx.filter_jit
def noise(key: PRNGKeyArray, n: int, sizes: tuple[int, ...], dtype: Any) -> tuple[Array, ...]:
    """Standard normal noise, n of each size; that of scale l depends on the key and l only."""
    return tuple(
        jr.normal(jr.fold_in(key, l), (n, size), dtype) for l, size in enumerate(sizes, start=1)
    )


@eqx.filter_jit
def sample_and_log_prob(
    network: "MsIGN", z: tuple[Array, ...], scale: int, upto: int, temperature: Array
) -> tuple[Array, Array]:
    """Fields and their log-densities from standard normal noise, at a temperature."""
    prior = network.prior_at(scale)
    output = network.output._vectorize
    temperature = temperature.astype(z[0].dtype)

    def one(*z: Array) -> tuple[Array, Array]:
        result = network.forward(tuple(temperature * zl for zl in z), upto)
        log_p = prior.log_det + _log_normal(result.u) + result.log_ratio
        # Noise of standard deviation T instead of one.
        tempered = 0.5 * jnp.sum(result.z**2) * (1 - temperature**-2)
        log_p += tempered - result.z.size * jnp.log(temperature)
        y, log_det = output.transform_and_log_det(prior.unwhiten(result.u))
        return y, log_p - log_det.sum()

    return jax.vmap(one)(*z)


@eqx.filter_jit
def whitened(network: "MsIGN", z: tuple[Array, ...], upto: int) -> tuple[Array, Array]:
    """Whitened coordinates of fields, and log p - log prior of each, from noise."""
    result = jax.vmap(lambda *z: network.forward(z, upto))(*z)
    return result.u, result.log_ratio


@eqx.filter_jit
def log_prob(network: "MsIGN", x: Array, scale: int, upto: int) -> Array:
    """Log-densities of fields."""
    prior = network.prior_at(scale)
    output = network.output._vectorize

    def one(y: Array) -> Array:
        x, log_det = output.inverse_and_log_det(y)
        u = prior.whiten(x)
        ratio = network.backward(u, scale, upto).log_ratio
        return prior.log_det + _log_normal(u) + ratio + log_det.sum()

    return _batched(one, x, trailing=[len(prior.lattice.field_shape)])


@eqx.filter_jit
def log_ratio(network: "MsIGN", x: Array, scale: int, upto: int) -> Array:
    """Log-densities of fields relative to the prior."""
    prior = network.prior_at(scale)

    def one(y: Array) -> Array:
        u = prior.whiten(network.output._vectorize.inverse(y))
        return network.backward(u, scale, upto).log_ratio

    return _batched(one, x, trailing=[len(prior.lattice.field_shape)])


@eqx.filter_jit
def encode(network: "MsIGN", x: Array, scale: int, upto: int) -> tuple[Array, ...]:
    """Noise of every scale of fields."""
    prior = network.prior_at(scale)
    ends = [lattice.dim for lattice in network.lattices[: scale - 1]]

    def one(y: Array) -> tuple[Array, ...]:
        u = prior.whiten(network.output._vectorize.inverse(y))
        return tuple(jnp.split(network.backward(u, scale, upto).z, ends))

    return _batched(one, x, trailing=[len(prior.lattice.field_shape)])


@eqx.filter_jit
def decode(network: "MsIGN", z: tuple[Array, ...], scale: int, upto: int) -> Array:
    """Fields of noise."""
    prior = network.prior_at(scale)

    def one(*z: Array) -> Array:
        return network.output._vectorize.transform(prior.unwhiten(network.forward(z, upto).u))

    return _batched(one, *z, trailing=[1] * scale)


@eqx.filter_jit
def snapshots(
    network: "MsIGN", z: tuple[Array, ...], scale: int, per_scale: int
) -> tuple[tuple[Array, ...], ...]:
    """Fields at equal fractions of each flow, head and tail included."""
    fractions = [i / (per_scale - 1) for i in range(per_scale)]

    def one(*z: Array) -> tuple[tuple[Array, ...], ...]:
        shown = []
        for l in range(1, scale + 1):
            prior = network.prior_at(l)
            head = prior.unwhiten(network.forward(z[:l], upto=l - 1).u)
            parts = [part_of_flow(network.flows[l - 1], f).transform(head) for f in fractions]
            shown.append(tuple(network.output._vectorize.transform(x) for x in parts))
        return tuple(shown)

    return _batched(one, *z, trailing=[1] * scale)


def part_of_flow(flow: AbstractBijection, fraction: float) -> AbstractBijection:
    """The first `fraction` of a flow's blocks as a bijection (the whole flow for 1)."""
    if fraction >= 1:
        return flow
    if isinstance(flow, Squeezed | Whitened):
        return eqx.tree_at(lambda f: f.inner, flow, part_of_flow(flow.inner, fraction))
    if isinstance(flow, Chain):
        count = round(fraction * len(flow.bijections))
        return Chain(flow.bijections[:count]) if count else Identity(flow.shape)
    if isinstance(flow, Scan):
        leaves = jax.tree.leaves(eqx.filter(flow.bijection, eqx.is_array))
        count = round(fraction * leaves[0].shape[0])
        if count:
            return Scan(jax.tree.map(lambda a: a[:count] if eqx.is_array(a) else a, flow.bijection))
    return Identity(flow.shape)
