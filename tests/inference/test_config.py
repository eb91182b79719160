"""Options of fit: checked when made, read from files, and what they choose."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from conformance import FLOWS, METHODS
from helpers import refused
from msign import (
    Combined,
    FitConfig,
    Fresh,
    Glow,
    GlowConfig,
    Informed,
    InformedConfig,
    InverseProblem,
    LaplacePrior,
    Pool,
    fit,
)
from msign.inference import Emulator
from msign.inference.files import prior_network
from msign.inference.methods.objectives import CentredJeffreys, PathwiseJeffreys, ScoreJeffreys
from msign.problems import synthetic

PROBLEM = synthetic(8)
BLACK_BOX = InverseProblem(
    LaplacePrior((4,), alpha=0.5, beta=1.0), lambda x: np.asarray(x)[:, :2], [0.0, 0.0], 1.0
)
ALONE = InverseProblem(
    LaplacePrior((4,), alpha=0.5, beta=1.0), log_likelihood=lambda x: -jnp.sum(x**2, 1)
)
ROUND_TRIPS = {
    "defaults": FitConfig(),
    "everything else": FitConfig(
        flow=Combined((Informed(InformedConfig(rows=7)), Glow(GlowConfig((0, 3), 4), rate=0.01))),
        method=Fresh(objective=ScoreJeffreys(reverse=0.5), batch=7),
        train="last",
        rounds=3,
    ),
    **{name: FitConfig(flow=kind) for name, kind in FLOWS.items()},
    **{name: FitConfig(method=method) for name, method in METHODS.items()},
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_written_and_read_again(name):
    config = ROUND_TRIPS[name]
    assert FitConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_only_options_are_read():
    values = FitConfig().to_json()
    values["flow"] = {"kind": "Popen", "args": "rm"}
    with refused("kind must be one of", "got 'Popen'"):
        FitConfig.from_json(values)


@pytest.mark.parametrize(
    ("options", "problem", "size", "kind"),
    [
        ({}, PROBLEM, 1, Pool),
        ({}, PROBLEM, 2, Pool),
        ({}, PROBLEM, 3, Emulator),
        ({"method": "pool"}, PROBLEM, 9, Pool),
        ({"flow": Glow()}, PROBLEM, 4096, Emulator),
        ({"flow": Glow()}, BLACK_BOX, 64, Emulator),
        ({"flow": Glow()}, BLACK_BOX, 65, CentredJeffreys),
        ({"flow": Glow()}, ALONE, 16, Pool),
        ({"flow": Glow()}, ALONE, 64, PathwiseJeffreys),
        ({"flow": Glow(), "method": "score"}, BLACK_BOX, 4, ScoreJeffreys),
        ({"flow": Glow(), "method": "reverse_kl"}, BLACK_BOX, 4, CentredJeffreys),
        ({"flow": Combined((Informed(), Glow()))}, PROBLEM, 65, Emulator),
    ],
)
def test_how_a_stage_learns(options, problem, size, kind):
    chosen = FitConfig(steps=17, **options).method_for(problem, size)
    assert chosen.steps == 17
    assert isinstance(getattr(chosen, "objective", chosen), kind)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flow": "glow"}, "flow must be a FlowKind, got 'glow'"),
        ({"method": "mse"}, "method must be one of"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"bridge_ess": 1.0}, "bridge_ess must be in (0, 1), got 1.0"),
        ({"round_size": 3}, "round_size must be at least 16, got 3"),
        ({"tolerance": 0.0}, "tolerance must be positive, got 0.0"),
        ({"conditioning": "nearest"}, "conditioning must be 'exact' with flow=Informed"),
        (
            {"conditioning": "nearest", "flow": Combined((Glow(), Informed()))},
            "conditioning must be 'exact' with flow=Combined",
        ),
    ],
)
def test_bad_options(options, message):
    with refused(message):
        FitConfig(**options)


@pytest.mark.parametrize(
    ("options", "problem", "message"),
    [
        ({"flow": Glow(), "method": "pathwise"}, BLACK_BOX, "the forward map has no derivative"),
        ({"flow": Glow(), "method": "stein"}, BLACK_BOX, "the forward map has no derivative"),
        ({"flow": Glow(), "method": "emulator"}, ALONE, "has no observations to emulate"),
    ],
)
def test_methods_that_cannot_work_are_refused_before_any_work(options, problem, message, tmp_path):
    with refused("method must not be", message):
        fit(problem, 5000, out=tmp_path / "run", config=FitConfig(**options))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("glow", "train", "scale", "rate"),
    [
        (GlowConfig(blocks=2, hidden=8), "all", 2, 8e-3),
        (GlowConfig(blocks=32, hidden=64), "all", 1, 2e-3),
        (GlowConfig(blocks=32, hidden=64), "all", 2, 1e-3),
        (GlowConfig(blocks=32, hidden=64), "last", 2, 2e-3),
        (GlowConfig(blocks=(0, 32), hidden=(1, 64)), "all", 2, 2e-3),
        (GlowConfig(blocks=0), "all", 2, 8e-3),
    ],
)
def test_deep_and_wide_networks_take_small_steps(glow, train, scale, rate):
    kind = Glow(glow)
    network = prior_network(synthetic(4), FitConfig(flow=kind))
    assert kind.learning_rate(network, scale, train) == pytest.approx(rate)


def test_flows_of_whole_fields_learn_at_coarse_scales():
    """Where steps are cheap: half of what is left is theirs, and the finest one's tolerance."""
    config = FitConfig(flow=Glow(), tolerance=0.1)
    assert config.share_of(8000, stages=6, least=100) == 4000
    assert config.stepping_stone() == 0.05 and config.stepping_stone(0.2) == pytest.approx(0.22)
    paper = FitConfig.paper("synthetic")  # uses all of its shares, whatever there was before
    assert paper.stepping_stone(0.2) == paper.stepping_stone() < 1e-5
    both = FitConfig(flow=Combined((Informed(), Glow())))
    assert both.share_of(8000, stages=6, least=100) == 4000
    # Later stages keep what they need, the last has all, and other flows have equal shares.
    assert config.share_of(8000, stages=6, least=500) == 3000
    assert config.share_of(8000, stages=6, least=5000) == 8000 // 6
    assert config.share_of(8000, stages=1, least=100) == 8000
    assert FitConfig(flow=Informed()).share_of(8000, stages=4, least=100) == 2000
    assert FitConfig(share=0.75).share_of(8000, stages=4, least=100) == 6000
    assert FitConfig.paper("synthetic").share_of(8000, stages=4, least=100) == 2000
    with refused("share must be in [0, 1)", "got 1.0"):
        FitConfig(share=1.0)
