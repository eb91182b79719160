"""Priors whose covariance is a function of the Laplacian, conditioned exactly in O(d log d).

The covariance is diagonal in the eigenbasis of the cell-centred Laplacian, and pooling couples a
coarse mode with two fine modes per axis (`transforms.pooling_pairs`). So the dense matrices of
Theorem 3.1 fall apart into blocks of size 2^n, one per coarse mode k: with S the diagonal of
prior variances in the block and a its row of pooling weights, the coarse variance is a S a^T, and
whitened conditioning is any orthogonal matrix whose first column is v = S^(1/2) a^T / |.|. We
take the Householder reflection that exchanges e_1 and v: d numbers to store, and its own inverse.
"""

import itertools
import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import paramax
from flowjax.bijections import AbstractBijection
from jaxtyping import Array, ArrayLike

from msign import checks
from msign.lattice import Lattice
from msign.priors.base import Prior, mean_field, pooled_mean
from msign.priors.transforms import (
    BOUNDARIES,
    Boundary,
    analyse,
    angles,
    eigenvalues,
    pooling_pairs,
    synthesise,
)


class SpectralPrior(Prior):
    """Gaussian field with given variances in the eigenbasis of the Laplacian.

    Args:
        shape: Cells along each axis.
        variances: Variance of each coefficient in the orthonormal eigenbasis (see `transforms`),
            positive, of shape `shape`.
        boundary: `dirichlet`, `neumann` or `periodic`.
        mean: A number, or one field.
        channels: Independent copies as a last axis; None for a scalar field.
    """

    lattice: Lattice = eqx.field(static=True)
    boundary: Boundary = eqx.field(static=True)
    std: Array
    mean: Array
    log_det: Array

    def __init__(
        self,
        shape: tuple[int, ...],
        variances: ArrayLike,
        boundary: Boundary = "dirichlet",
        mean: ArrayLike = 0.0,
        channels: int | None = None,
    ):
        self.lattice = Lattice(shape, channels)
        checks.one_of("boundary", boundary, BOUNDARIES)
        self.boundary = boundary
        variances = checks.finite_array("variances", variances)
        if variances.shape != self.lattice.shape:
            raise ValueError(
                f"variances must have shape {self.lattice.shape}, got {variances.shape}"
            )
        if variances.min() <= 0:
            raise ValueError(f"variances must be positive, got {variances.min()}")
        self.std = jnp.asarray(np.sqrt(variances))
        self.mean = jnp.asarray(mean_field(mean, self.lattice))
        self.log_det = jnp.asarray(-0.5 * np.log(variances).sum() * (channels or 1))

    def whiten(self, x: Array) -> Array:
        c = analyse(x - self.mean, self.boundary, self.lattice.axes)
        return (c / self._per_channel(self.std)).reshape(
            *x.shape[: -len(self.lattice.field_shape)], -1
        )

    def unwhiten(self, u: Array) -> Array:
        c = u.reshape(*u.shape[:-1], *self.lattice.field_shape) * self._per_channel(self.std)
        return synthesise(c, self.boundary, self.lattice.axes) + self.mean

    def coarsen(self) -> "SpectralPrior":
        coarse = self.lattice.coarsen()
        weighted = self._blocks()
        return SpectralPrior(
            coarse.shape,
            (weighted**2).sum(0),
            self.boundary,
            pooled_mean(self.mean, self.lattice),
            self.lattice.channels,
        )

    def rotation(self) -> "BlockReflection":
        self.lattice.coarsen()
        return BlockReflection(self.lattice, self.boundary, self._blocks())

    def marginal_std(self, window: tuple[int, ...]) -> np.ndarray:
        v = np.asarray(self.std, np.float64) ** 2
        for w in window:  # each step contracts the first axis and appends (positions, bands)
            v = _squared_basis_sums(v, self.boundary, pairs=w == 2)
        n = self.lattice.ndim
        v = v.transpose(*range(0, 2 * n, 2), *range(1, 2 * n, 2))
        cells = tuple(m // w for m, w in zip(self.lattice.shape, window, strict=True))
        if all(w in (1, 2) for w in window):
            v = v.reshape(*cells, -1, 1)
        else:  # one window is the whole lattice
            v = v.reshape((1,) * n + (-1, 1))
        return np.sqrt(np.repeat(v, self.lattice.channels or 1, -1))

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "SpectralPrior",
            "shape": list(self.lattice.shape),
            "boundary": self.boundary,
            "channels": self.lattice.channels,
        }

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "variances": np.asarray(self.std, np.float64) ** 2,
            "mean": np.asarray(self.mean),
        }

    def _per_channel(self, values: Array) -> Array:
        return values if self.lattice.channels is None else values[..., None]

    def _blocks(self) -> np.ndarray:
        """S^(1/2) a^T for every coarse mode: `(2^n, *coarse)`, its squares sum to the coarse variance."""
        std = np.asarray(self.std, np.float64)
        pairs = [pooling_pairs(n, self.boundary) for n in self.lattice.shape]
        blocks = []
        for member in itertools.product((0, 1), repeat=self.lattice.ndim):
            block = std[np.ix_(*(index[:, j] for (index, _), j in zip(pairs, member, strict=True)))]
            for axis, ((_, weight), j) in enumerate(zip(pairs, member, strict=True)):
                others = [i for i in range(self.lattice.ndim) if i != axis]
                block = block * np.expand_dims(weight[:, j], others)
            blocks.append(block)
        return np.stack(blocks)


