"""Learning from a pool, on one variable: towards the target, whatever simulations failed."""

import functools
from types import SimpleNamespace

import jax.random as jr
import numpy as np
import pytest

from helpers import identical, seeded
from inference.small import stage_of
from msign import InformedConfig
from msign.bijections import TriangularMap, informed_flow
from msign.inference import Pool
from msign.inference.methods import Stage
from msign.inference.methods.pool import Bound, PoolState, _steps
from msign.inference.simulate import Simulated
from msign.noise import normal
from msign.training import combine, split_trainable
from msign.variables import Variables, draw, log_ratio

pytestmark = pytest.mark.usefixtures("quick_compilation")

N, ROUNDS = 2048, 4
POOL = Pool(steps=150, batch=512)
NO_OBSERVATIONS = SimpleNamespace(problem=SimpleNamespace(has_observations=False))


def log_likelihood(s):
    return -0.5 * ((s[..., 0] ** 2 / 4 - 1) / 0.25) ** 2


def drawn(model: Variables, key) -> Simulated:
    _, s, ratio = draw(model, normal(key, (N, 1)))
    return Simulated(s, ratio, log_likelihood(s), np.zeros((N, 0)))


@functools.cache
def trained() -> tuple[Stage, Variables, PoolState, list[float]]:
    """A model that has learned the modes, with all fields that it has seen."""
    flow = informed_flow(jr.key(0), ((1, "inner"),), InformedConfig())
    model = Variables(flow, None, 1)
    stage = stage_of(model, NO_OBSERVATIONS, round_size=N, rounds=ROUNDS, learning_rate=5e-3)
    state, divergences = POOL.init(stage), []
    for i in range(ROUNDS):
        state = POOL.observe(stage, state, model, drawn(model, jr.key(seeded(i))))
        divergences.append(divergence(model))
        if i < ROUNDS - 1:
            key = jr.key(seeded(10 + i))
            state, model, _ = POOL.update(stage, state, model, 1.0, key)
    return stage, model, state, divergences


GRID = np.linspace(-6, 6, 2001)[:, None]


def divergence(model: Variables) -> float:
    """Jeffreys divergence from the posterior by quadrature."""
    log_p = log_ratio(model, GRID) - 0.5 * GRID[:, 0] ** 2
    log_q = log_likelihood(GRID) - 0.5 * GRID[:, 0] ** 2
    log_p, log_q = (a - np.logaddexp.reduce(a) for a in (log_p, log_q))
    return float(np.sum((np.exp(log_p) - np.exp(log_q)) * (log_p - log_q)))


def test_the_model_learns_the_target():
    """Over a bridge: from the prior to two modes, by true divergences."""
    stage, _, state, divergences = trained()
    assert state.target.temperature == 1
    # A stage keeps its best model. (At the end of the bridge one is within a hundredth of a nat.)
    assert min(divergences) < 0.5 * divergences[0]
    value, stderr = state.log_evidence()
    normal = np.exp(log_likelihood(GRID) - 0.5 * GRID[:, 0] ** 2) / np.sqrt(2 * np.pi)
    exact = np.log(normal.sum() * (GRID[1, 0] - GRID[0, 0]))
    # Fields of all rounds are worth no less than those of the first one, the prior's.
    first = np.exp(log_likelihood(drawn(stage.start, jr.key(seeded(0))).s))
    assert abs(value - exact) < 5 * stderr < 5 * first.std() / first.mean() / np.sqrt(N)


def test_a_rejected_simulation_is_worth_nothing():
    """A field whose simulation fails has no likelihood: no weight, whatever the others have."""
    stage, *_ = trained()
    found = drawn(stage.start, jr.key(seeded(30)))
    failed = found.s[:, 0] > 0
    # Elsewhere data say next to nothing: all other fields are equally likely.
    values = np.where(failed, -np.inf, -0.01 * found.s[:, 0] ** 2)
    state = POOL.observe(
        stage, POOL.init(stage), stage.start, found._replace(log_likelihood=values)
    )
    weights = np.exp(state.pool.normalised(state.target) - state.pool.mixture())
    assert weights[failed].sum() < 0.01 * weights.sum()
    assert np.all(np.isfinite(state.pool.log_likelihood))


def test_samples_that_no_posterior_can_have_are_brought_back():
    """The pool is one field again and again: where it is, model and target agree whatever they are.

    No field of it exceeds the prior, but the model does, far away from the pool.
    """
    steps, batch = 100, 32
    model = Variables(TriangularMap.from_matrix(np.eye(1), np.array([3.0])), None, 1)
    z = np.random.default_rng(seeded(40)).normal(size=(steps, batch, 1))
    same = np.zeros((steps, batch))
    trainable, rest = split_trainable(model)
    pool = (same[..., None], same, same, z)
    bound = Bound(None, np.zeros(()), np.zeros(()))
    trained, _ = _steps(trainable, rest, pool, bound, np.asarray(0.05), 1.0)

    def excess(model: Variables) -> float:
        return float(np.maximum(0, draw(model, z[0])[2]).mean())

    assert excess(combine(trained, rest)) < 0.2 * excess(model)


def test_the_smallest_minibatches_train():
    stage, model, state, _ = trained()
    _, changed, loss = Pool(steps=3, batch=2).update(stage, state, model, 1.0, jr.key(seeded(50)))
    assert np.isfinite(loss)
    assert not identical(changed, model)
