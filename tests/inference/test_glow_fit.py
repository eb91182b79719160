"""fit with the paper's Glow flows, with every objective, alone and after an informed block."""

import numpy as np
import pytest

from helpers import seeded
from msign import Combined, FitConfig, Glow, GlowConfig, Informed, InformedConfig, Posterior, fit
from msign.problems import synthetic

pytestmark = pytest.mark.usefixtures("quick_compilation")

GLOW = Glow(GlowConfig(blocks=3, hidden=8))
BOTH = Combined((Informed(InformedConfig(blocks=2, hidden=8, knots=4)), GLOW))
METHODS = ("auto", "pathwise", "centred", "score", "reverse_kl", "forward_kl", "stein")


@pytest.mark.parametrize("method", METHODS)
def test_every_objective_improves_a_glow_flow(method):
    """On four cells, with wide modes: the divergence falls by more than its standard errors."""
    config = FitConfig(flow=GLOW, method=method, steps=60, rounds=3)
    posterior = fit(synthetic(2, gamma=0.8), 40_000, seed=seeded(0), config=config)
    first, last = posterior.records[0], posterior.certificate()
    stderr = np.hypot(first["jeffreys_stderr"], last.jeffreys_stderr)
    assert last.jeffreys < first["jeffreys"] - 4 * stderr
    x, log_p = posterior.sample_and_log_prob(10)
    np.testing.assert_allclose(posterior.network.log_prob(x), log_p, atol=1e-8)


@pytest.mark.parametrize(("flow", "train"), [(GLOW, "all"), (BOTH, "last")])
def test_stages_from_coarse_to_fine(flow, train, tmp_path):
    config = FitConfig(flow=flow, train=train, steps=40, rounds=3)
    posterior = fit(synthetic(4, gamma=0.8), 30_000, seed=seeded(0), out=tmp_path, config=config)
    assert posterior.scales == [1, 2]
    again = Posterior.load(tmp_path)
    np.testing.assert_array_equal(again.sample(3), posterior.sample(3))
    coarse = posterior.stage(1).network.flows[0]
    kept = all(
        np.array_equal(a, b)
        for a, b in zip(_arrays(coarse), _arrays(posterior.network.flows[0]), strict=True)
    )
    assert kept == (train == "last")


def _arrays(module):
    import equinox as eqx
    import jax

    return jax.tree.leaves(eqx.filter(module, eqx.is_inexact_array))