class LaplacePrior(SpectralPrior):
    """Gaussian field with covariance operator beta^2 (kappa^2 - Laplacian)^(-1-alpha).

    x = sum_k sqrt(lambda_k) xi_k e_k with e_k normalised in L2 of the domain and lambda_k =
    beta^2 (kappa^2 + mu_k)^(-1-alpha), mu_k the eigenvalues of the cell-centred Laplacian, so that
    the field does not depend on the mesh. The paper's priors have alpha = 0.1 or 0.5, beta = 2.

    Args:
        shape: Cells along each axis.
        alpha: Smoothness; above n/2 - 1 fields are continuous-like, above -1 they exist.
        beta: Amplitude.
        boundary: `dirichlet`, `neumann` or `periodic`; the last two need `kappa > 0`.
        kappa: Inverse correlation length (zero: as long as the domain).
        mean: A number, or one field.
        extent: Side lengths of the domain; unit length along each axis by default.
        channels: Independent copies as a last axis; None for a scalar field.

    Example:
        >>> import jax
        >>> from msign import LaplacePrior
        >>> prior = LaplacePrior((64, 64), alpha=0.1, beta=2.0)
        >>> prior.sample(jax.random.key(0), 5).shape
        (5, 64, 64)
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        alpha: float,
        beta: float,
        boundary: Boundary = "dirichlet",
        kappa: float = 0.0,
        mean: ArrayLike = 0.0,
        extent: tuple[float, ...] | None = None,
        channels: int | None = None,
    ):
        lattice = Lattice(shape, channels)
        checks.one_of("boundary", boundary, BOUNDARIES)
        if checks.finite("alpha", alpha) <= -1:
            raise ValueError(f"alpha must be above -1, got {alpha!r}")
        checks.positive("beta", beta)
        if checks.finite("kappa", kappa) < 0:
            raise ValueError(f"kappa must not be negative, got {kappa!r}")
        if boundary != "dirichlet" and kappa == 0:
            raise ValueError(
                f"kappa must be positive with boundary={boundary!r} (constants would have infinite "
                f"variance), got {kappa!r}"
            )
        extent = (1.0,) * lattice.ndim if extent is None else tuple(extent)
        if len(extent) != lattice.ndim:
            raise ValueError(f"extent must have {lattice.ndim} entries, got {extent!r}")
        mu = np.zeros(())
        for n, length in zip(lattice.shape, extent, strict=True):
            mu = np.add.outer(mu, eigenvalues(n, boundary, checks.positive("extent", length)))
        density = math.prod(lattice.shape) / math.prod(extent)  # cells per unit of volume
        variances = density * beta**2 * (kappa**2 + mu) ** (-1 - alpha)
        super().__init__(lattice.shape, variances, boundary, mean, channels)


class BlockReflection(AbstractBijection):
    """Whitened prior conditioning of a `SpectralPrior`: one Householder reflection per coarse mode."""

    shape: tuple[int, ...]
    cond_shape: None
    lattice: Lattice = eqx.field(static=True)
    boundary: Boundary = eqx.field(static=True)
    normal: Array

    def __init__(self, lattice: Lattice, boundary: Boundary, blocks: np.ndarray):
        self.shape = (lattice.dim,)
        self.cond_shape = None
        self.lattice = lattice
        self.boundary = boundary
        v = blocks / np.sqrt((blocks**2).sum(0))
        rest = (v[1:] ** 2).sum(0)
        normal = np.concatenate([(rest / (1 + v[0]))[None], -v[1:]])  # e_1 - v without cancellation
        length = np.sqrt((normal**2).sum(0))
        normal = np.divide(normal, length, out=np.zeros_like(normal), where=length > 0)
        self.normal = paramax.non_trainable(jnp.asarray(normal))

    def transform_and_log_det(
        self, x: Array, condition: Array | None = None
    ) -> tuple[Array, Array]:
        blocks = self._reflect(x.reshape(*self._block_shape))
        for axis in reversed(range(self.lattice.ndim)):
            low, high = (
                blocks[0::2],
                blocks[1::2],
            )  # the last axis is the lowest bit of a block's number
            joined = jnp.concatenate([low, high], 1 + axis)
            blocks = take_runs(joined, self._order(axis), 1 + axis)
        return blocks.reshape(self.shape), jnp.zeros((), x.dtype)

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        blocks = y.reshape(1, *self.lattice.shape, -1)
        for axis in range(self.lattice.ndim):
            joined = take_runs(blocks, np.argsort(self._order(axis)), 1 + axis)
            halves = jnp.stack(jnp.split(joined, 2, 1 + axis), 1)
            blocks = halves.reshape(-1, *halves.shape[2:])
        return self._reflect(blocks).reshape(self.shape), jnp.zeros((), y.dtype)

    @property
    def _block_shape(self) -> tuple[int, ...]:
        return (2**self.lattice.ndim, *self.lattice.coarsen().shape, self.lattice.channels or 1)

    def _order(self, axis: int) -> np.ndarray:
        """Where each fine mode along an axis stands among [first members, second members]."""
        index, _ = pooling_pairs(self.lattice.shape[axis], self.boundary)
        return np.argsort(index.T.reshape(-1))

    def _reflect(self, blocks: Array) -> Array:
        normal = self.normal[..., None]
        return blocks - 2 * normal * jnp.sum(normal * blocks, 0)


def take_runs(x: Array, order: np.ndarray, axis: int) -> Array:
    """`jnp.take(x, order, axis)` for an order of few ascending or descending runs, as slices."""
    steps = np.diff(order)
    cuts = [0]
    for i in range(1, len(order)):
        within = abs(steps[i - 1]) == 1 and (i - cuts[-1] == 1 or steps[i - 1] == steps[i - 2])
        if not within:
            cuts.append(i)
    parts = []
    for start, stop in itertools.pairwise([*cuts, len(order)]):
        first, last = int(order[start]), int(order[stop - 1])
        low, high = min(first, last), max(first, last)
        part = x[(slice(None),) * axis + (slice(low, high + 1),)]
        parts.append(jnp.flip(part, axis) if first > last else part)
    return jnp.concatenate(parts, axis)


def _squared_basis_sums(v: np.ndarray, boundary: Boundary, pairs: bool) -> np.ndarray:
    """Contract the first axis of `v` with squared basis functions; append (positions, bands).

    A squared basis function is a_k (1 + s_k cos(omega_k p)) at p = 2 i + 1, s_k = 1 for cosines
    and -1 for sines, so that the sum over k is a total and one FFT. Of a pair of cells, the Haar
    average has 2 cos^2(omega_k / 2) times the square at the common face, p = 2 (2 j + 1), and the
    Haar difference 2 sin^2(omega_k / 2) times that of the conjugate function.
    """
    n = v.shape[0]
    v = np.moveaxis(v, 0, -1)
    omega = angles(n, boundary)
    sines = np.arange(n) >= {"dirichlet": 0, "neumann": n, "periodic": (n + 1) // 2}[boundary]
    sign = np.where(sines, -1.0, 1.0)
    frequency = np.rint(omega * n / np.pi).astype(int)
    constant = np.isclose(omega, np.where(sines, np.pi, 0.0))
    amplitude = np.where(constant, 0.5, 1.0) / n
    if pairs:
        points = 2 * (2 * np.arange(n // 2) + 1)
        bands = [(2 * np.cos(omega / 2) ** 2, 1.0), (2 * np.sin(omega / 2) ** 2, -1.0)]
    else:
        points = 2 * np.arange(n) + 1
        bands = [(np.ones(n), 1.0)]
    sums = []
    for energy, orientation in bands:
        c = v * amplitude * energy
        waves = np.zeros((*v.shape[:-1], 2 * n))
        np.add.at(waves, (..., frequency % (2 * n)), c * sign * orientation)
        oscillation = np.fft.fft(waves).real[..., points % (2 * n)]
        sums.append(c.sum(-1, keepdims=True) + oscillation)
    return np.stack(sums, -1)
