"""Options of fit: their defaults that depend on size, and their files."""

import json

import pytest

from msign import FitConfig, GlowConfig, InformedConfig


def test_written_and_read_again():
    config = FitConfig(
        flow="glow",
        glow=GlowConfig(blocks=(0, 3), hidden=4),
        informed=InformedConfig(knots=7),
        learning_rate=0.01,
    )
    assert FitConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_small_informed_flows_train_long_on_large_batches():
    config = FitConfig()
    assert config.pool_batch(4, 60_000) == 2048 and config.pool_batch(5, 60_000) == 512
    assert config.pool_batch(4, 400) == 100  # a quarter of what there is
    assert config.pool_steps(4, 60_000) == 1200 and config.pool_steps(4, 20_000) == 400
    assert config.flow_step(4) == 5e-3 and config.flow_step(5) == 2e-3
    glow = FitConfig(flow="glow")
    assert glow.pool_batch(4, 60_000) == 512 and glow.pool_steps(4, 60_000) == 400


@pytest.mark.parametrize(
    ("config", "scale", "rate"),
    [
        (FitConfig(flow="glow", glow=GlowConfig(blocks=2, hidden=8)), 2, 2e-3),
        (FitConfig(flow="glow", glow=GlowConfig(blocks=32, hidden=64)), 1, 5e-4),
        (FitConfig(flow="glow", glow=GlowConfig(blocks=32, hidden=64)), 2, 2.5e-4),
        (FitConfig(flow="glow", glow=GlowConfig(blocks=32, hidden=64), train="last"), 2, 5e-4),
        (FitConfig(flow="glow", glow=GlowConfig(blocks=(0, 32), hidden=(1, 64))), 2, 5e-4),
        (FitConfig(flow="glow", glow=GlowConfig(blocks=0)), 2, 2e-3),
        (FitConfig(flow="glow", glow=GlowConfig(blocks=32), learning_rate=0.1), 2, 0.1),
    ],
)
def test_deep_and_wide_networks_take_small_steps(config, scale, rate):
    assert config.network_step(scale, 2) == pytest.approx(rate)
