"""fit with the paper's Glow flows: objectives, joint training, ablations."""

import functools

import jax
import jax.random as jr
import numpy as np
import pytest

from conformance import SMALL_GLOW, SMALL_INFORMED
from helpers import identical, matrix_of, ring, seeded
from inference.small import (
    ROW,
    exact_ess,
    gaussian_log_ratio,
    gaussian_posterior,
    linear_problem,
    stage_of,
    started,
)
from msign import (
    Combined,
    Emulator,
    FitConfig,
    Fresh,
    Glow,
    GlowConfig,
    InverseProblem,
    LaplacePrior,
    Pool,
    Posterior,
    Simulator,
    fit,
)
from msign.bijections import TriangularMap
from msign.inference.files import prior_network
from msign.inference.methods.objectives import (
    CentredJeffreys,
    PathwiseJeffreys,
    ScoreJeffreys,
    SteinObjective,
)
from msign.variables import Variables, draw, log_ratio
from msign.weights import weight_report

pytestmark = pytest.mark.usefixtures("quick_compilation")

TWO = InverseProblem(ROW, lambda x: 0.3 * ring(x), [0.8, 0.1], 0.6, scales=2)


@functools.cache
def linear() -> InverseProblem:
    """One whose posterior is known."""
    return linear_problem(ROW, 2, noise=0.5, scales=1)


def glow() -> Variables:
    """A small Glow flow, moved at random off its start."""
    return started(linear(), SMALL_GLOW).variables(1)


def affine() -> Variables:
    """The prior, to be shifted, scaled and sheared."""
    return Variables(TriangularMap(4), None, 4)


def divergences(model: Variables, noise: np.ndarray, exact: np.ndarray) -> tuple[np.ndarray, ...]:
    """What each draw of the model adds to KL(p||q), and each of the posterior to KL(q||p)."""
    u, _, log_p = draw(model, noise)
    reverse = log_p - gaussian_log_ratio(linear(), 1, u)
    return reverse, gaussian_log_ratio(linear(), 1, exact) - log_ratio(model, exact)


@pytest.mark.parametrize(
    ("objective", "begin", "counted"),
    [
        (CentredJeffreys(), glow, 2),
        (PathwiseJeffreys(), glow, 2),
        (ScoreJeffreys(), glow, 2),
        (SteinObjective(), affine, 1),
    ],
    ids=lambda o: type(o).__name__,
)
def test_a_small_step_on_every_objective_lowers_its_divergence(objective, begin, counted):
    """From the exact posterior q, by the same draws before and after the step.

    The first step of Adam moves each parameter by the learning rate against the sign of its
    derivative. The divergence falls by the learning rate times the sum of the sizes of all
    derivatives, up to the square of the learning rate. Gradients of thousands of fields have the
    right signs wherever a derivative is not small beside the others.

    Three objectives have both divergences. That of Stein has KL(p||q): for a Gaussian q, and p
    standard normal, derivatives by its direction with respect to the shift and to the matrix of an
    affine map have the signs of those of KL(p||q), entry by entry.
    """
    n, model = 2000, begin()
    stage = stage_of(model, Simulator(linear()), limit=10**7, learning_rate=1e-4)
    method = Fresh(steps=1, batch=n, objective=objective, tempered=False)
    _, after, _ = method.update(stage, method.init(stage), model, 1.0, jr.key(seeded(1)))
    rng = np.random.default_rng(seeded(2))
    given = rng.normal(size=(n, 4)), rng.multivariate_normal(*gaussian_posterior(linear(), 1), n)
    pairs = zip(divergences(model, *given), divergences(after, *given), strict=True)
    gains = [before - now for before, now in pairs][:counted]
    error = np.sqrt(sum(gain.var() for gain in gains) / n)
    assert sum(gain.mean() for gain in gains) > 5 * error > 0


OPTIONS = {
    "all": {},
    "last": {"train": "last"},
    "nearest": {"conditioning": "nearest"},
    "single stage": {"single_stage": True},
    "combined": {"flow": Combined((SMALL_INFORMED, SMALL_GLOW))},
}


@functools.cache
def trained(name: str):
    options = {"flow": SMALL_GLOW, **OPTIONS[name]}
    method = Pool(steps=40, batch=256)
    config = FitConfig(method=method, rounds=3, round_size=500, tolerance=1e-9, **options)
    return fit(TWO, 6000, seed=seeded(2), config=config)


