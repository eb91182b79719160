"""MsIGN, the network of the paper's equation (3): for each scale a conditioning layer and a flow.

Inside, a field is carried in its prior's whitened coordinates u_l. There prior conditioning is a
rotation of (u_{l-1}, z_l), a flow that is still the identity costs nothing, and

    log p(x) - log prior(x) = sum_l [ (|u_l'|^2 - |u_l|^2) / 2 - log|det F_l| ],

u_l and u_l' before and after F_l: the two large log-densities never meet in float32.
"""

import itertools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import paramax
from flowjax.bijections import AbstractBijection, Identity
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from msign import archive, checks, passes
from msign.bijections import GlowConfig, Whitened, glow_flow
from msign.bijections.subspace import informed_part
from msign.lattice import Lattice
from msign.noise import as_array, on_device
from msign.passes import part_of_flow
from msign.priors import Prior, WhitenedNearest
from msign.variables import Variables

__all__ = ["MsIGN", "Pass", "part_of_flow"]

CONDITIONINGS = ("exact", "nearest")


class Pass(NamedTuple):
    """What one pass through the network leaves, for one field.

    Attributes:
        u: Whitened coordinates of the last field.
        log_ratio: log p - log prior of that field, at temperature one.
        z: The noise of all scales, in one vector of length d_l.
    """

    u: Array
    log_ratio: Array
    z: Array


