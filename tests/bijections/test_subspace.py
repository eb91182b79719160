"""Flows of few variables as they grow: what is new changes nothing at first."""

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
import paramax
import pytest

from helpers import moved, seeded
from msign import InformedConfig
from msign.bijections import informed_flow
from msign.bijections.subspace import can_widen, grown_flow

pytestmark = pytest.mark.usefixtures("quick_compilation")
AFFINE = InformedConfig(blocks=3, hidden=5, spline_rank=0)
SPLINES = InformedConfig(splines=3, hidden=5, knots=4, spline_rank=9)
N = 6


@eqx.filter_jit
def apply(flow, z):
    return jax.vmap(flow.transform_and_log_det)(z)


@pytest.mark.parametrize(
    ("config", "growth", "place"),
    [
        (AFFINE, ((3, "inner"),), "wider"),
        (AFFINE, ((3, "inner"),), "outer"),
        (AFFINE, ((2, "inner"), (3, "wider")), "wider"),
        (AFFINE, ((2, "affine"), (3, "inner")), "wider"),
        (AFFINE, ((3, "affine"),), "inner"),
        (SPLINES, ((3, "inner"),), "inner"),
        (SPLINES, ((3, "inner"),), "outer"),
    ],
)
@pytest.mark.parametrize("rank", [4, 6])
def test_a_grown_flow_does_the_same_to_its_variables_and_nothing_to_new_ones(
    config, growth, place, rank
):
    flow = moved(informed_flow(jr.key(seeded(0)), growth, config), 0.3)
    wide = grown_flow(jr.key(seeded(1)), flow, rank, place, config)
    z = jr.normal(jr.key(seeded(2)), (N, rank))
    expected, log_det = apply(paramax.unwrap(flow), z[:, :3])
    found, same = apply(paramax.unwrap(wide), z)
    np.testing.assert_allclose(found[:, :3], expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found[:, 3:], z[:, 3:], rtol=0, atol=1e-9)
    np.testing.assert_allclose(same, log_det, rtol=0, atol=1e-9)
    assert np.abs(expected - z[:, :3]).max() > 0.1
    # Its structure is that of a flow that is made with this history.
    like = informed_flow(jr.key(0), (*growth, (rank, place)), config)
    assert jax.tree.structure(like) == jax.tree.structure(wide)
    shapes = [[np.shape(a) for a in jax.tree.leaves(each)] for each in (like, wide)]
    assert shapes[0] == shapes[1]


def test_only_flows_that_begin_with_affine_couplings_widen():
    made = {
        ((3, "inner"),): True,
        ((2, "inner"), (3, "wider")): True,
        ((2, "affine"), (3, "inner")): True,
        ((3, "affine"),): False,
        ((2, "inner"), (3, "outer")): False,
    }
    for growth, expected in made.items():
        assert can_widen(informed_flow(jr.key(0), growth, AFFINE)) == expected
    assert not can_widen(informed_flow(jr.key(0), ((3, "inner"),), SPLINES))
