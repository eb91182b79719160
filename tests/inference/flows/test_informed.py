"""Informed flows from scale to scale: what they start from, what they carry over, how they grow."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import paramax
import pytest
from flowjax.bijections import Chain, Indexed, LeakyTanh

from conformance import SMALL_INFORMED as KIND
from helpers import identical, matrix_of, moved, seeded
from inference.small import (
    ROW,
    gaussian_log_ratio,
    growing_problem,
    linear_problem,
    ring_problem,
    start_at,
)
from msign import FitConfig, InformedConfig, InverseProblem, LaplacePrior, Simulator
from msign.bijections import InformedFlow, TriangularMap
from msign.inference.files import prior_network
from msign.inference.flows.directions import align, lift_directions
from msign.inference.flows.informed import _exact_gaussian, _gaussian_given
from msign.inference.flows.probe import Given, Probe
from msign.noise import normal
from msign.variables import Variables, draw, log_ratio

pytestmark = pytest.mark.usefixtures("quick_compilation")
SMALL = InformedConfig(blocks=2, hidden=4, spline_rank=0)


def orthonormal(d: int, r: int, seed: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seeded(seed)).normal(size=(d, r)))[0]


@eqx.filter_jit
def apply(flow: InformedFlow, u: jnp.ndarray) -> tuple[jnp.ndarray, jnp.ndarray]:
    """A batch of fields moved, and log-determinants."""
    return jax.vmap(flow.transform_and_log_det)(u)


# --- the rotation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "carried"), [(3, 3), (4, 2)])
def test_with_the_same_flow_it_is_a_rotation_of_the_lifted_basis(rank, carried):
    """F_l = N M^{-1} Q with N = M (on the continued variables) is Q."""
    d, lifted = 9, orthonormal(9, carried, 0)
    basis = align(orthonormal(d, rank, 1), lifted)
    before = Chain([moved(TriangularMap(carried), 0.3), LeakyTanh(1.0, (carried,))])
    now = before if rank == carried else Indexed(before, jnp.arange(carried), (rank,))
    flow = InformedFlow(basis, now, lifted, before)
    q = matrix_of(flow.transform, d)
    np.testing.assert_allclose(q @ q.T, np.eye(d), rtol=0, atol=1e-9)
    np.testing.assert_allclose(q @ lifted, basis[:, :carried], rtol=0, atol=1e-9)
    both = np.linalg.qr(np.concatenate([lifted, basis[:, :carried]], 1))[0]
    outside = np.eye(d) - both @ both.T
    np.testing.assert_allclose(q @ outside, outside, rtol=0, atol=1e-9)
    u = jr.normal(jr.key(seeded(2)), (5, d))
    turned, log_det = apply(flow, u)
    np.testing.assert_allclose(turned, u @ q.T, rtol=0, atol=1e-8)  # linear, although M is not
    np.testing.assert_allclose(log_det, 0, rtol=0, atol=1e-8)


def test_a_gaussian_posterior_is_recognised_whatever_its_weakest_directions():
    """One of them is just below what may be left out of a Gaussian: it must not refuse it."""
    rng, tolerance = np.random.default_rng(seeded(70)), 1e-5
    u = rng.normal(size=(300, 5))
    u[:, 4] = np.where(np.arange(300) % 10, 0.5, 2.7) * rng.choice([-1, 1], 300)  # by chance
    pull = np.array([3.0, 1.0, 0.3, 0.1, 0.0])
    stiff = np.array([20.0, 5.0, 1.0, 0.1, np.sqrt(1.9 * tolerance)])
    values = u @ pull - 0.5 * u**2 @ stiff
    probe = Probe(Given((u,)), np.ones(300, bool), pull - u * stiff, None, values)
    assert _exact_gaussian(probe, np.zeros((5, 0)), tolerance) is not None
    bent = probe._replace(log_likelihood=values + 0.1 * u[:, 0] ** 3)
    assert _exact_gaussian(bent, np.zeros((5, 0)), tolerance) is None


def test_what_comes_out_is_distributed_as_the_new_flow_makes_it_whatever_the_old_one_is():
    """The density behind F_l, by change of variables, is that of N along V and normal elsewhere."""
    d, lifted = 6, orthonormal(6, 2, 3)
    basis = align(orthonormal(d, 3, 4), lifted)
    before = Chain([moved(TriangularMap(2), 0.3), LeakyTanh(1.0, (2,))])
    now = Chain([LeakyTanh(0.5, (3,)), moved(TriangularMap(3), 0.3)])
    flow = InformedFlow(basis, now, lifted, before)
    old = Variables(before, jnp.asarray(lifted), d)
    new = Variables(now, jnp.asarray(basis), d)
    u, _, ratio = draw(old, jr.normal(jr.key(seeded(5)), (5, d)))
    v, log_det = apply(flow, u)
    expected = log_ratio(new, new.reduce(v)) - 0.5 * np.sum(v**2, 1)
    found = ratio - 0.5 * np.sum(u**2, 1) - log_det
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    assert np.ptp(expected - found + log_det) > 0.1


# --- carried from scale to scale ------------------------------------------------------------------


@functools.cache
def coarse_and_start(train: str = "all"):
    """A network trained (moved) at the coarse scale, and with F_2 at its start."""
    problem = growing_problem()
    network = prior_network(problem, FitConfig(flow=KIND))
    network = start_at(network, 1, KIND, problem, train)
    network = network.with_flow(1, moved(network.flows[0], 0.2))
    return network, start_at(network, 2, KIND, problem, train, 1)


def growth_of(network, scale):
    return network.flows[scale - 1].inner.growth


def basis_of(network, scale):
    return np.asarray(paramax.unwrap(network.variables(scale).basis), np.float64)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("train", ["all", "last"])
def test_the_start_of_a_stage_continues_the_stage_before(train):
    """Along the continued directions each field has the very coordinates of its ancestor."""
    coarse, fine = coarse_and_start(train)
    assert coarse.variables(1).size == 2 and fine.variables(2).size == 3  # it has grown
    z = fine.noise(jr.key(seeded(3)), 8)
    ancestors = fine.prior_at(1).whiten(fine.decode(z[:1]))
    fields = fine.prior_at(2).whiten(fine.decode(z))
    s = np.asarray(fields @ basis_of(fine, 2))[:, :2]
    np.testing.assert_allclose(s, ancestors @ basis_of(fine, 1), rtol=0, atol=1e-8)
    assert identical(fine.flows[0], coarse.flows[0])


@pytest.mark.parametrize("train", ["all", "last"])
def test_a_grown_flow_has_the_density_of_the_old_one_in_the_old_variables(train):
    """Integrated over the new variable, by quadrature."""
    assert_marginal_is_kept(*coarse_and_start(train))


def assert_marginal_is_kept(coarse, fine):
    old = np.asarray(coarse.variables(1).forward(jnp.array([[0.3, -0.5], [1.0, 0.8]]))[0])
    line = np.linspace(-9, 9, 1201)
    points = np.concatenate([np.repeat(old, len(line), 0), np.tile(line, 2)[:, None]], 1)
    density = np.exp(log_ratio(fine.variables(2), jnp.asarray(points)) - 0.5 * points[:, 2] ** 2)
    marginal = density.reshape(2, -1).sum(1) * (line[1] - line[0]) / np.sqrt(2 * np.pi)
    expected = log_ratio(coarse.variables(1), jnp.asarray(old))
    np.testing.assert_allclose(np.log(marginal), expected, rtol=0, atol=1e-7)


def test_a_flow_that_does_not_grow_starts_with_the_same_density():
    problem = InverseProblem(
        LaplacePrior((8,), alpha=0.2, beta=2.0),
        lambda x: ring_problem().forward(0.5 * (x[:, ::2] + x[:, 1::2])),
        [1.0, 0.1],
        noise_std=0.3,
        scales=2,
    )
    network = prior_network(problem, FitConfig(flow=KIND))
    network = start_at(network, 1, KIND, problem)
    network = network.with_flow(1, moved(network.flows[0], 0.2))
    fine = start_at(network, 2, KIND, problem, seed=1)
    u = jr.normal(jr.key(seeded(4)), (6, 8))
    s = jnp.asarray(u @ basis_of(fine, 2))
    np.testing.assert_allclose(
        log_ratio(fine.variables(2), s), log_ratio(network.variables(1), s), rtol=0, atol=1e-10
    )
    # The forward map sees pairs of cells: fine directions are the lifted coarse ones, and F_2 is
    # the identity: fields are refined by the prior alone.
    lifted = lift_directions(problem.prior, basis_of(network, 1))
    np.testing.assert_allclose(basis_of(fine, 2), lifted, rtol=0, atol=1e-6)
    x = fine.sample(jr.key(seeded(5)), 4)
    refined = fine.sample(jr.key(seeded(5)), 4, upto=1)
    np.testing.assert_allclose(x, refined, rtol=0, atol=1e-5)


def test_scales_telescope():
    """With trained flows at both scales the field is distributed as the last stage left it."""
    _, network = coarse_and_start()
    network = network.with_flow(2, moved(network.flows[1], 0.1))
    x, log_p = network.sample_and_log_prob(jr.key(seeded(6)), 5)
    u = network.prior_at().whiten(x)
    ratio = log_ratio(network.variables(2), jnp.asarray(u @ basis_of(network, 2)))
    prior = network.prior_at().log_prob(x)
    np.testing.assert_allclose(log_p - prior, ratio, rtol=0, atol=1e-8)
    assert np.ptp(ratio) > 0.1


# --- Gaussian posteriors, and others --------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.3, 1e-3])
def test_a_gaussian_posterior_is_known_at_every_scale(noise):
    """Also where the posterior is so narrow that no draw of the prior comes near to it."""
    problem = linear_problem(LaplacePrior((8,), alpha=0.2, beta=2.0), 3, noise, scales=2)
    network = prior_network(problem, FitConfig(flow=KIND))
    for scale, d in ((1, 4), (2, 8)):
        network = start_at(network, scale, KIND, problem, seed=scale)
        u = draw(network.variables(scale), jr.normal(jr.key(seeded(7)), (20, d)))[0]
        found = log_ratio(network.variables(scale), network.variables(scale).reduce(u))
        exact = gaussian_log_ratio(problem, scale, u)
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-6)
        assert np.ptp(exact) > 0.5
        size = network.variables(scale).size
        assert growth_of(network, scale) == ((size, "affine"),)


def bent_problem(change: float) -> InverseProblem:
    """A linear problem with a quadratic term that changes log-likelihoods by `change` nats.

    Their standard deviation over fields of the prior; most of it no Gaussian explains.
    """
    linear = linear_problem(LaplacePrior((8,), alpha=0.2, beta=2.0), 3)
    u = normal(jr.key(seeded(9)), (2000, 8))

    def bent(size: float) -> InverseProblem:
        def forward(x):
            y = linear.forward(x)
            return y + size * y[:, :1] ** 2

        return InverseProblem(linear.prior, forward, linear.data, 0.3, scales=2)

    straight, trial = (Simulator(bent(c)).evaluate(u, 2).log_likelihood for c in (0.0, 1e-4))
    return bent(1e-4 * change / np.std(trial - straight))


@pytest.mark.parametrize(("change", "gaussian"), [(1e-4, True), (0.1, False)])
def test_a_posterior_that_is_bent_by_a_tenth_of_a_nat_is_not_gaussian(change, gaussian):
    problem = bent_problem(change)
    network = prior_network(problem, FitConfig(flow=KIND))
    for scale in (1, 2):
        network = start_at(network, scale, KIND, problem, seed=scale)
        places = [place for _, place in growth_of(network, scale)]
        assert (places == ["affine"]) == gaussian


def turning(x):
    """Linear in pairs of cells; bent in a difference that no field of pairs has."""
    pairs, difference = 0.5 * (x[:, ::2] + x[:, 1::2]), 4 * (x[:, 2:3] - x[:, 3:4])
    seen = jnp.stack([pairs.sum(1), pairs[:, 0] - pairs[:, 3]], 1)
    return jnp.concatenate([seen, difference + difference**2], 1)


@pytest.mark.parametrize("train", ["all", "last"])
def test_from_a_gaussian_scale_to_one_that_is_not(train):
    """The affine map goes on acting on its variables, in a flow that can bend."""
    prior = LaplacePrior((8,), alpha=0.2, beta=2.0)
    problem = InverseProblem(prior, turning, [1.0, 0.1, 0.5], noise_std=0.3, scales=2)
    network = start_at(prior_network(problem, FitConfig(flow=KIND)), 1, KIND, problem, train)
    assert growth_of(network, 1) == ((2, "affine"),)
    fine = start_at(network, 2, KIND, problem, train, seed=1)
    place = "inner" if train == "all" else "outer"
    assert growth_of(fine, 2) == ((2, "affine"), (3, place))
    assert_marginal_is_kept(network, fine)
    assert can_bend(fine.variables(2))
    # Files know the structure.
    again = KIND.like(fine, 2, KIND.describe(fine.flows[1]))
    assert jax.tree.structure(again) == jax.tree.structure(fine.flows[1])


def test_from_a_gaussian_scale_to_one_that_is_not_in_as_many_variables():
    """A flow that takes in no new variables must be able to bend all the same."""
    problem = InverseProblem(
        LaplacePrior((8,), alpha=0.2, beta=2.0),
        lambda x: x.mean(1, keepdims=True) ** 2,
        [0.5],
        noise_std=0.1,
        scales=2,
        forward_at=lambda _: lambda x: x.mean(1, keepdims=True),
    )
    network = start_at(prior_network(problem, FitConfig(flow=KIND)), 1, KIND, problem)
    assert growth_of(network, 1) == ((1, "affine"),)
    fine = start_at(network, 2, KIND, problem, seed=1)
    assert fine.variables(2).size == 1
    assert can_bend(fine.variables(2))


def can_bend(variables: Variables) -> bool:
    """Whether the flow, its trainable parameters moved, is anything but an affine map."""
    flow = moved(variables, 0.3)
    points = jr.normal(jr.key(seeded(10)), (4, variables.size))
    ends = flow.forward(points)[0]
    middle = flow.forward(0.5 * (points[:2] + points[2:]))[0]
    return float(np.abs(0.5 * (ends[:2] + ends[2:]) - middle).max()) > 1e-6


def test_fewer_gradients_than_carried_directions():
    """A stage that can afford two gradients keeps the three directions that it was given."""
    problem = InverseProblem(
        LaplacePrior((8,), 0.2, 2.0),
        lambda x: jnp.concatenate([x[:, ::3] ** 3], -1),
        [0.1, 0.2, 0.3],
        0.3,
        scales=2,
    )
    network = prior_network(problem, FitConfig(flow=KIND))
    network = start_at(network, 1, KIND, problem)
    carried = network.variables(1).size
    assert carried == 3
    fine = start_at(network, 2, KIND, problem, seed=1, allowance=0)
    assert fine.variables(2).size == carried
    x, log_p = fine.sample_and_log_prob(jr.key(seeded(8)), 4)
    np.testing.assert_allclose(fine.log_prob(x), log_p, rtol=0, atol=1e-8)


def test_without_a_derivative_directions_are_those_of_the_derivative():
    problem = linear_problem(ROW, 2, scales=1)
    box = InverseProblem(
        ROW, lambda x: np.asarray(problem.forward(jnp.asarray(x))), problem.data, 0.3, scales=1
    )
    assert problem.differentiable and not box.differentiable
    spans = []
    for each in (problem, box):
        network = start_at(prior_network(each, FitConfig(flow=KIND)), 1, KIND, each)
        basis = basis_of(network, 1)
        spans.append(basis @ basis.T)
        assert growth_of(network, 1) == ((2, "affine"),)
    np.testing.assert_allclose(spans[0], spans[1], rtol=0, atol=1e-6)


def test_two_mirrored_modes_are_not_taken_for_one_gaussian():
    """Gradients g = -(t^3 - t) of a likelihood of t^2 = 1, which pull towards zero on average.

    A linear fit explains E[t g]^2 / E[g^2] = 4 / 10 of them for normal t, and has a proper
    precision: that of a Gaussian between the modes.
    """
    t = np.random.default_rng(seeded(100)).normal(size=(5000, 1))
    gradients, values = -100 * (t**3 - t), -25 * (t[:, 0] ** 2 - 1) ** 2
    slope = (t * gradients).sum() / (t**2).sum()
    assert slope < 0 and _gaussian_given(t, gradients) is not None
    probe = Probe(Given((t,)), np.ones(5000, bool), gradients, None, values)
    assert _exact_gaussian(probe, np.zeros((1, 0)), 1e-5) is None
    linear = probe._replace(gradients=slope * t, log_likelihood=0.5 * slope * t[:, 0] ** 2)
    assert _exact_gaussian(linear, np.zeros((1, 0)), 1e-5) is not None


def test_new_variables_start_as_under_the_prior():
    """Whatever the gradients say: a posterior that is not Gaussian is learned from there."""
    problem = ring_problem()
    network = start_at(prior_network(problem, FitConfig(flow=KIND)), 1, KIND, problem)
    s = jnp.asarray(np.random.default_rng(seeded(1)).normal(size=(20, 2)))
    np.testing.assert_allclose(log_ratio(network.variables(1), s), 0, rtol=0, atol=1e-8)
