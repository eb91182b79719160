"""Updates with fresh fields: what they cost, and how their steps shrink."""

import jax.numpy as jnp
import numpy as np
import pytest

from msign import FitConfig, GlowConfig, fit
from msign.inference import on_fresh
from msign.problems import synthetic
from msign.weights import ess_fraction

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(("objective", "cost"), [("centred", 20), ("pathwise", 40), ("score", 40)])
def test_steps_shrink_within_a_round_as_simulations_are_used_up(monkeypatch, objective, cost):
    problem, seen = synthetic(2, gamma=0.8), []
    take_step = on_fresh._take_step

    def watched(core, state, batch, decay, *rest):
        seen.append((problem.nfs, float(decay)))
        return take_step(core, state, batch, decay, *rest)

    monkeypatch.setattr(on_fresh, "_take_step", watched)
    config = FitConfig(
        flow="glow",
        objective=objective,
        glow=GlowConfig(blocks=1, hidden=4),
        batch_size=20,
        round_size=50,
        rounds=2,
        certificate=50,
    )
    fit(problem, 1000, config=config)
    used, decay = np.array(seen).T
    np.testing.assert_array_equal(np.diff(used), cost)
    assert problem.nfs <= 1000
    assert decay[0] > 0.9
    assert np.all(np.diff(decay) < 0)
    assert decay[-1] < 0.3


def test_bridge_temperature_has_the_effective_size_asked_for():
    values = -np.linspace(0, 40, 500)
    zero = np.zeros(500)
    t = on_fresh.bridge_temperature(*map(jnp.asarray, (values, zero, zero)), 0.25)
    assert 0 < t < 1
    assert ess_fraction(t * values) == pytest.approx(0.25, rel=1e-3)
    assert (
        on_fresh.bridge_temperature(*map(jnp.asarray, (0.1 * values / 40, zero, zero)), 0.25) == 1
    )
