"""Priors whose covariance is a function of the Laplacian, conditioned exactly in O(d log d).

The covariance is diagonal in the eigenbasis of the cell-centred Laplacian, and pooling couples a
coarse mode with p fine modes per axis where p cells are averaged (`transforms.pooling_blocks`). So
the dense matrices of Theorem 3.1 fall apart into blocks as large as a pooling window (2^n where all
sides are halved), one per coarse mode k: with S the diagonal of prior variances in the block
and a its row of pooling weights, the coarse variance is a S a^T, and
whitened conditioning is any orthogonal matrix whose first column is v = S^(1/2) a^T / |.|: a
`BlockReflection`. Whitened coordinates are stored in `coarse_first` order, where a block is a
column of a matrix and conditioning moves nothing in memory.
"""

import itertools
import math
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, ArrayLike

from msign import checks
from msign.lattice import PRIMES, Lattice
from msign.noise import on_device
from msign.priors.base import Prior, mean_field, pooled_mean
from msign.priors.reflection import BlockReflection
from msign.priors.transforms import (
    BOUNDARIES,
    Boundary,
    analyse,
    angles,
    coarse_first,
    eigenvalues,
    pooling_blocks,
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
    std: Array  # of the modes, in the order of the whitened coordinates
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
        order, _ = coarse_first(self.lattice.shape, boundary)
        self.std = on_device(np.sqrt(variances).reshape(-1)[order])
        self.mean = on_device(mean_field(mean, self.lattice))
        self.log_det = on_device(-0.5 * np.log(variances).sum() * (channels or 1))

    @eqx.filter_jit
    def whiten(self, x: Array) -> Array:
        batch = x.shape[: x.ndim - len(self.lattice.field_shape)]
        c = analyse(x - self.mean, self.boundary, self.lattice.axes)
        order, _ = coarse_first(self.lattice.shape, self.boundary)
        c = c.reshape(*batch, order.size, -1)[..., order, :]
        return (c / self.std[:, None]).reshape(*batch, -1)

    @eqx.filter_jit
    def unwhiten(self, u: Array) -> Array:
        batch = u.shape[:-1]
        _, position = coarse_first(self.lattice.shape, self.boundary)
        c = u.reshape(*batch, position.size, -1) * self.std[:, None]
        c = c[..., position, :].reshape(*batch, *self.lattice.field_shape)
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
        order, _ = coarse_first(self.lattice.coarsen().shape, self.boundary)
        blocks = self._blocks().reshape(math.prod(self.lattice.factors), -1)
        return BlockReflection(blocks[:, order], self.lattice.channels or 1)

    def marginal_std(self, window: tuple[int, ...]) -> np.ndarray:
        haar = all(w in (1, 2) for w in window)
        if not haar and window != self.lattice.shape:
            raise ValueError(f"window must have sides 1 or 2 or be the lattice, got {window}")
        v = self._variances()
        for w in window:  # each step contracts the first axis and appends (positions, bands)
            v = _squared_basis_sums(v, self.boundary, pairs=haar and w == 2)
        n = self.lattice.ndim
        v = v.transpose(*range(0, 2 * n, 2), *range(1, 2 * n, 2))
        cells = tuple(m // w for m, w in zip(self.lattice.shape, window, strict=True))
        v = v.reshape(*(cells if haar else (1,) * n), -1, 1)
        return np.sqrt(np.repeat(v, self.lattice.channels or 1, -1))

    def describe(self) -> dict[str, Any]:
        description = {
            "kind": "SpectralPrior",
            "shape": list(self.lattice.shape),
            "boundary": self.boundary,
            "channels": self.lattice.channels,
        }
        # The order of whitened coordinates, where it is not that of lattices which are only halved
        # (all there were, once): flows in a file move coordinates in the order of its time.
        order, halved = (coarse_first(self.lattice.shape, self.boundary, p) for p in (PRIMES, (2,)))
        if not np.array_equal(order[0], halved[0]):
            description["pooling"] = [list(factors) for factors in self.lattice.pooling]
        return description

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "variances": self._variances(),
            "mean": np.asarray(self.mean),
        }

    def _variances(self) -> np.ndarray:
        """Variances of the modes in their natural order, of the lattice's shape."""
        _, position = coarse_first(self.lattice.shape, self.boundary)
        return (np.asarray(self.std, np.float64) ** 2)[position].reshape(self.lattice.shape)

    def _blocks(self) -> np.ndarray:
        """S^(1/2) a^T of every coarse mode, `(b, *coarse)`; squares sum to its variance."""
        std = np.sqrt(self._variances())
        sides = zip(self.lattice.shape, self.lattice.factors, strict=True)
        lines = [pooling_blocks(n, p, self.boundary) for n, p in sides]
        blocks = []
        for member in itertools.product(*map(range, self.lattice.factors)):
            block = std[np.ix_(*(index[:, j] for (index, _), j in zip(lines, member, strict=True)))]
            for axis, ((_, weight), j) in enumerate(zip(lines, member, strict=True)):
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

    alpha: float = eqx.field(static=True)
    beta: float = eqx.field(static=True)
    kappa: float = eqx.field(static=True)
    extent: tuple[float, ...] = eqx.field(static=True)

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
        self.alpha = checks.finite("alpha", alpha)
        if self.alpha <= -1:
            raise ValueError(f"alpha must be above -1, got {alpha!r}")
        self.beta = checks.positive("beta", beta)
        self.kappa = checks.finite("kappa", kappa)
        if self.kappa < 0:
            raise ValueError(f"kappa must not be negative, got {kappa!r}")
        if boundary != "dirichlet" and kappa == 0:
            raise ValueError(
                f"kappa must be positive with boundary={boundary!r} (constants would have infinite "
                f"variance), got {kappa!r}"
            )
        extent = (1.0,) * lattice.ndim if extent is None else tuple(extent)
        if len(extent) != lattice.ndim:
            raise ValueError(f"extent must have {lattice.ndim} entries, got {extent!r}")
        self.extent = tuple(checks.positive("extent", length) for length in extent)
        mu = np.zeros(())
        for n, length in zip(lattice.shape, self.extent, strict=True):
            mu = np.add.outer(mu, eigenvalues(n, boundary, length))
        density = math.prod(lattice.shape) / math.prod(self.extent)  # cells per unit of volume
        variances = density * self.beta**2 * (self.kappa**2 + mu) ** (-1 - self.alpha)
        super().__init__(lattice.shape, variances, boundary, mean, channels)

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "kind": "LaplacePrior",
            "alpha": self.alpha,
            "beta": self.beta,
            "kappa": self.kappa,
            "extent": list(self.extent),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        return {"mean": np.asarray(self.mean)}


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
        waves = np.zeros((2 * n, *v.shape[:-1]))
        np.add.at(waves, frequency % (2 * n), np.moveaxis(c * sign * orientation, -1, 0))
        oscillation = np.moveaxis(np.fft.fft(waves, axis=0).real[points % (2 * n)], 0, -1)
        sums.append(c.sum(-1, keepdims=True) + oscillation)
    return np.stack(sums, -1)
