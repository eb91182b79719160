"""The MsIGN network: sampling, densities, encoding, snapshots."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import paramax
import pytest
from flowjax.bijections import Chain as FlowChain
from flowjax.bijections import (
    Coupling,
    Identity,
    Permute,
    RationalQuadraticSpline,
    Reshape,
    Sigmoid,
)

from conformance import PRIORS, laplace
from helpers import covariance_of, in_float32, matrix_of, moved, seeded
from msign import GlowConfig, MsIGN
from msign.bijections import Whitened, glow_stack, start_from_data
from msign.network import Pass, part_of_flow

pytestmark = pytest.mark.usefixtures("quick_compilation")
SMALL = GlowConfig(blocks=(0, 2, 2), hidden=4)
N = 3  # fields in every call of a kind, so that compiled code is shared


@functools.cache
def network(conditioning="exact"):
    """Three scales with random flows above the coarsest."""
    made = MsIGN(laplace((8, 4)), 3, SMALL, conditioning=conditioning)
    return moved(made, 0.2)


@functools.cache
def two_scales():
    """Flows at both scales; on rows of cells, which compile fastest."""
    return moved(MsIGN(laplace((8,), mean=0.3), 2, GlowConfig(2, 4)), 0.2)


@eqx.filter_jit
def transformed(bijection, x):
    return bijection.transform(x)


def test_at_the_start_it_is_the_prior_at_every_scale():
    """With a mean, channels, and a coarsest scale of odd sides."""
    prior = laplace((12, 18), channels=2, mean=0.3)
    it = MsIGN(prior, 3, GlowConfig(1, 4))
    assert [l.field_shape for l in it.lattices] == [(3, 3, 2), (6, 9, 2), (12, 18, 2)]
    for scale, at_scale in enumerate(prior.hierarchy(3), start=1):
        x, log_p = it.sample_and_log_prob(jr.key(seeded(0)), N, scale)
        np.testing.assert_allclose(log_p, at_scale.log_prob(x), rtol=0, atol=1e-10)
        np.testing.assert_allclose(it.log_prob(x, scale), log_p, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", PRIORS)
def test_the_chain_of_identity_flows_has_the_prior_covariance(name):
    prior = PRIORS[name]()
    it = MsIGN(prior, prior.max_scales, GlowConfig(blocks=0))
    ends = [lattice.dim for lattice in it.lattices[:-1]]
    root = matrix_of(lambda z: it.decode(jnp.split(z, ends)), prior.lattice.dim)
    np.testing.assert_allclose(root @ root.T, covariance_of(prior), rtol=0, atol=1e-12)


@pytest.mark.parametrize("conditioning", ["exact", "nearest"])
def test_density_of_samples_at_every_scale(conditioning):
    it = network(conditioning)
    for scale in (2, 3):
        x, log_p = it.sample_and_log_prob(jr.key(seeded(1)), N, scale)
        assert x.shape == (N, *it.lattices[scale - 1].field_shape)
        np.testing.assert_allclose(it.log_prob(x, scale), log_p, rtol=0, atol=1e-9)
        np.testing.assert_array_equal(it.sample(jr.key(seeded(1)), N, scale), x)


@pytest.mark.parametrize("conditioning", ["exact", "nearest"])
def test_density_is_the_change_of_variables_of_decode(conditioning):
    """Equation (9) literally, with the Jacobian by autodiff, also at another temperature."""
    it, t = network(conditioning), 0.7
    ends = [2, 8]
    z = t * jnp.concatenate(it.noise(jr.key(seeded(2)), N), -1)[0]
    jacobian = jax.jit(jax.jacrev(lambda z: it.decode(jnp.split(z, ends)).reshape(-1)))(z)
    x, log_p = it.sample_and_log_prob(jr.key(seeded(2)), N, temperature=t)
    np.testing.assert_allclose(x[0], it.decode(jnp.split(z, ends)), atol=1e-12)
    gaussian = -0.5 * np.sum(z**2) / t**2 - z.size * np.log(t * np.sqrt(2 * np.pi))
    expected = gaussian - np.linalg.slogdet(jacobian)[1]
    np.testing.assert_allclose(log_p[0], expected, rtol=0, atol=1e-8)


def test_the_density_integrates_to_one():
    """On a lattice of two cells, over a grid that contains all the mass."""
    it = moved(MsIGN(laplace((2,), kappa=0.0), 2, GlowConfig((0, 2), 4)), 0.3)
    line = np.linspace(-8, 8, 501)
    x = np.stack(np.meshgrid(line, line), -1)
    p = np.exp(it.log_prob(x))
    assert p[0].max() < 1e-9 > p[:, 0].max()
    np.testing.assert_allclose(p.sum() * (line[1] - line[0]) ** 2, 1, rtol=1e-6)


def test_encode_and_decode_are_inverse_at_every_scale():
    it = network()
    for scale in (2, 3):
        x = it.sample(jr.key(seeded(3)), N, scale).reshape(
            N, 1, *it.lattices[scale - 1].field_shape
        )
        z = it.encode(x)
        assert [entry.shape for entry in z] == [(N, 1, 2), (N, 1, 6), (N, 1, 24)][:scale]
        np.testing.assert_allclose(it.decode(z), x, rtol=0, atol=1e-9)
        for found, given in zip(z, it.noise(jr.key(seeded(3)), N, scale), strict=True):
            np.testing.assert_allclose(found.reshape(given.shape), given, rtol=0, atol=1e-9)


def test_upto_leaves_finer_flows_out():
    it = two_scales()
    pruned = eqx.tree_at(lambda n: n.flows[1], it, Identity((8,)))
    x, log_p = it.sample_and_log_prob(jr.key(seeded(4)), N, upto=1)
    np.testing.assert_allclose(x, pruned.sample(jr.key(seeded(4)), N), rtol=0, atol=1e-12)
    np.testing.assert_allclose(log_p, pruned.log_prob(x), rtol=0, atol=1e-9)
    np.testing.assert_allclose(log_p, it.log_prob(x, upto=1), rtol=0, atol=1e-9)
    np.testing.assert_allclose(it.decode(it.encode(x, upto=1), upto=1), x, rtol=0, atol=1e-9)
    np.testing.assert_allclose(it.log_prob(x, upto=0), it.prior_at().log_prob(x), rtol=0, atol=1e-9)


def test_the_same_key_gives_refinements_of_the_same_field():
    it = two_scales()
    coarse = it.sample(jr.key(seeded(4)), N, scale=1)
    refined = it.sample(jr.key(seeded(4)), N, upto=1)
    np.testing.assert_allclose(it.lattices[1].pool(refined), coarse, rtol=0, atol=1e-12)


@pytest.mark.parametrize("conditioning", ["exact", "nearest"])
def test_log_ratio_is_the_difference_to_the_prior(conditioning):
    it = network(conditioning)
    x = it.sample(jr.key(seeded(6)), N)
    expected = it.log_prob(x) - it.prior_at().log_prob(x)
    np.testing.assert_allclose(it.log_ratio(x), expected, rtol=0, atol=1e-9)


def test_a_pass_holds_noise_coordinates_and_excess():
    it = two_scales()
    z = tuple(entry[0] for entry in it.noise(jr.key(seeded(7)), N))
    there = eqx.filter_jit(lambda n, z: n.forward(z))(it, z)
    back = eqx.filter_jit(lambda n, u: n.backward(u, 2))(it, there.u)
    assert isinstance(there, Pass)
    for a, b in zip(there, back, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)


def test_gradients_reach_every_flow_and_only_the_flows():
    it = two_scales()
    x = it.sample(jr.key(seeded(8)), N)

    @eqx.filter_jit
    @eqx.filter_grad
    def gradient(n):
        return n.log_prob(x).mean()

    g = gradient(it)
    for flow in g.flows:
        trained = flow.inner.bijection.coupling.conditioner
        assert np.abs(trained.last).max() > 0
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves((g.priors, g.refinements)))


def test_float32():
    it = in_float32(two_scales())
    x, log_p = it.sample_and_log_prob(jr.key(seeded(9)), N)
    assert x.dtype == jnp.float32
    np.testing.assert_allclose(it.log_prob(x), log_p, rtol=0, atol=2e-3)
    z = it.encode(x)
    assert {entry.dtype for entry in z} == {np.dtype("float32")}
    np.testing.assert_allclose(it.decode(z), x, rtol=0, atol=1e-4)


def with_splines(seed):
    """A spline coupling from flowjax on the flattened field of the finer scale."""
    coupling = Coupling(
        jr.key(seeded(seed)),
        transformer=RationalQuadraticSpline(knots=4, interval=4),
        untransformed_dim=4,
        dim=8,
        nn_width=8,
        nn_depth=1,
    )
    chain = FlowChain([coupling, Permute(jnp.arange(8)[::-1])])
    return MsIGN(laplace((8,)), 2, [Identity((4,)), chain])


def test_a_spline_coupling_in_the_place_of_glow(tmp_path):
    it = with_splines(0)
    x, log_p = it.sample_and_log_prob(jr.key(seeded(1)), N)
    np.testing.assert_allclose(it.log_prob(x), log_p, rtol=0, atol=1e-8)
    assert np.abs(log_p - it.prior_at().log_prob(x)).max() > 1e-3
    it.save(tmp_path / "network")
    loaded = MsIGN.load(tmp_path / "network", like=with_splines(5))
    np.testing.assert_array_equal(loaded.sample(jr.key(seeded(1)), N), x)
    with pytest.raises(ValueError, match="like"):
        MsIGN.load(tmp_path / "network")


def test_a_flow_in_whitened_coordinates():
    prior = laplace((8,))
    inner = Reshape(glow_stack(jr.key(seeded(0)), (4, 2), 2, 4), (8,))
    it = moved(MsIGN(prior, 1, [Whitened(inner, prior)]))
    x, log_p = it.sample_and_log_prob(jr.key(seeded(1)), 2)
    np.testing.assert_allclose(it.log_prob(x), log_p, rtol=0, atol=1e-9)
    head = prior.unwhiten(it.noise(jr.key(seeded(1)), 2)[0])
    np.testing.assert_allclose(transformed(it.flows[0], head[0]), x[0], atol=1e-10)


def test_snapshots_lead_from_head_to_tail_of_each_flow():
    it = two_scales()
    z = it.noise(jr.key(seeded(1)), N)
    shown = it.snapshots(z, per_scale=3)
    assert [[s.shape for s in scale] for scale in shown] == [
        [(N, *lattice.shape)] * 3 for lattice in it.lattices
    ]
    for l, (head, middle, tail) in enumerate(shown, start=1):
        np.testing.assert_allclose(head, it.decode(z[:l], upto=l - 1), atol=1e-12)
        np.testing.assert_allclose(tail, it.decode(z[:l]), atol=1e-12)
        assert np.abs(middle - head).max() > 1e-6 < np.abs(middle - tail).max()


def test_part_of_a_flow():
    flow = paramax.unwrap(two_scales().flows[1])
    x = two_scales().sample(jr.key(seeded(1)), N)[0]
    np.testing.assert_allclose(transformed(part_of_flow(flow, 0), x), x, atol=1e-12)
    assert part_of_flow(flow, 1) is flow
    block = jax.tree.map(lambda a: a[0] if eqx.is_array(a) else a, flow.inner.bijection)
    expected = eqx.tree_at(lambda f: f.inner, flow, block)
    half = part_of_flow(flow, 0.5)
    np.testing.assert_allclose(transformed(half, x), transformed(expected, x), atol=1e-12)
    assert isinstance(part_of_flow(Sigmoid((3,)), 0.5), Identity)


def test_output_activation():
    plain = two_scales()
    it = eqx.tree_at(lambda n: n.output, plain, Sigmoid())
    x, log_p = it.sample_and_log_prob(jr.key(seeded(1)), N)
    raw, raw_log_p = plain.sample_and_log_prob(jr.key(seeded(1)), N)
    np.testing.assert_allclose(x, jax.nn.sigmoid(raw), atol=1e-12)
    jacobian = np.log(x * (1 - x)).sum(1)
    np.testing.assert_allclose(log_p, raw_log_p - jacobian, atol=1e-9)
    np.testing.assert_allclose(it.log_prob(x), log_p, rtol=0, atol=1e-8)
    np.testing.assert_allclose(it.decode(it.encode(x)), x, atol=1e-10)
    np.testing.assert_allclose(it.log_ratio(x), plain.log_ratio(raw), atol=1e-8)
    assert it.snapshots(it.noise(jr.key(seeded(1)), N)[:1])[0][0].min() > 0


def test_numbers_of_parameters():
    it = network()
    # ActNorm 8, 1x1 convolution 12 + 4; coupling 2 -> 4 -> 4 -> 4 channels with place weights.
    coupling = (9 * 2 * 4 + 4) + 2 * 4 + (4 * 4 + 4) + (9 * 4 * 4 + 4)
    finest = 2 * (8 + 16 + coupling)
    assert it.parameters()[0] == 0
    assert it.parameters()[2] == finest
    assert it.describe()["parameters"] == list(it.parameters())


def test_data_dependent_start_standardises_every_actnorm():
    rng = np.random.default_rng(seeded(0))
    x = 3.0 + np.array([0.1, 1.0, 20.0]) * rng.normal(size=(500, 4, 3))
    stack = start_from_data(moved(glow_stack(jr.key(seeded(0)), (4, 3), 3, 4)), x)
    y = jnp.asarray(x)
    inverse = eqx.filter_jit(lambda block, y: jax.vmap(block.inverse)(y))
    for k in (2, 1, 0):
        block = jax.tree.map(lambda a, k=k: a[k] if eqx.is_array(a) else a, stack.bijection)
        y = inverse(block, y)
        np.testing.assert_allclose(y.mean((0, 1)), 0, atol=1e-6)
        np.testing.assert_allclose(y.std((0, 1)), 1, atol=1e-4)


def test_no_fields():
    assert network().sample(jr.key(seeded(0)), 0).shape == (0, 8, 4)


def test_scales_are_ordered_coarse_to_fine():
    dims = [lattice.dim for lattice in network().lattices]
    assert all(fine == 4 * coarse for coarse, fine in itertools.pairwise(dims))
