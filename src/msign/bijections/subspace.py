"""Flows that move only a few directions: the likelihood-informed subspace of whitened space.

Data inform few directions. In whitened coordinates the posterior is nearly standard normal in all
others, so a flow on r << d coordinates, the identity elsewhere, can be all that is needed: exact
log-determinant, and a cost that does not grow with d.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import paramax
from flowjax.bijections import (
    AbstractBijection,
    Chain,
    Identity,
    Indexed,
    Invert,
    Scan,
)
from jaxtyping import Array, ArrayLike, PRNGKeyArray

from msign import checks
from msign.bijections.conditional import ConditionalGaussian
from msign.bijections.dense import DenseCoupling, widened
from msign.bijections.plane import PlaneMap
from msign.bijections.spline import SplineMap
from msign.bijections.triangular import TriangularMap
from msign.bijections.whitened import Whitened
from msign.noise import normal, on_device

NARROW = 1e-6  # smallest width of a bin of a single variable: a valley between two modes
MOMENT_SAMPLES = 8192  # of a flow, to standardise its variables by
Growth = tuple[tuple[int, str], ...]  # number of variables and place of layers (`informed_flow`)


@dataclasses.dataclass(frozen=True)
class InformedConfig:
    """Hyper-parameters of the flow on the informed subspace.

    Attributes:
        max_rank: Largest dimension of the subspace (where gradients say that the posterior is
            Gaussian, as many as they can tell).
        beyond: Most further directions, Gaussian given the variables of the flow
            (`ConditionalGaussian`), where `max_rank` is less than data inform; 0: none.
        spline_rank: Up to this number of variables, two at the most, are moved by splines, which
            have closed forms; more of them by affine couplings.
        blocks: Affine couplings of a flow.
        hidden: Width of their two hidden layers.
        single: Bins of the spline by which a single variable, or the first of two, is moved.
        conditional: Bins of those of the second.
        rows: Values of the first variable for each of which the second has a spline.
        interval: Splines act on [-interval, interval] and are the identity outside.
    """

    max_rank: int = 64
    beyond: int = 128
    spline_rank: int = 2
    blocks: int = 10
    hidden: int = 96
    single: int = 96
    conditional: int = 64
    rows: int = 257
    interval: float = 6.0

    def __post_init__(self) -> None:
        checks.integer("max_rank", self.max_rank, 1)
        checks.integer("beyond", self.beyond, 0)
        if checks.integer("spline_rank", self.spline_rank, 0) > 2:
            raise ValueError(f"spline_rank must be 0, 1 or 2, got {self.spline_rank}")
        checks.integer("blocks", self.blocks, 1)
        checks.integer("hidden", self.hidden, 1)
        checks.integer("single", self.single, 8)
        checks.integer("conditional", self.conditional, 4)
        checks.integer("rows", self.rows, 2)
        checks.positive("interval", self.interval)


class InformedFlow(AbstractBijection):
    """F_l in a few directions of whitened space: from the flow of the scale before to a new one.

    With orthonormal columns V (`basis`), N (`now`) a flow from standard normal z to coordinates
    along V, and M (`before`) such a flow from z to coordinates along the columns W of the lifted
    basis of the scale before,

        F_l = N M^{-1} Q   along V, the identity orthogonal to it,

    Q being the rotation in the span of both bases that turns W into the leading columns of V. What
    comes from scale l - 1 is distributed along W as M makes it, so that behind F_l the coordinates
    along V are N(z), whatever M is. With N = M at the start, F_l is the rotation Q.

    Args:
        basis: V, of shape `(d, r)`, orthonormal columns.
        now: N, a bijection of shape `(r,)`.
        lifted: W, of shape `(d, k)`, k <= r; None where no flow was there before (k = 0). The
            matrix of products of W with V's leading columns has to be symmetric and positive
            (`inference.flows.directions.align` makes it so).
        before: M, a bijection of shape `(k,)`; it is not trained.
        growth: How N was made (`informed_flow`), kept for files.
    """

    shape: tuple[int, ...]
    cond_shape: None
    basis: Array
    middle: Array
    now: AbstractBijection
    before: AbstractBijection | None
    growth: Growth = eqx.field(static=True)

    def __init__(
        self,
        basis: ArrayLike,
        now: AbstractBijection,
        lifted: ArrayLike | None = None,
        before: AbstractBijection | None = None,
        growth: Growth = (),
    ):
        basis = np.asarray(basis)
        if basis.ndim != 2 or now.shape != basis.shape[1:]:
            raise ValueError(
                f"basis must have one column for each of the {now.shape} variables of now, got "
                f"shape {basis.shape}"
            )
        lifted = np.zeros((len(basis), 0)) if lifted is None else np.asarray(lifted)
        carried = () if before is None else before.shape
        if lifted.shape[1:] != (carried or (0,)) or lifted.shape[1] > basis.shape[1]:
            raise ValueError(
                f"lifted must have one column for each of the {carried} variables of before, and "
                f"no more than basis, got shape {lifted.shape}"
            )
        self.shape = (basis.shape[0],)
        self.cond_shape = None
        self.basis = paramax.non_trainable(on_device(basis))
        self.middle = paramax.non_trainable(on_device(_between(basis, lifted)))
        self.now = now
        self.growth = growth
        self.before = None if before is None else paramax.non_trainable(before)

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        y = _half_turn(self._carried, _half_turn(self.middle, x))
        s = _product(y, self.basis)
        z, undone = self._undo(s)
        moved, done = self.now.transform_and_log_det(z)
        return y + _product(self.basis, moved - s), undone + done

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        s = _product(y, self.basis)
        z, undone = self.now.inverse_and_log_det(s)
        moved, done = self._redo(z)
        x = y + _product(self.basis, moved - s)
        return _half_turn(self.middle, _half_turn(self._carried, x)), undone + done

    def followed_by(self, layer: AbstractBijection, basis: ArrayLike) -> "InformedFlow":
        """The flow with a layer behind N, of its variables and of coordinates along `basis`."""
        leading = jax.device_put(np.arange(self.now.shape[0]))
        now = Chain([Indexed(self.now, leading, layer.shape), layer])
        wide = jnp.concatenate([paramax.unwrap(self.basis), on_device(basis)], 1)
        parts = paramax.non_trainable(wide), now
        return eqx.tree_at(lambda f: (f.basis, f.now), self, parts)

    @property
    def layer(self) -> ConditionalGaussian | None:
        """The layer of further directions, where there is one."""
        last = self.now.bijections[-1] if isinstance(self.now, Chain) else None
        return last if isinstance(last, ConditionalGaussian) else None

    @property
    def turn(self) -> "InformedFlow":
        """The rotation Q alone: F_l with the identity for N and M."""
        parts = Identity(self.now.shape), None
        return eqx.tree_at(lambda f: (f.now, f.before), self, parts, is_leaf=lambda x: x is None)

    @property
    def _carried(self) -> Array:
        """The columns of the basis that continue those of the scale before."""
        return self.basis[:, : self.middle.shape[1]]

    def _undo(self, s: Array) -> tuple[Array, Array]:
        if self.before is None:
            return s, jnp.zeros((), s.dtype)
        old, new = jnp.split(s, [self.before.shape[0]])
        z, log_det = self.before.inverse_and_log_det(old)
        return jnp.concatenate([z, new]), log_det

    def _redo(self, z: Array) -> tuple[Array, Array]:
        if self.before is None:
            return z, jnp.zeros((), z.dtype)
        old, new = jnp.split(z, [self.before.shape[0]])
        s, log_det = self.before.transform_and_log_det(old)
        return jnp.concatenate([s, new]), log_det


def informed_part(flow: AbstractBijection) -> InformedFlow | None:
    """The informed flow of a flow on fields; None if it is of another kind."""
    inner = flow.inner if isinstance(flow, Whitened) else None
    return inner if isinstance(inner, InformedFlow) else None


def _between(basis: np.ndarray, lifted: np.ndarray) -> np.ndarray:
    """Orthonormal columns half-way between those of `lifted` and the leading ones of `basis`.

    A half turn about the middle of two directions and then one about the second is the rotation
    of the first into the second; in all directions orthogonal to both the two cancel.
    """
    first = basis[:, : lifted.shape[1]].astype(np.float64)
    values, vectors = np.linalg.eigh(
        2 * np.eye(first.shape[1]) + lifted.T @ first + first.T @ lifted
    )
    return (lifted + first) @ (vectors / np.sqrt(np.maximum(values, 1e-12))) @ vectors.T


def _half_turn(columns: Array, x: Array) -> Array:
    """X turned by pi about the span of orthonormal columns: 2 P x - x."""
    return 2 * _product(columns, _product(x, columns)) - x


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def informed_flow(key: PRNGKeyArray, growth: Growth, config: InformedConfig) -> Chain:
    """A flow of few variables as it has grown, the identity at the start.

    `growth` lists its number of variables each time that it grew, and how:

    - `inner`: couplings of all variables next to the noise, then the flow so far on the leading
      ones, then an affine map of all (that of the flow so far, where it is nothing else);
    - `wider`: the couplings, or the spline of a single variable, and the affine map of the flow so
      far take in more variables;
    - `outer`: couplings and affine map behind the flow so far, which is not trained any more;
    - `affine`: an affine map alone, in the place of any flow so far.
    """
    flow: Chain | None = None
    for i, (rank, place) in enumerate(growth):
        flow = grown_flow(jr.fold_in(key, i), flow, rank, place, config)
    assert flow is not None
    return flow


def grown_flow(
    key: PRNGKeyArray, flow: Chain | None, rank: int, place: str, config: InformedConfig
) -> Chain:
    """The flow with new layers of `rank` variables at a place (see `informed_flow`).

    Next to the noise every variable has unit variance, however sharply the data determine it. At
    the outer place the same is reached between two affine maps: variables are standardised by the
    mean and covariance with which the flow so far gives them.
    """
    if place == "affine":
        return Chain([TriangularMap(rank)])
    couplings, affine = informed_stack(key, rank, config).bijections
    if flow is None:
        return Chain([couplings, affine])
    if len(flow.bijections) == 1 and place != "outer":
        return Chain([couplings, _extended(flow.bijections[0], rank)])
    if place == "wider":
        own, *others, last = flow.bijections
        others = [Indexed(other.bijection, other.idxs, (rank,)) for other in others]
        return Chain([_taking_in(couplings, own), *others, _extended(last, rank)])
    leading = jax.device_put(np.arange(flow.shape[0]))
    if place == "inner":
        return Chain([couplings, Indexed(flow, leading, (rank,)), affine])
    so_far = Indexed(paramax.non_trainable(flow), leading, (rank,))
    affine = TriangularMap.from_matrix(*_moments(jr.fold_in(key, 1), so_far))
    return Chain([so_far, Invert(paramax.non_trainable(affine)), couplings, affine])


def can_widen(flow: Chain, rank: int, config: InformedConfig) -> bool:
    """Whether a flow can take in more variables as it is.

    Affine couplings can, and the spline of a single variable can become that of the first of two.
    """
    first = flow.bijections[0]
    if isinstance(first, SplineMap):
        return rank <= config.spline_rank
    return isinstance(first, Scan) and isinstance(first.bijection, DenseCoupling)


def _taking_in(fresh: AbstractBijection, own: AbstractBijection) -> AbstractBijection:
    """Layers of more variables that do to the first ones what their `own` layers do."""
    if isinstance(fresh, PlaneMap):
        return fresh.with_first(own)
    return Scan(widened(fresh.bijection, own.bijection))


def _extended(affine: TriangularMap, rank: int) -> TriangularMap:
    """The affine map with the identity for more variables."""
    matrix, shift = affine.matrix_and_shift()
    old = len(shift)
    whole = np.eye(rank)
    whole[:old, :old] = matrix
    return TriangularMap.from_matrix(whole, np.pad(shift, (0, rank - old)))


def _moments(key: PRNGKeyArray, flow: AbstractBijection) -> tuple[np.ndarray, np.ndarray]:
    """Cholesky factor of the covariance, and mean, of what a flow makes of standard normal noise.

    By regression on the noise, which is exact for an affine flow, and the covariance of the rest.
    """
    z = normal(key, (MOMENT_SAMPLES, *flow.shape))
    s = np.asarray(jax.jit(jax.vmap(paramax.unwrap(flow).transform))(z), np.float64)
    design = np.concatenate([np.ones((len(z), 1)), np.asarray(z, np.float64)], 1)
    fit, *_ = np.linalg.lstsq(design, s, rcond=None)
    rest = s - design @ fit
    covariance = fit[1:].T @ fit[1:] + rest.T @ rest / len(s)
    return np.linalg.cholesky(covariance), s.mean(0) - np.asarray(z, np.float64).mean(0) @ fit[1:]


def informed_stack(key: PRNGKeyArray, rank: int, config: InformedConfig) -> Chain:
    """Couplings and then an affine map on `rank` variables, the identity at the start.

    Variables are expected in order of falling stiffness: the last couplings move the stiffest
    ones given all others.
    """
    ends = config.interval, NARROW
    if rank == 1:
        return Chain([SplineMap(1, config.single, *ends), TriangularMap(1)])
    if rank <= config.spline_rank:
        plane = PlaneMap(config.single, config.conditional, config.rows, *ends)
        return Chain([plane, TriangularMap(2)])
    moved = np.stack([_moved(k, config.blocks, rank) for k in range(config.blocks)])
    candidates = int(moved.sum(1).max())
    couplings = [
        DenseCoupling(jr.fold_in(key, k), each, candidates, config.hidden)
        for k, each in enumerate(moved)
    ]
    return Chain([Scan(jax.tree.map(_stacked, *couplings)), TriangularMap(rank)])


def _stacked(*leaves: Any) -> Any:
    """Arrays of several modules along a new first axis; what is no array is the same in all."""
    return jax.device_put(np.stack(leaves)) if eqx.is_array(leaves[0]) else leaves[0]


def _moved(block: int, blocks: int, rank: int) -> np.ndarray:
    """Which variables a block moves: halves in turn, and the stiffest few at the very end."""
    half, few = (rank + 1) // 2, max(1, rank // 6)
    index = np.arange(rank)
    patterns = [
        index >= half,
        index < half,
        index % 2 == 1,
        index % 2 == 0,
        (index >= few) & (index < few + half),
        index < few,
    ]
    patterns = [p for p in patterns if 0 < p.sum() < rank]
    return patterns[(block - blocks) % len(patterns)]