class MsIGN(eqx.Module):
    """A multiscale invertible generative network.

    With all flows at the identity, as at the start, it is the prior at every scale.

    Args:
        prior: Of the finest field.
        scales: Number of scales L; the sides of the lattice are divided, by 2, 3 or 5, L - 1 times.
        flow: Hyper-parameters of the Glow flows, or one flow per scale (coarse to fine): any
            flowjax bijections of the fields' shapes.
        key: Of the flows' initial weights.
        conditioning: `exact`: prior conditioning (Theorem 3.1); `nearest`: stochastic
            nearest-neighbour upsampling, which ignores the prior (the ablation MsIGN-SNN).
        output: Element-wise bijection of shape () at the end, such as flowjax's `Sigmoid()`.

    Example:
        >>> import jax
        >>> from msign import GlowConfig, LaplacePrior, MsIGN
        >>> prior = LaplacePrior((16, 16), alpha=0.1, beta=2.0)
        >>> network = MsIGN(prior, scales=4, flow=GlowConfig(blocks=2, hidden=8))
        >>> x, log_p = network.sample_and_log_prob(jax.random.key(1), 3)
        >>> x.shape, log_p.shape
        ((3, 16, 16), (3,))
        >>> [z.size for z in network.encode(x[0])]
        [4, 12, 48, 192]
    """

    priors: tuple[Prior, ...]
    refinements: tuple[AbstractBijection, ...]
    flows: tuple[AbstractBijection, ...]
    output: AbstractBijection
    conditioning: str = eqx.field(static=True)
    config: GlowConfig | None = eqx.field(static=True)

    def __init__(
        self,
        prior: Prior,
        scales: int,
        flow: GlowConfig | Sequence[AbstractBijection] | None = None,
        *,
        key: PRNGKeyArray | None = None,
        conditioning: str = "exact",
        output: AbstractBijection | None = None,
    ):
        checks.instance("prior", prior, Prior)
        priors = prior.hierarchy(scales)
        key = jr.key(0) if key is None else key
        flow = GlowConfig() if flow is None else flow
        if isinstance(flow, GlowConfig):
            configs = [flow.at(l, scales) for l in range(1, scales + 1)]
            flows = [
                glow_flow(jr.fold_in(key, l), p, c)
                for l, (p, c) in enumerate(zip(priors, configs, strict=True))
            ]
            self.config = flow
        else:
            flows = list(checks.per_scale("flow", tuple(flow), scales))
            self.config = None
        for l, (f, p) in enumerate(zip(flows, priors, strict=True), start=1):
            checks.instance(f"flow of scale {l}", f, AbstractBijection)
            if f.shape != p.lattice.field_shape:
                raise ValueError(
                    f"flow of scale {l} must have shape {p.lattice.field_shape}, got {f.shape}"
                )
        self.conditioning = checks.one_of("conditioning", conditioning, CONDITIONINGS)
        if conditioning == "exact":
            refinements = [p.rotation() for p in priors[1:]]
        else:
            refinements = [WhitenedNearest(c, f) for c, f in itertools.pairwise(priors)]
        self.output = Identity() if output is None else output
        checks.instance("output", self.output, AbstractBijection)
        if self.output.shape != ():
            raise ValueError(f"output must have shape () (element-wise), got {self.output.shape}")
        self.priors = tuple(paramax.non_trainable(p) for p in priors)
        self.refinements = tuple(refinements)
        self.flows = tuple(flows)

    @property
    def scales(self) -> int:
        """Number of scales L."""
        return len(self.flows)

    @property
    def lattices(self) -> tuple[Lattice, ...]:
        """Lattices, coarse to fine."""
        return tuple(p.lattice for p in self.priors)

    def prior_at(self, scale: int | None = None) -> Prior:
        """The prior rho_l (appendix D)."""
        return paramax.unwrap(self.priors[self._scale(scale) - 1])

    # --- drawing and density ---------------------------------------------------------------

    def sample(
        self,
        key: PRNGKeyArray,
        n: int,
        scale: int | None = None,
        *,
        upto: int | None = None,
        temperature: float = 1.0,
    ) -> Array:
        """Draw n fields of a scale (default: the finest).

        Fields of different scales drawn with the same key are refinements of each other.

        Args:
            key: Random key.
            n: Number of fields.
            scale: Scale l, 1 is the coarsest.
            upto: Leave flows above this scale out; `upto = l - 1` is the proposal q~_l.
            temperature: Standard deviation of the noise z.
        """
        return self.sample_and_log_prob(key, n, scale, upto=upto, temperature=temperature)[0]

    def sample_and_log_prob(
        self,
        key: PRNGKeyArray,
        n: int,
        scale: int | None = None,
        *,
        upto: int | None = None,
        temperature: float = 1.0,
    ) -> tuple[Array, Array]:
        """Draw n fields and the log-density, at that temperature, of each, in one pass."""
        scale = self._scale(scale)
        z = self.noise(key, n, scale)
        t = on_device(checks.positive("temperature", temperature))
        return passes.sample_and_log_prob(self, z, scale, self._upto(upto, scale), t)

    def noise(self, key: PRNGKeyArray, n: int, scale: int | None = None) -> tuple[Array, ...]:
        """Standard normal noise `(z_1, ..., z_l)`, n of each; z_l depends on the key and l only."""
        sizes = tuple(self.noise_sizes(self._scale(scale)))
        dtype = self.prior_at(1).log_det.dtype
        return passes.noise(key, checks.integer("n", n, 0), sizes, dtype)

    def log_prob(self, x: ArrayLike, scale: int | None = None, *, upto: int | None = None) -> Array:
        """Log-density (paper, equation (9)) of fields with any leading batch axes."""
        scale = self._scale(scale)
        x = self.lattices[scale - 1].check("x", x)
        return passes.log_prob(self, x, scale, self._upto(upto, scale))

    def log_ratio(
        self, x: ArrayLike, scale: int | None = None, *, upto: int | None = None
    ) -> Array:
        """Log-density of fields minus the prior's, free of cancellation between the two.

        Of the field before the output activation, if there is one: the activation's
        log-determinant is in both and drops out.
        """
        scale = self._scale(scale)
        x = self.lattices[scale - 1].check("x", x)
        return passes.log_ratio(self, x, scale, self._upto(upto, scale))

    def encode(self, x: ArrayLike, *, upto: int | None = None) -> tuple[Array, ...]:
        """Noise `(z_1, ..., z_l)` of fields, T^{-1}(x); the scale is that of the field's shape."""
        x = as_array(x)
        scale = self._scale_of(x)
        return passes.encode(self, x, scale, self._upto(upto, scale))

    def decode(self, z: Sequence[ArrayLike], *, upto: int | None = None) -> Array:
        """Fields of noise `(z_1, ..., z_l)`, T(z); as many scales as there are entries."""
        scale = checks.integer("number of entries of z", len(z), 1, self.scales)
        arrays = self._check_noise(z, scale)
        return passes.decode(self, arrays, scale, self._upto(upto, scale))

    def snapshots(
        self, z: Sequence[ArrayLike], per_scale: int = 4
    ) -> tuple[tuple[Array, ...], ...]:
        """Fields inside each flow F_l while `decode` runs: head, equal parts and tail (figure 6).

        Returns, for each scale, `per_scale` fields, after the output activation. Flows that are
        neither a Glow stack nor a `Chain` show their head until the tail.
        """
        checks.integer("per_scale", per_scale, 2)
        scale = checks.integer("number of entries of z", len(z), 1, self.scales)
        arrays = self._check_noise(z, scale)
        return passes.snapshots(self, arrays, scale, per_scale)

    # --- one field, in whitened coordinates ----------------------------------------------------

    def forward(self, z: tuple[Array, ...], upto: int | None = None) -> Pass:
        """From the noise of one field to its whitened coordinates."""
        this = paramax.unwrap(self)
        scale = len(z)
        u, log_ratio = z[0], jnp.zeros((), z[0].dtype)
        for l in range(1, scale + 1):
            if l > 1:
                u, step = this._refine(l, u, z[l - 1])
                log_ratio += step
            if l <= self._upto(upto, scale):
                u, step = this._apply(l, u)
                log_ratio += step
        return Pass(u, log_ratio, jnp.concatenate(z))

    def backward(self, u: Array, scale: int, upto: int | None = None) -> Pass:
        """From the whitened coordinates of one field of a scale to its noise."""
        this = paramax.unwrap(self)
        last, log_ratio, noise = u, jnp.zeros((), u.dtype), []
        for l in range(scale, 0, -1):
            if l <= self._upto(upto, scale):
                u, step = this._apply(l, u, inverse=True)
                log_ratio += step
            if l > 1:
                u, z, step = this._coarsen(l, u)
                noise.append(z)
                log_ratio += step
        return Pass(last, log_ratio, jnp.concatenate([u, *reversed(noise)]))

    def _apply(self, l: int, u: Array, inverse: bool = False) -> tuple[Array, Array]:
        """F_l (or its inverse) in whitened coordinates, and its part of log p - log prior."""
        flow = self.flows[l - 1]
        if isinstance(flow, Identity):
            return u, jnp.zeros((), u.dtype)
        prior = self.priors[l - 1]
        whitened = isinstance(flow, Whitened)
        inner = flow.inner if whitened else flow
        move = inner.inverse_and_log_det if inverse else inner.transform_and_log_det
        v, log_det = move(u if whitened else prior.unwhiten(u))
        v = v if whitened else prior.whiten(v)
        step = 0.5 * jnp.sum((v - u) * (v + u)) - log_det
        return v, -step if inverse else step

    def _refine(self, l: int, u: Array, z: Array) -> tuple[Array, Array]:
        joined = jnp.concatenate([u, z])
        v, log_det = self.refinements[l - 2].transform_and_log_det(joined)
        if self.conditioning == "exact":
            return v, jnp.zeros((), u.dtype)
        return v, 0.5 * (jnp.sum(v**2) - jnp.sum(joined**2)) - log_det

    def _coarsen(self, l: int, u: Array) -> tuple[Array, Array, Array]:
        joined, log_det = self.refinements[l - 2].inverse_and_log_det(u)
        coarse, z = jnp.split(joined, [self.lattices[l - 2].dim])
        if self.conditioning == "exact":
            return coarse, z, jnp.zeros((), u.dtype)
        return coarse, z, 0.5 * (jnp.sum(u**2) - jnp.sum(joined**2)) + log_det

    # --- parts, and what of them is trained -----------------------------------------------------

    def cut(self, scale: int) -> "MsIGN":
        """The network of the coarsest `scale` scales, whose field of that scale is the last one."""
        l = self._scale(scale)
        parts = (self.priors[:l], self.refinements[: l - 1], self.flows[:l])
        return eqx.tree_at(lambda n: (n.priors, n.refinements, n.flows), self, parts)

    def with_flow(self, scale: int, flow: AbstractBijection) -> "MsIGN":
        """The network with another F_l."""
        flows = (*self.flows[: scale - 1], flow, *self.flows[scale:])
        return eqx.tree_at(lambda n: n.flows, self, flows)

    def variables(self, scale: int | None = None, train: str = "all") -> Variables:
        """The variables that F_1, ..., F_l move, with the flow that moves them (to be trained).

        Where F_l is an informed flow these are its few coordinates: all that coarser flows do
        goes through it. `train="last"` marks coarser flows as fixed.
        """
        scale = self._scale(scale)
        dim, informed = self.lattices[scale - 1].dim, informed_part(self.flows[scale - 1])
        if informed is not None:
            return Variables(informed.now, informed.basis, dim)
        coarser, own = self.flows[: scale - 1], self.flows[scale - 1]
        if isinstance(own, Whitened) and all(isinstance(flow, Identity) for flow in coarser):
            return Variables(own.inner, None, dim, lanes=False)
        if train == "last":
            coarser = paramax.non_trainable(coarser)
        fixed = (paramax.non_trainable(self.refinements), (*coarser, *self.flows[scale - 1 :]))
        network = eqx.tree_at(lambda n: (n.refinements, n.flows), self, fixed)
        return Variables(WholeNetwork(network, scale), None, dim, lanes=False)

    def turns(self) -> "MsIGN":
        """The network in which informed flows only turn noise into their directions.

        In a network that `fit` has trained each F_l undoes the flow of the scale before, so that
        noise may be carried through these rotations to the one flow that is not undone, that of
        the scale where fields are wanted (`variables`).
        """
        parts = [informed_part(flow) for flow in self.flows]
        flows = [
            flow if part is None else Whitened(part.turn, prior)
            for flow, part, prior in zip(self.flows, parts, self.priors, strict=True)
        ]
        return eqx.tree_at(lambda n: n.flows, self, tuple(flows))

    def with_variables(self, scale: int, variables: Variables, train: str = "all") -> "MsIGN":
        """The network with trained variables in their place: inverse of `variables`."""
        inner = variables.flow
        if isinstance(inner, WholeNetwork):
            flows = inner.network.flows
            coarser = self.flows[: scale - 1] if train == "last" else flows[: scale - 1]
            flows = (*coarser, *flows[scale - 1 :])
            return eqx.tree_at(lambda n: n.flows, self, flows)
        if variables.basis is None:
            return eqx.tree_at(lambda n: n.flows[scale - 1].inner, self, inner)
        return eqx.tree_at(lambda n: n.flows[scale - 1].inner.now, self, inner)

    # --- description, files ----------------------------------------------------------------

    def parameters(self) -> tuple[int, ...]:
        """Number of trainable parameters of the flow of each scale."""
        return tuple(archive.count_parameters(flow) for flow in self.flows)

    def describe(self) -> dict[str, Any]:
        """The architecture as plain JSON values."""
        return {
            "prior": self.prior_at().describe(),
            "scales": self.scales,
            "lattices": [list(lattice.field_shape) for lattice in self.lattices],
            "conditioning": self.conditioning,
            "output": type(self.output).__name__,
            "flow": archive.describe_config(self.config),
            "flows": [archive.describe_flow(flow) for flow in self.flows],
            "parameters": list(self.parameters()),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write arrays and a readable description to one file (no pickle, never half written)."""
        prior = {f"prior.{k}": v for k, v in self.prior_at().arrays().items()}
        archive.save(path, self, self.describe(), prior)

    @classmethod
    def load(cls, path: str | os.PathLike[str], like: "MsIGN | None" = None) -> "MsIGN":
        """Read a network. `like`, a network of the same architecture, is needed for own flows."""
        description, given = archive.read_description(path)
        if like is None:
            like = archive.rebuild(cls, path, description, given)
        else:
            archive.check_same(path, like.describe(), description)
        return archive.load(path, like)

    # --- small helpers -----------------------------------------------------------------------

    def _scale(self, scale: int | None) -> int:
        return self.scales if scale is None else checks.integer("scale", scale, 1, self.scales)

    def _upto(self, upto: int | None, scale: int) -> int:
        return scale if upto is None else checks.integer("upto", upto, 0, self.scales)

    def noise_sizes(self, scale: int) -> list[int]:
        """Lengths of the noise z_1, ..., z_l."""
        dims = [0] + [lattice.dim for lattice in self.lattices[:scale]]
        return [fine - coarse for coarse, fine in itertools.pairwise(dims)]

    def _scale_of(self, x: Array) -> int:
        for l, lattice in enumerate(self.lattices, start=1):
            if x.shape[x.ndim - len(lattice.field_shape) :] == lattice.field_shape:
                return l
        shapes = ", ".join(str(lattice.field_shape) for lattice in self.lattices)
        raise ValueError(f"x must end in one of the shapes {shapes}, got {x.shape}")

    def _check_noise(self, z: Sequence[ArrayLike], scale: int) -> tuple[Array, ...]:
        arrays = tuple(as_array(entry) for entry in z)
        for l, (entry, size) in enumerate(
            zip(arrays, self.noise_sizes(scale), strict=True), start=1
        ):
            checks.shape(f"z_{l}", entry.shape, (size,))
        return arrays


class WholeNetwork(AbstractBijection):
    """A network up to one scale as one bijection of vectors: noise of all scales to u_l."""

    shape: tuple[int, ...]
    cond_shape: None
    network: MsIGN
    scale: int = eqx.field(static=True)

    def __init__(self, network: MsIGN, scale: int):
        self.shape = (network.lattices[scale - 1].dim,)
        self.cond_shape = None
        self.network = network
        self.scale = scale

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        ends = [lattice.dim for lattice in self.network.lattices[: self.scale - 1]]
        result = self.network.forward(tuple(jnp.split(x, ends)))
        return result.u, 0.5 * jnp.sum((result.u - x) * (result.u + x)) - result.log_ratio

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        result = self.network.backward(y, self.scale)
        return result.z, result.log_ratio - 0.5 * jnp.sum((y - result.z) * (y + result.z))
