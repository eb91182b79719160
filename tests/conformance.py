"""The tables that drive the conformance tests: one line here covers a new bijection or prior."""

from collections.abc import Callable
from typing import NamedTuple

import jax.random as jr
import numpy as np
from flowjax.bijections import AbstractBijection, Reshape, Sigmoid

from helpers import moved, random_covariance, seeded
from msign.bijections import (
    ActNorm,
    AffineCoupling,
    CellFlow,
    CellMap,
    ChannelMix,
    ConditionalGaussian,
    DenseCoupling,
    GaussianMap,
    GlowBlock,
    GlowConfig,
    InformedConfig,
    InformedFlow,
    PlaneMap,
    SplineMap,
    Squeezed,
    TriangularMap,
    Whitened,
    glow_flow,
    glow_stack,
    informed_flow,
    informed_stack,
    squeeze_window,
    squeezed_shape,
)
from msign.bijections.conditional import Range
from msign.bijections.polynomials import Polynomials, Terms
from msign.inference import Combined, Emulator, Fresh, Glow, Informed, Pool
from msign.inference.flows import FlowKind, SplitGlow
from msign.inference.flows.directions import align
from msign.inference.flows.modes import gaussian_modes
from msign.inference.methods import Method
from msign.inference.methods.objectives import CentredJeffreys, PathwiseJeffreys, ScoreJeffreys
from msign.lattice import Lattice
from msign.priors import (
    BlockReflection,
    DensePrior,
    LaplacePrior,
    NearestConditioning,
    Prior,
    Rotation,
    ScalarPrior,
    SpectralPrior,
    WhitenedNearest,
)

KEY = jr.key(seeded(0))
BOUNDARIES = ("dirichlet", "neumann", "periodic")


def laplace(shape: tuple[int, ...], boundary: str = "dirichlet", **options: object) -> LaplacePrior:
    return LaplacePrior(shape, 0.3, 2.0, boundary, **{"kappa": 1.5, **options})


def positive(*shape: int) -> np.ndarray:
    return np.random.default_rng(seeded(1)).uniform(0.3, 2.0, shape)


FIELD = np.random.default_rng(seeded(2)).normal(size=(4, 4))

# Each kind in every dimension, each option once; `priors/` crosses boundaries with dimensions.
PRIORS: dict[str, Callable[[], Prior]] = {
    "Laplace 1-D": lambda: laplace((8,), "dirichlet"),
    "Laplace 2-D": lambda: laplace((4, 6), "neumann"),
    "Laplace 3-D": lambda: laplace((2, 4, 4), "periodic"),
    "Laplace extent": lambda: laplace((4, 4), extent=(2.0, 0.5)),
    "Laplace mean": lambda: laplace((4, 4), mean=FIELD),
    "Laplace channels": lambda: laplace((4, 2), "periodic", channels=3, mean=0.5),
    "Laplace of 15": lambda: laplace((15,), "periodic"),
    "Laplace of 6 x 10": lambda: laplace((6, 10), "dirichlet", mean=0.5),
    "Laplace of 6 x 4 x 3": lambda: laplace((6, 4, 3), "neumann"),
    "Spectral of 4 x 9": lambda: SpectralPrior((4, 9), positive(4, 9), "periodic", channels=2),
    "Spectral 1-D": lambda: SpectralPrior((6,), positive(6)),
    "Spectral 3-D": lambda: SpectralPrior((2, 2, 4), positive(2, 2, 4), "periodic", channels=2),
    "Dense 2-D": lambda: DensePrior(random_covariance(16), (4, 4), mean=FIELD),
    "Dense 3-D": lambda: DensePrior(random_covariance(24), (2, 2, 2), channels=3, mean=1.5),
    "Dense of 4 x 9": lambda: DensePrior(random_covariance(36), (4, 9), mean=1.5),
    "Dense downsampling": lambda: DensePrior(
        random_covariance(9),
        (3, 3),
        downsampling=[np.random.default_rng(seeded(5)).normal(size=s) for s in ((5, 9), (2, 5))],
    ),
    "Scalar 1-D": lambda: ScalarPrior((8,), (0.7, 0.4), 1.3),
    "Scalar 2-D": lambda: ScalarPrior((4, 4), (0.7, 0.4), 1.3, mean=FIELD),
    "Scalar bands 2-D": lambda: ScalarPrior((4, 4), (0.5, positive(3, 2)), 1.3, channels=2),
    "Scalar bands 3-D": lambda: ScalarPrior((2, 2, 2), (positive(7, 1),), 0.8),
    "Scalar of 15": lambda: ScalarPrior((15,), (0.7, positive(2, 2)), 1.3, channels=2),
    "Scalar bands of 4 x 9": lambda: ScalarPrior((4, 9), (positive(5, 1), positive(5, 1)), 1.3),
}


