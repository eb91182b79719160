"""Bad input gives one line that names the argument and the value."""

import functools

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from flowjax.bijections import Identity, Sigmoid

from conformance import laplace
from helpers import random_covariance, refused
from msign import DensePrior, GlowConfig, LaplacePrior, Lattice, MsIGN, ScalarPrior, SpectralPrior
from msign.bijections import AffineCoupling, Squeezed, Whitened, glow_stack
from msign.priors import NearestConditioning, estimate_mu

NAN = float("nan")
INDEFINITE = np.diag([1.0, 2.0, -0.5, 1.0])
SINGULAR = np.ones((4, 4))
LOPSIDED = np.eye(4) + np.eye(4, k=1)
RANK_ONE = np.ones((2, 4))


@functools.cache
def network():
    return MsIGN(laplace((4, 4)), 2, GlowConfig(blocks=0))


CASES = {
    # shapes
    "shape string": (lambda: Lattice("16"), "shape", "'16'"),
    "shape of strings": (lambda: LaplacePrior(("8", "8"), 0.1, 2.0), "shape", "('8', '8')"),
    "shape float": (lambda: Lattice((4.0, 4)), "shape", "(4.0, 4)"),
    "shape number": (lambda: Lattice(2.5), "shape", "2.5"),
    "shape 4-D": (lambda: Lattice((2, 2, 2, 2)), "shape", "(2, 2, 2, 2)"),
    "shape empty": (lambda: Lattice(()), "shape", "()"),
    "shape zero": (lambda: Lattice((4, 0)), "shape", "(4, 0)"),
    "channels": (lambda: Lattice((4,), 0), "channels", "0"),
    "pool": (lambda: Lattice((4, 4)).pool(np.zeros((4, 5))), "x", "(4, 5)"),
    "pool odd": (lambda: Lattice((4, 7)).pool(np.zeros((4, 7))), "shape", "(4, 7)", "7"),
    "upsample": (lambda: Lattice((4, 4)).upsample(np.zeros((4, 4))), "x", "(4, 4)"),
    "prior log_prob": (lambda: laplace((4, 4)).log_prob(np.zeros((2, 5))), "x", "(2, 5)"),
    "network log_prob": (lambda: network().log_prob(np.zeros((2, 2))), "x", "(2, 2)"),
    "encode": (lambda: network().encode(np.zeros((3, 3))), "x", "(3, 3)"),
    "decode": (lambda: network().decode([np.zeros(4), np.zeros(11)]), "z_2", "(11,)"),
    "decode too many": (lambda: network().decode([np.zeros(4)] * 3), "entries of z", "3"),
    "mean": (lambda: laplace((4, 4), mean=np.zeros(4)), "mean", "(4,)"),
    "variances": (lambda: SpectralPrior((4,), np.ones(5)), "variances", "(5,)"),
    "covariance": (lambda: DensePrior(np.eye(4), (5,)), "covariance", "(4, 4)"),
    "extent": (lambda: laplace((4, 4), extent=(1.0,)), "extent", "(1.0,)"),
    "mu shape": (lambda: ScalarPrior((4, 4), (np.ones(2),)), "mu", "(2,)"),
    "fields": (lambda: estimate_mu(np.zeros((4, 4)), Lattice((4, 4)), 2), "fields", "(4, 4)"),
    "flow shape": (
        lambda: MsIGN(laplace((4, 4)), 2, [Identity((2, 2)), Identity((4, 3))]),
        "flow of scale 2",
        "(4, 3)",
    ),
    "flow count": (lambda: MsIGN(laplace((4, 4)), 2, [Identity((4, 4))]), "flow", "2 entries"),
    "inner of Squeezed": (
        lambda: Squeezed(Identity((2, 2, 3)), Lattice((4, 4)), (2, 2)),
        "inner",
        "(2, 2, 3)",
    ),
    "inner of Whitened": (lambda: Whitened(Identity((4, 4)), laplace((4, 4))), "inner", "(4, 4)"),
    "output shape": (lambda: MsIGN(laplace((4,)), 1, output=Sigmoid((4,))), "output", "(4,)"),
    # lattices that cannot be divided often enough
    "scales": (lambda: MsIGN(laplace((12, 8)), 5), "scales", "(12, 8)", "5"),
    "scales of 7": (lambda: Lattice((7,)).hierarchy(3), "at most 1", "(7,)", "3", "(8,) has"),
    "scales of 11": (lambda: MsIGN(laplace((11, 8)), 3), "at most 1", "(11, 8)", "(12, 8) has"),
    "scales of 44": (lambda: MsIGN(laplace((44,)), 5), "at most 3", "(44,)", "5", "(48,) has"),
    "pool prime": (lambda: Lattice((4, 11)).coarsen(), "side 11", "2, 3 or 5", "12"),
    "scales zero": (lambda: MsIGN(laplace((4,)), 0), "scales", "0"),
    "scales float": (lambda: MsIGN(laplace((4,)), 2.0), "scales", "2.0"),
    "hierarchy": (lambda: Lattice((28, 28)).hierarchy(4), "scales", "(28, 28)", "4"),
    "scales scalar": (lambda: ScalarPrior((8,), (0.5,)).hierarchy(3), "scales", "2", "(8,)", "3"),
    "mu too many": (lambda: ScalarPrior((6,), (0.5, 0.5, 0.5)), "scales", "(6,)", "4"),
    "scales dense": (
        lambda: DensePrior(np.eye(4), (4,), downsampling=[np.eye(2, 4)]).hierarchy(3),
        "scales",
        "2",
        "3",
    ),
    "nearest prime": (lambda: NearestConditioning(Lattice((7,))), "shape", "(7,)"),
    # covariances
    "not definite": (lambda: DensePrior(INDEFINITE, (4,)), "covariance", "-0.5"),
    "singular": (lambda: DensePrior(SINGULAR, (2, 2)), "covariance", "positive definite"),
    "not symmetric": (lambda: DensePrior(LOPSIDED, (4,)), "covariance", "symmetric", "1"),
    "covariance NaN": (lambda: DensePrior(np.full((2, 2), NAN), (2,)), "covariance", "nan"),
    "covariance text": (lambda: DensePrior("identity", (2,)), "covariance", "'identity'"),
    "variances sign": (lambda: SpectralPrior((2,), [1.0, 0.0]), "variances", "0.0"),
    "rank": (
        lambda: DensePrior(random_covariance(4), (4,), downsampling=[RANK_ONE]),
        "downsampling",
        "rank 1",
    ),
    "downsampling": (
        lambda: DensePrior(random_covariance(4), (4,), downsampling=[np.eye(4)]),
        "downsampling",
        "(4, 4)",
    ),
    # numbers out of range
    "alpha": (lambda: LaplacePrior((4,), -1.0, 2.0), "alpha", "-1.0"),
    "alpha NaN": (lambda: LaplacePrior((4,), NAN, 2.0), "alpha", "nan"),
    "alpha None": (lambda: LaplacePrior((4,), None, 2.0), "alpha", "None"),
    "beta": (lambda: LaplacePrior((4,), 0.1, 0.0), "beta", "0.0"),
    "beta infinite": (lambda: LaplacePrior((4,), 0.1, float("inf")), "beta", "inf"),
    "kappa": (lambda: LaplacePrior((4,), 0.1, 2.0, kappa=-1.0), "kappa", "-1.0"),
    "kappa neumann": (lambda: LaplacePrior((4,), 0.1, 2.0, "neumann"), "kappa", "'neumann'", "0.0"),
    "kappa periodic": (lambda: LaplacePrior((4,), 0.1, 2.0, "periodic"), "kappa", "'periodic'"),
    "boundary": (lambda: LaplacePrior((4,), 0.1, 2.0, "robin"), "boundary", "'robin'"),
    "extent sign": (lambda: laplace((4,), extent=(-1.0,)), "extent", "-1.0"),
    "std": (lambda: ScalarPrior((4,), (), std=-1.0), "std", "-1.0"),
    "mu": (lambda: ScalarPrior((4,), (-0.5,)), "mu", "-0.5"),
    "noise_std": (lambda: NearestConditioning(Lattice((4,)), 0.0), "noise_std", "0.0"),
    "blocks": (lambda: GlowConfig(blocks=-1), "blocks", "-1"),
    "blocks float": (lambda: GlowConfig(blocks=2.5), "blocks", "2.5"),
    "blocks per scale": (
        lambda: MsIGN(laplace((4, 4)), 2, GlowConfig(blocks=(1, 1, 1))),
        "blocks",
        "(1, 1, 1)",
    ),
    "blocks of a single value": (lambda: MsIGN(laplace((4,)), 3, GlowConfig(2)), "blocks", "2"),
    "blocks of a large odd lattice": (
        lambda: MsIGN(laplace((37, 37)), 1, GlowConfig(2)),
        "(37, 37)",
        "1369",
    ),
    "hidden": (lambda: GlowConfig(hidden=0), "hidden", "0"),
    "coordinates": (lambda: GlowConfig(coordinates="polar"), "coordinates", "'polar'"),
    "activation": (lambda: GlowConfig(activation="sine"), "activation", "'sine'"),
    "max_log_scale": (lambda: GlowConfig(max_log_scale=0.0), "max_log_scale", "0.0"),
    "one channel": (lambda: AffineCoupling(jr.key(0), (4, 1)), "channels", "1"),
    "stack of none": (lambda: glow_stack(jr.key(0), (4, 2), 0), "blocks", "0"),
    "window": (lambda: Squeezed(Identity((2, 2)), Lattice((4,)), (3,)), "window", "(3,)"),
    "haar window": (
        lambda: Squeezed(Identity((1, 4)), Lattice((4,)), (4,), "haar"),
        "window",
        "(4,)",
    ),
    "temperature": (lambda: network().sample(jr.key(0), 1, temperature=0.0), "temperature", "0.0"),
    "n": (lambda: network().sample(jr.key(0), -1), "n must", "-1"),
    "n prior": (lambda: laplace((4,)).sample(jr.key(0), 1.5), "n must", "1.5"),
    "scale": (lambda: network().sample(jr.key(0), 1, scale=3), "scale", "3"),
    "scale log_prob": (lambda: network().log_prob(np.zeros((4, 4)), scale=0), "scale", "0"),
    "upto": (lambda: network().sample(jr.key(0), 1, upto=5), "upto", "5"),
    "per_scale": (lambda: network().snapshots([np.zeros(4)], per_scale=1), "per_scale", "1"),
    "conditioning": (lambda: MsIGN(laplace((4,)), 2, conditioning="x"), "conditioning", "'x'"),
    # things of the wrong kind
    "prior": (lambda: MsIGN(np.eye(4), 2), "prior", "Prior"),
    "flow": (lambda: MsIGN(laplace((4,)), 1, [jnp.tanh]), "flow of scale 1", "AbstractBijection"),
    "output": (lambda: MsIGN(laplace((4,)), 1, output=jnp.tanh), "output", "AbstractBijection"),
}


@pytest.mark.parametrize("name", CASES)
def test_one_line_names_argument_and_value(name):
    call, *parts = CASES[name]
    with refused(*parts):
        call()
