"""fit with the paper's Glow flows, with every objective, alone and after an informed block."""

import numpy as np
import pytest

from msign import FitConfig, GlowConfig, Posterior, fit
from msign.bijections import InformedConfig
from msign.problems import synthetic

pytestmark = pytest.mark.usefixtures("quick_compilation")

SMALL = {
    "glow": GlowConfig(blocks=3, hidden=8),
    "informed": InformedConfig(blocks=2, hidden=8, knots=4),
    "steps": 40,
    "batch_size": 128,
    "rounds": 3,
}
OBJECTIVES = ("auto", "pathwise", "centred", "score", "reverse_kl", "forward_kl", "stein")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_improves_a_glow_flow(objective):
    config = FitConfig(flow="glow", objective=objective, **SMALL)
    posterior = fit(synthetic(2, gamma=0.8), 30_000, config=config)
    (stage,) = posterior.stages
    assert stage["jeffreys"] < 0.8 * stage["jeffreys_start"]
    x, log_p = posterior.sample_and_log_prob(10)
    np.testing.assert_allclose(posterior.network().log_prob(x), log_p, atol=1e-8)


@pytest.mark.parametrize(("flow", "train"), [("glow", "all"), ("both", "last")])
def test_stages_from_coarse_to_fine(flow, train, tmp_path):
    config = FitConfig(flow=flow, train=train, **SMALL)
    posterior = fit(synthetic(4, gamma=0.8), 30_000, out=tmp_path, config=config)
    assert posterior.scales == [1, 2]
    for stage in posterior.stages:
        assert stage["jeffreys"] <= stage["jeffreys_start"]
    again = Posterior.load(tmp_path)
    np.testing.assert_array_equal(again.sample(3), posterior.sample(3))