def test_a_network_learns_from_an_emulator_of_the_directions_that_data_inform():
    """Of a curved posterior of two directions of eight: each simulation serves all steps."""
    prior = LaplacePrior((8,), alpha=0.5, beta=1.0)
    problem = InverseProblem(prior, lambda x: ring(x[:, ::2]), [0.8, 0.1], 0.3, scales=1)
    method = Emulator(steps=200, batch=64, variables=2)
    flow = Glow(GlowConfig(blocks=4, hidden=8), rate=5e-3)
    config = FitConfig(flow=flow, method=method, round_size=1000, rounds=3, tolerance=1e-9)
    (stage,) = fit(problem, 20_000, seed=seeded(3), config=config).summary()["stages"]
    assert stage["jeffreys"] < 0.3 * stage["jeffreys_start"]


def test_joint_training_changes_the_coarser_flows():
    posterior = trained("all")
    assert not identical(posterior.networks[1].flows[0], posterior.network.flows[0])
    refined = posterior.sample(50, scale=1)
    assert np.abs(refined - posterior.stage(1).sample(50)).max() > 1e-4


def test_training_the_last_flow_leaves_the_others_alone():
    posterior = trained("last")
    assert identical(posterior.networks[1].flows[0], posterior.network.flows[0])
    np.testing.assert_array_equal(posterior.sample(50, scale=1), posterior.stage(1).sample(50))
    last = jax.tree.leaves(posterior.network.flows[1])
    start = trained("all").network.flows[1]
    assert not identical(posterior.network.flows[1], start) and len(last) > 0


@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_learned_is_certified(name):
    """Densities are exact whatever was trained: the evidence is the same for all of them."""
    posterior = trained(name)
    assert posterior.scales == ([2] if name == "single stage" else [1, 2])
    assert posterior.network.conditioning == OPTIONS[name].get("conditioning", "exact")
    x, log_p = posterior.sample_and_log_prob(10)
    np.testing.assert_allclose(posterior.log_prob(x), log_p, rtol=0, atol=1e-8)
    worth, many = worth_of(posterior), weight_report(posterior.importance(20_000, seeded(5))[1])
    for report in (posterior.certificate(), many):
        error = np.expm1(report.log_evidence - exact_log_evidence())
        assert abs(error) < 5 * np.sqrt((1 / worth - 1) / report.n)


@functools.cache
def informed_plane() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A grid on the two whitened directions that are observed, the prior's mass of each point, and
    the log-likelihood there.

    Data say nothing of the two other directions.
    """
    sums = np.array([[1.0, 1, 1, 1], [1, 1, -1, -1]])
    basis = np.linalg.qr((sums @ matrix_of(ROW.unwhiten, 4)).T)[0]
    t = np.linspace(-7, 7, 281)
    grid = np.stack(np.meshgrid(t, t), -1).reshape(-1, 2)
    mass = np.exp(-0.5 * np.sum(grid**2, 1)) * (t[1] - t[0]) ** 2 / (2 * np.pi)
    return grid @ basis.T, mass, Simulator(TWO).evaluate(grid @ basis.T, 2).log_likelihood


def exact_log_evidence() -> float:
    """By quadrature: the trapezoidal rule of smooth functions that vanish at the ends."""
    _, mass, log_likelihood = informed_plane()
    return float(np.log(mass @ np.exp(log_likelihood)))


def worth_of(posterior: Posterior, n: int = 4000) -> float:
    """Effective sample size of a draw of the model, by draws of the posterior."""
    u, mass, log_likelihood = informed_plane()
    rng = np.random.default_rng(seeded(3))
    q = mass * np.exp(log_likelihood)
    rows = rng.choice(len(u), size=n, p=q / q.sum())
    outside = np.linalg.svd(u[:: len(u) // 7])[2][2:]  # directions of which the data say nothing
    drawn = u[rows] + rng.normal(size=(n, 2)) @ outside
    return exact_ess(posterior, drawn, log_likelihood[rows] - exact_log_evidence())


def test_nearest_neighbours_begin_worse_than_exact_conditioning():
    """What the ablation is for: refined fields that ignore the prior have to be repaired.

    Both are Gaussian, so that the divergence of fields from the prior is known.
    """
    n, z = 500, np.eye(4)
    excess, networks = {}, {}
    for name in ("exact", "nearest"):
        networks[name] = prior_network(TWO, FitConfig(flow=SMALL_GLOW, conditioning=name))
        fields = networks[name].sample(jr.key(seeded(4)), n)
        excess[name] = np.asarray(networks[name].log_ratio(fields))
    np.testing.assert_allclose(excess["exact"], 0, rtol=0, atol=1e-9)
    root = np.asarray(ROW.whiten(networks["nearest"].decode((z[:, :2], z[:, 2:])))).T
    covariance = root @ root.T
    divergence = 0.5 * (np.trace(covariance) - 4 - np.linalg.slogdet(covariance)[1])
    found = excess["nearest"]
    assert divergence > 0.1
    assert abs(found.mean() - divergence) < 5 * found.std() / np.sqrt(n)
