"""Reports of true runs, good and bad ones: what stands at the top is what happened."""

import dataclasses
import html
import itertools
import math
import re
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import seeded
from msign import FitConfig, InverseProblem, LaplacePrior, Pool, fit
from msign.inference import Informed
from msign.report.data_fit import misfit_of
from msign.report.page import certificate
from msign.report.words import words

pytestmark = pytest.mark.usefixtures("quick_compilation")

PRIOR = LaplacePrior((4,), alpha=0.5, beta=2.0)


def average(x: Any) -> Any:
    return x.mean(1, keepdims=True)


def square(x: Any) -> Any:
    """Two modes: fields of either sign."""
    return average(x) ** 2


def possible(x: Any) -> Any:
    """Averages below zero are no fields of this simulator: about half of the prior fails."""
    mean = average(x)
    return jnp.where(mean > 0, mean, jnp.nan)


class OneSided(Pool):
    """Trains as if negative fields were impossible, although those it met are kept in the pool."""

    def update(self, stage, state, model, rate, key):
        values = np.where(state.pool.s[:, 0] > 0, 0.0, -100.0) + state.pool.log_likelihood
        pool = eqx.tree_at(lambda p: p.log_likelihood, state.pool, values)
        told = dataclasses.replace(state, pool=pool)
        _, model, loss = super().update(stage, told, model, rate, key)
        return state, model, loss


def problem(forward: Any, data: float, noise: float, **options: Any) -> InverseProblem:
    return InverseProblem(
        PRIOR, forward, [data], noise_std=noise, scales=1, inflate=0, name="average", **options
    )


QUICK = {"round_size": 400, "certificate": 400, "flow": Informed()}
RUNS = {
    "good": (problem(average, 0.5, 0.3), FitConfig(**QUICK)),
    # Never trained, far from a posterior of which the prior sees next to nothing.
    "under-trained": (problem(square, 2.0, 0.002), FitConfig(**QUICK, rounds=1)),
    "rejected": (problem(possible, 0.1, 0.3, on_failure="reject"), FitConfig(**QUICK, rounds=3)),
    "lost a mode": (problem(square, 0.5, 0.1), FitConfig(**QUICK, method=OneSided(steps=300))),
}


@pytest.fixture(scope="module")
def runs():
    """Summary and what stands at the top of the page, of each run."""
    found = {}
    for name, (task, config) in RUNS.items():
        posterior = fit(task, 6000, seeded(0), progress=False, config=config)
        summary = posterior.summary()
        found[name] = summary, certificate(words(summary, misfit_of(posterior.predictive)))
    return found


def text(section: str) -> str:
    """The words of a part of a page, without tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", section)).split())


@pytest.mark.parametrize("pair", list(itertools.combinations(RUNS, 2)))
def test_reports_of_different_runs_differ_in_their_first_sentence(runs, pair):
    assert len({words(runs[name][0]).title for name in pair}) == 2
    assert len({text(runs[name][1]) for name in pair}) == 2


def test_a_good_run_is_said_to_be_good(runs):
    said = text(runs["good"][1])
    assert "GOOD" in said and "can be used as they are" in said
    assert "failed" not in said and "missing" not in said


def test_an_under_trained_run_is_not_to_be_used_and_gets_a_budget(runs):
    summary, section = runs["under-trained"]
    said = text(section)
    assert "NOT RELIABLE" in said and "Do not use these samples" in said
    assert f"--budget {summary['try']['fit_budget']}" in said and "refine" in said


def test_a_run_with_rejected_simulations_says_how_many(runs):
    summary, section = runs["rejected"]
    said = text(section)
    assert summary["failures"] > 0 and "NOT RELIABLE" not in said
    assert re.search(rf"{summary['failures']:,} of".replace(",", "."), said)
    assert "could not be simulated count as impossible" in said and "on_failure='raise'" in said


def test_a_run_that_lost_a_mode_says_what_is_missing_although_its_weights_are_perfect(runs):
    summary, section = runs["lost a mode"]
    said = text(section)
    assert summary["ess_fraction"] > 0.5
    assert "NOT RELIABLE" in said and "A part of the posterior is missing" in said
    missing = int(re.search(r"about (\d+) percent of", said)[1])
    assert missing == round(100 * (1 - math.exp(-summary["lost_evidence"])))
    # One of two modes alike, as exactly as the pool and the certificate know the evidence.
    errors = summary["stages"][-1]["log_evidence_stderr"], summary["log_evidence_stderr"]
    assert abs(summary["lost_evidence"] - math.log(2)) < 5 * math.hypot(*errors) < 1
    assert "cannot bring a lost mode back" in said
    assert "e+" not in said  # 100 percent, not 1e+02


def test_a_mode_that_a_coarse_scale_lost_is_missing_at_the_finest():
    """Whose training, begun with the coarse model, never meets a field of the lost mode."""
    prior = LaplacePrior((8,), alpha=0.5, beta=2.0)
    given = {"noise_std": 0.05, "scales": 2, "inflate": 0}  # the prior meets both modes often
    task = InverseProblem(prior, square, [0.2], **given)
    config = FitConfig(**{**QUICK, "round_size": 1000}, method=OneSided(steps=300))
    posterior = fit(task, 12_000, seeded(0), progress=False, config=config)
    assert posterior.certificates[2].report().grade == "GOOD"
    summary = posterior.summary()
    assert summary["lost_evidence"] == summary["stages"][0]["lost_evidence"]
    error = summary["stages"][0]["log_evidence_stderr"]
    assert abs(summary["lost_evidence"] - math.log(2)) < 5 * error < 0.5
    assert summary["stages"][1]["lost_evidence"] == 0
    said = text(certificate(words(summary, misfit_of(posterior.predictive))))
    assert "NOT RELIABLE" in said and "A part of the posterior is missing" in said
    assert "lost a mode" in posterior.refine(50, budget=20_000, progress=False).verdict