class Case(NamedTuple):
    make: Callable[[], AbstractBijection]
    identity: bool = True  # at the start
    trainable: bool = True
    masked: bool = False  # some entries of its weights are masked and have no gradient


def fixed(make: Callable[[], AbstractBijection]) -> Case:
    """A layer without parameters to train."""
    return Case(make, identity=False, trainable=False)


LATTICES = {
    "1-D": Lattice((8,), 2),
    "2-D": Lattice((4, 6)),
    "3-D": Lattice((2, 4, 2)),
    "of 3 x 10": Lattice((3, 10)),
}
ORTHOGONAL = np.linalg.qr(np.random.default_rng(seeded(4)).normal(size=(6, 6)))[0]


def squeezed(lattice: Lattice, basis: str) -> Squeezed:
    window = squeeze_window(lattice)
    shape = squeezed_shape(lattice, window)
    return Squeezed(ChannelMix(shape), lattice, window, basis, 0.3, positive(*shape))


def whitened(prior: Prior) -> Whitened:
    d = prior.lattice.dim
    return Whitened(Reshape(ChannelMix((d // 2, 2)), (d,)), prior)


def flow(prior: Prior, coordinates: str) -> AbstractBijection:
    return glow_flow(KEY, prior, GlowConfig(3, 5, coordinates=coordinates))


BANDS = {
    "1-D": lambda: laplace((8,), mean=0.4),
    "1-D odd": lambda: laplace((5,)),
    "2-D": lambda: laplace((4, 4), "neumann", mean=FIELD),
    "2-D odd": lambda: laplace((3, 4), "periodic"),
    "2-D channels": PRIORS["Scalar bands 2-D"],
    "3-D": lambda: laplace((4, 2, 2)),
    "2-D of 4 x 9": PRIORS["Scalar bands of 4 x 9"],
}
RAW = {n: BANDS[n] for n in ("1-D odd", "2-D channels")}

INFORMED = InformedConfig(blocks=4, hidden=5, single=8, conditional=5, rows=4)


def grown(*growth: tuple[int, str]) -> AbstractBijection:
    return informed_flow(KEY, growth, INFORMED)


def gaussian(dim: int) -> GaussianMap:
    matrix = np.random.default_rng(seeded(6)).normal(size=(dim, dim)) / dim + np.eye(dim)
    return GaussianMap(matrix, positive(dim))


def conditional() -> ConditionalGaussian:
    """Two variables, given three of which two functions and all products make the Gaussian."""
    rng = np.random.default_rng(seeded(8))
    terms = Terms.of(3, 2, 100)
    functions = Polynomials.of(terms, 2, rng.normal(size=(len(terms), 2)), FIELD[0, :3], np.ones(3))
    seen = tuple(Range.of(4 * rng.normal(size=(9, n))) for n in (3, 2))
    shifts, slopes = 0.3 * rng.normal(size=(3, 2, 4)), 0.1 * rng.normal(size=(3, 2, 2))
    return ConditionalGaussian(functions, seen, shifts, slopes + slopes.mT, positive(2))


def modes(dim: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Means and matrices of three Gaussians, apart by several standard deviations."""
    rng = np.random.default_rng(seeded(9))
    away = [np.zeros(dim), np.full(dim, 3.0), np.arange(dim) - 5.0]
    return [(mean, np.eye(dim) + 0.2 * rng.normal(size=(dim, dim))) for mean in away]


def cell_flow() -> CellFlow:
    prior = PRIORS["Laplace mean"]()
    return CellFlow(prior, gaussian(prior.lattice.dim))


def carried_flow() -> InformedFlow:
    """From a flow of two variables to one of three, along other directions."""
    basis, lifted = ORTHOGONAL[:, :3], np.linalg.qr(positive(6, 2))[0]
    before = moved(informed_stack(KEY, 2, INFORMED))
    now = informed_stack(jr.fold_in(KEY, 1), 3, INFORMED)
    return InformedFlow(align(basis, lifted), now, lifted, before)


# What depends on the dimension is there in every one; what acts on channels only, once.
BIJECTIONS: dict[str, Case] = {
    "ActNorm": Case(lambda: ActNorm((4, 3, 3))),
    "ChannelMix": Case(lambda: ChannelMix((4, 3, 4))),
    "ChannelMix permutation": Case(lambda: ChannelMix((3, 4), [2, 0, 3, 1]), identity=False),
    "AffineCoupling": Case(lambda: AffineCoupling(KEY, (4, 3, 3), 5)),
    "AffineCoupling silu": Case(lambda: AffineCoupling(KEY, (3, 4), 5, "silu", False, 0.5)),
    "AffineCoupling one cell": Case(lambda: AffineCoupling(KEY, (1, 1, 5), 5)),
    "GlowBlock": Case(lambda: GlowBlock(KEY, (4, 3, 4), [2, 0, 3, 1], 5)),
    "glow_stack": Case(lambda: glow_stack(KEY, (4, 3, 3), 3, 5)),
    "Squeezed pixel": Case(lambda: squeezed(LATTICES["1-D"], "pixel")),
    "Squeezed haar": Case(lambda: squeezed(LATTICES["3-D"], "haar")),
    "Whitened": Case(lambda: whitened(PRIORS["Laplace 2-D"]())),
    "Glow with splits": Case(lambda: SplitGlow(GlowConfig(2, 3)).made(KEY, laplace((4, 4))), False),
    **{
        f"NearestConditioning {n}": fixed(lambda l=l: NearestConditioning(l, 0.7))
        for n, l in LATTICES.items()
    },
    "WhitenedNearest": fixed(lambda: WhitenedNearest(*PRIORS["Laplace 2-D"]().hierarchy(2))),
    **{f"glow_flow bands {n}": Case(lambda p=p: flow(p(), "bands")) for n, p in BANDS.items()},
    **{f"glow_flow raw {n}": Case(lambda p=p: flow(p(), "raw")) for n, p in RAW.items()},
    **{
        f"PriorConditioning {n}": fixed(lambda n=n: PRIORS[n]().conditioning())
        for n in (
            *("Laplace 2-D", "Dense downsampling", "Scalar bands 2-D"),
            *("Laplace of 15", "Laplace of 6 x 4 x 3", "Dense of 4 x 9", "Scalar bands of 4 x 9"),
        )
    },
    "TriangularMap": Case(lambda: TriangularMap(4)),
    "PlaneMap": Case(lambda: PlaneMap(4, 5, 3, interval=6.0, least=1e-3), masked=True),
    "SplineMap": Case(lambda: SplineMap(3, knots=4, interval=6.0), masked=True),
    "DenseCoupling": Case(lambda: DenseCoupling(KEY, [True, False, True], 2, 5), masked=True),
    "informed_stack 1": Case(lambda: informed_stack(KEY, 1, INFORMED), masked=True),
    "informed_stack 5": Case(lambda: informed_stack(KEY, 5, INFORMED), masked=True),
    "informed_flow inner": Case(lambda: grown((2, "inner"), (4, "inner")), masked=True),
    "informed_flow wider": Case(lambda: grown((3, "inner"), (5, "wider")), masked=True),
    "informed_flow outer": Case(lambda: grown((2, "inner"), (3, "outer")), masked=True),
    "informed_flow affine": Case(lambda: grown((3, "affine"))),
    "InformedFlow": Case(
        lambda: InformedFlow(ORTHOGONAL[:, :3], informed_stack(KEY, 3, INFORMED)), masked=True
    ),
    "InformedFlow carried": Case(carried_flow, identity=False, masked=True),
    "GaussianMap": fixed(lambda: gaussian(5)),
    "GaussianModes": fixed(lambda: gaussian_modes(modes(4), np.array([1.0, 2.0, 1.5]))),
    "CellMap": Case(lambda: CellMap(FIELD, positive(4, 4))),
    "CellFlow": Case(cell_flow, identity=False),
    "ConditionalGaussian": fixed(conditional),
    "BlockReflection": fixed(lambda: BlockReflection(positive(4, 3), 2)),
    "Rotation": fixed(lambda: Rotation(ORTHOGONAL)),
    "Sigmoid": fixed(lambda: Sigmoid((4, 3))),
}

SMALL_INFORMED = Informed(InformedConfig(blocks=2, hidden=4, spline_rank=0))
SMALL_GLOW = Glow(GlowConfig(blocks=1, hidden=4), rate=2e-3)

# Kinds of flow that may stand at each scale of a network, and ways to train them.
FLOWS: dict[str, FlowKind] = {
    "Informed": SMALL_INFORMED,
    "Glow": SMALL_GLOW,
    "Combined": Combined((SMALL_INFORMED, SMALL_GLOW)),
}
METHODS: dict[str, Method] = {
    "Pool": Pool(steps=20, batch=64),
    "Emulator": Emulator(steps=20, batch=64),
    "Emulator of directions": Emulator(steps=20, batch=64, variables=1),
    "Fresh pathwise": Fresh(steps=5, batch=20, objective=PathwiseJeffreys()),
    "Fresh centred": Fresh(steps=5, batch=20, objective=CentredJeffreys()),
    "Fresh score": Fresh(steps=5, batch=20, objective=ScoreJeffreys()),
    "Fresh from chains": Fresh(
        steps=5, batch=20, objective=ScoreJeffreys(), tempered=False, chain=0.5
    ),
}
