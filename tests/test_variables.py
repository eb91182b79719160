"""The variables that a network moves: densities by change of variables, coordinates, training."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import paramax
import pytest

from helpers import identical, moved, seeded
from msign import GlowConfig, InformedConfig, LaplacePrior, MsIGN
from msign.bijections import InformedFlow, Whitened, informed_flow
from msign.inference.flows.directions import align, lift_directions
from msign.noise import normal
from msign.training import split_trainable
from msign.variables import (
    VALUES_AT_ONCE,
    Variables,
    draw,
    in_pieces,
    log_ratio,
    log_ratio_and_score,
    pulled_back,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

SMALL = InformedConfig(blocks=2, hidden=4, single=8, conditional=6, rows=5)
PRIOR = LaplacePrior((8,), alpha=0.3, beta=2.0)
N = 6


def informed() -> Variables:
    """Three of eight whitened coordinates, rotated."""
    flow = moved(informed_flow(jr.key(seeded(0)), ((3, "inner"),), SMALL), 0.3)
    basis = jnp.linalg.qr(jr.normal(jr.key(seeded(1)), (8, 3)))[0]
    return Variables(flow, paramax.non_trainable(basis), 8)


def glow_network(conditioning: str = "exact") -> MsIGN:
    made = MsIGN(PRIOR, 2, GlowConfig(1, 4), key=jr.key(seeded(2)), conditioning=conditioning)
    return moved(made, 0.2)


MAKERS = {
    "informed": informed,
    "network": lambda: glow_network().variables(),
    "network, nearest": lambda: glow_network("nearest").variables(),
}


@pytest.mark.parametrize("name", MAKERS)
def test_log_ratio_is_the_density_over_that_of_the_prior(name):
    """By the Jacobian of the map from noise, which automatic differentiation gives."""
    variables = MAKERS[name]()
    z = jr.normal(jr.key(seeded(3)), (N, variables.size))
    s, ratio = eqx.filter_jit(variables.forward)(z)
    back, same = eqx.filter_jit(variables.backward)(s)
    np.testing.assert_allclose(back, z, rtol=0, atol=1e-9)
    np.testing.assert_allclose(same, ratio, rtol=0, atol=1e-9)
    jacobian = jax.jit(jax.vmap(jax.jacrev(lambda z: variables.forward(z[None])[0][0])))(z)
    density = -0.5 * np.sum(z**2, 1) - np.linalg.slogdet(np.asarray(jacobian))[1]
    np.testing.assert_allclose(ratio, density + 0.5 * np.sum(s**2, 1), rtol=0, atol=1e-9)
    assert np.ptp(ratio) > 0.1


@pytest.mark.parametrize("name", ["informed", "network"])
def test_score_is_the_slope_of_the_log_ratio(name):
    variables = MAKERS[name]()
    s = jr.normal(jr.key(seeded(4)), (N, variables.size))
    step = 1e-5 * jr.normal(jr.key(seeded(5)), (N, variables.size))
    value, score = log_ratio_and_score(variables, s)
    np.testing.assert_allclose(value, log_ratio(variables, s), rtol=0, atol=1e-12)
    slope = (log_ratio(variables, s + step) - log_ratio(variables, s - step)) / 2
    np.testing.assert_allclose(np.sum(score * step, 1), slope, rtol=1e-5, atol=1e-11)
    z, _ = variables.backward(s)
    np.testing.assert_allclose(variables.score(s, z), score - s, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MAKERS)
def test_where_a_batch_lies_in_memory_does_not_matter(name):
    variables = MAKERS[name]()
    other = Variables(variables.flow, variables.basis, variables.dim, not variables.lanes)
    z = jr.normal(jr.key(seeded(8)), (N, variables.size))
    for way in ("forward", "backward"):
        one, two = (eqx.filter_jit(getattr(v, way))(z) for v in (variables, other))
        for a, b in zip(one, two, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 1025])
def test_batches_of_any_size_are_those_of_their_rows(n):
    """Rows are padded to few sizes: what is added does not come back."""
    variables = informed()
    noise = normal(jr.key(seeded(9)), (1025, 8))
    whole, part = draw(variables, noise), draw(variables, noise[:n])
    for a, b in zip(whole, part, strict=True):
        assert isinstance(b, np.ndarray) and len(b) == n
        np.testing.assert_allclose(b, a[:n], rtol=0, atol=1e-10)
    ratio = log_ratio(variables, part[1])
    assert isinstance(ratio, np.ndarray) and ratio.shape == (n,)
    np.testing.assert_allclose(ratio, part[2], rtol=0, atol=1e-9)


def test_few_programs_serve_batches_of_all_sizes():
    sizes = set()

    def program(rows):
        sizes.add(rows.shape)
        return (2 * rows,)

    for n in [*range(1, 5000, 97), 5000]:
        rows = np.arange(3 * n, dtype=float).reshape(n, 3)
        np.testing.assert_array_equal(in_pieces(program, rows)[0], 2 * rows)
    assert len(sizes) == 2


def test_no_piece_holds_more_numbers_than_it_may():
    sizes = []
    in_pieces(lambda rows: (sizes.append(rows.size) or rows[:, :1],), np.zeros((300, 2**17)))
    assert max(sizes) <= VALUES_AT_ONCE and len(sizes) == 3


def test_fields_have_the_variables_along_the_basis_and_noise_elsewhere():
    variables = informed()
    basis = paramax.unwrap(variables.basis)
    noise = jr.normal(jr.key(seeded(6)), (N, 8))
    u, s, ratio = draw(variables, noise)
    np.testing.assert_allclose(variables.reduce(u), s, rtol=0, atol=1e-12)
    across = np.eye(8) - basis @ basis.T
    np.testing.assert_allclose(u @ across, noise @ across, rtol=0, atol=1e-12)
    np.testing.assert_allclose(log_ratio(variables, s), ratio, rtol=0, atol=1e-9)
    assert np.abs(s - noise @ basis).max() > 0.1


@pytest.mark.parametrize("name", ["informed", "network"])
def test_gradients_in_the_noise(name):
    """Of half of the squared norm of the field minus log p - log prior, by differences."""
    variables, step = MAKERS[name](), 1e-5
    z = normal(jr.key(seeded(7)), (N, 8))
    direction = normal(jr.key(seeded(8)), (N, 8))

    def value(z):
        u, _, ratio = draw(variables, z)
        return 0.5 * np.sum(u**2, 1) - ratio

    slope = (value(z + step * direction) - value(z - step * direction)) / (2 * step)
    found = pulled_back(variables, z, draw(variables, z)[0])
    np.testing.assert_allclose((found * direction).sum(1), slope, rtol=1e-5, atol=1e-6)


def test_of_an_untrained_network_they_are_noise():
    variables = Variables(informed_flow(jr.key(0), ((3, "inner"),), SMALL), None, 3)
    s, ratio = variables.forward(jnp.array([[0.3, -1.0, 2.0]]))
    np.testing.assert_allclose(s, [[0.3, -1.0, 2.0]], rtol=0, atol=1e-12)
    np.testing.assert_allclose(ratio, 0, rtol=0, atol=1e-12)


def informed_network() -> MsIGN:
    """Informed flows of two variables at both scales, the second behind the first."""
    network = glow_network()
    for l, d in ((1, 4), (2, 8)):
        prior = network.prior_at(l)
        flow = moved(informed_flow(jr.key(seeded(l)), ((2, "inner"),), SMALL), 0.2, l)
        basis, lifted, before = np.eye(d)[:, :2], None, None
        if l == 2:
            lifted, before = lift_directions(prior, np.eye(4)[:, :2]), network.flows[0].inner.now
            basis = align(basis, lifted)
        network = network.with_flow(l, Whitened(InformedFlow(basis, flow, lifted, before), prior))
    return network


@pytest.mark.parametrize("train", ["all", "last"])
@pytest.mark.parametrize("make", [glow_network, informed_network])
def test_trained_variables_are_put_back_into_the_network(make, train):
    network = make()
    taken = network.variables(2, train)
    assert identical(network.with_variables(2, taken, train), network)
    changed = network.with_variables(2, moved(taken, 0.1, seed=11), train)
    assert not identical(changed.flows[1], network.flows[1])
    # Informed flows stand alone: all that coarser ones do goes through the last of them.
    coarse_too = make is glow_network and train == "all"
    assert identical(changed.flows[0], network.flows[0]) != coarse_too
    assert identical((changed.priors, changed.refinements), (network.priors, network.refinements))


@pytest.mark.parametrize("train", ["all", "last"])
def test_trainable_numbers_are_those_of_the_trained_flows(train):
    network = glow_network()
    trainable, _ = split_trainable(network.variables(2, train))
    count = sum(a.size for a in jax.tree.leaves(trainable))
    assert count == sum(network.parameters()[0 if train == "all" else 1 :])


@pytest.mark.parametrize("make", [glow_network, informed_network])
def test_their_density_is_that_of_the_network(make):
    network = make()
    variables = network.variables()
    u, _, ratio = draw(variables, jr.normal(jr.key(seeded(7)), (N, 8)))
    x = network.prior_at().unwhiten(u)
    np.testing.assert_allclose(network.log_ratio(x), ratio, rtol=0, atol=1e-9)
