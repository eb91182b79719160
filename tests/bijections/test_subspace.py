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
SPLINES = InformedConfig(blocks=3, hidden=5, single=8, conditional=6, rows=5)
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
        (SPLINES, ((1, "inner"),), "inner"),
        (SPLINES, ((2, "inner"),), "inner"),
        (SPLINES, ((2, "inner"),), "outer"),
        (SPLINES, ((1, "inner"), (2, "wider")), "inner"),
    ],
)
@pytest.mark.parametrize("rank", [4, 6])
def test_a_grown_flow_does_the_same_to_its_variables_and_nothing_to_new_ones(
    config, growth, place, rank
):
    check_growth(config, growth, place, rank)


def test_the_spline_of_one_variable_becomes_that_of_the_first_of_two():
    check_growth(SPLINES, ((1, "inner"),), "wider", 2)


def check_growth(config, growth, place, rank):
    old = growth[-1][0]
    flow = moved(informed_flow(jr.key(seeded(0)), growth, config), 0.3)
    wide = grown_flow(jr.key(seeded(1)), flow, rank, place, config)
    z = jr.normal(jr.key(seeded(2)), (N, rank))
    expected, log_det = apply(paramax.unwrap(flow), z[:, :old])
    found, same = apply(paramax.unwrap(wide), z)
    np.testing.assert_allclose(found[:, :old], expected, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found[:, old:], z[:, old:], rtol=0, atol=1e-9)
    np.testing.assert_allclose(same, log_det, rtol=0, atol=1e-9)
    assert np.abs(expected - z[:, :old]).max() > 0.1
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
        assert can_widen(informed_flow(jr.key(0), growth, AFFINE), 4, AFFINE) == expected


def test_a_single_spline_widens_to_two_variables_and_no_more():
    single, both = (informed_flow(jr.key(0), ((r, "inner"),), SPLINES) for r in (1, 2))
    assert can_widen(single, 2, SPLINES)
    assert not can_widen(single, 3, SPLINES)
    assert not can_widen(both, 3, SPLINES)
