"""Posteriors that cost no training: the prior as the model, with a certificate of its own."""

from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from msign import FitConfig, InverseProblem, LaplacePrior, Posterior, Simulator
from msign.inference import Informed
from msign.inference.certificate import Certificate
from msign.inference.files import prior_network
from msign.inference.predictive import Predictive
from msign.inference.simulate import simulate

SHAPES = {"line": (8,), "plane": (4, 6), "block": (4, 4, 4)}
N = 120
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)> & $\\frac"


def problem_on(shape: tuple[int, ...], **options: Any) -> InverseProblem:
    """Averages of both halves of a field along its first axis, and their square."""
    half = shape[0] // 2
    axes = tuple(range(1, len(shape) + 1))

    def forward(x: Any) -> Any:
        means = jnp.stack([x[:, :half].mean(axes), x[:, half:].mean(axes)], -1)
        return jnp.concatenate([means, means**2], -1)

    prior = LaplacePrior(shape, alpha=1.0, beta=2.0)
    truth = np.linspace(-1, 1, int(np.prod(shape))).reshape(shape)
    given = {"noise_std": 0.5, "truth": truth, "scales": 2, "name": "halves", **options}
    return InverseProblem(prior, forward, [0.1, 0.2, 0.0, 0.3], **given)


def untrained(problem: InverseProblem, seed: int = 0) -> Posterior:
    """A posterior whose model is the prior at every scale."""
    config = FitConfig(flow=Informed())
    network = prior_network(problem, config)
    networks = {l: network.cut(l) for l in range(1, problem.scales + 1)}
    certificates, drawn = {}, None
    for scale in networks:
        variables = networks[scale].variables(scale)
        drawn = simulate(Simulator(problem), variables, scale, jr.key(seed), N)
        certificates[scale] = Certificate(drawn.log_weights, drawn.s.astype(np.float64))
    stages, records = zip(*(_stage(l, problem) for l in networks), strict=True)
    posterior = Posterior(
        problem,
        networks,
        certificates,
        config,
        seed=seed,
        records=[r for rows in records for r in rows],
        stages=list(stages),
        nfs=N * problem.scales,
        failures=0,
        seconds=1.5,
    )
    assert drawn is not None
    posterior.predictive = Predictive.of(problem, drawn, seed)
    return posterior


def _stage(scale: int, problem: InverseProblem) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    stage = {
        "scale": scale,
        "dimension": problem.priors[scale - 1].lattice.dim,
        "variables": 2,
        "rounds": 2,
        "nfs": N,
        "seconds": 0.5,
        "jeffreys_start": 2.0,
        "jeffreys": 0.5,
        "ess_fraction": 0.4,
        "khat": 0.3,
    }
    rounds = [
        {"scale": scale, "nfs": N * scale - N // k, "jeffreys": 2.0 / k, "temperature": 1.0}
        for k in (2, 1)
    ]
    return stage, rounds
