"""The budget of a run: what is refused before any work, and how stages share it."""

import re

import pytest

from conformance import SMALL_GLOW
from helpers import refused
from msign import FitConfig, InverseProblem, LaplacePrior, fit
from msign.inference.run import Run
from msign.problems import synthetic


def smallest(problem: InverseProblem, config: FitConfig | None = None) -> int:
    """The least budget, as the refusal of a lower one names it."""
    with pytest.raises(ValueError, match="budget must be at least") as refusal:
        fit(problem, 300, config=config)
    return int(re.search(r"at least (\d+)", str(refusal.value)).group(1))


def opened(problem: InverseProblem, budget: int, config: FitConfig | None = None) -> Run:
    return Run(problem, budget, 0, None, False, False, config or FitConfig())


def quadratic(cells: int = 8, **options) -> InverseProblem:
    prior = LaplacePrior((cells,), 0.5, 1.0)
    return InverseProblem(prior, lambda x: x[:, :2] ** 2, [0.1, 0.2], 0.1, **options)


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (synthetic(64), None),
        (quadratic(64), FitConfig(round_size=1000)),
        (quadratic(inflate=300), FitConfig(certificate=500)),
        # The certificate grows with the budget, and the least budget with the certificate.
        (quadratic(inflate=3000), None),
    ],
    ids=["synthetic", "large rounds", "inflated", "much inflated"],
)
def test_a_budget_that_is_too_low_is_refused_with_the_least_that_works(problem, config):
    least = smallest(problem, config)
    opened(problem, least, config)
    with refused(f"budget must be at least {least}", f"got {least - 1}"):
        opened(problem, least - 1, config)


def test_a_single_stage_needs_less():
    whole = smallest(synthetic(64))
    assert smallest(synthetic(64), FitConfig(single_stage=True)) < whole / 3
    with refused(f"budget must be at least {whole} (for 6 stages", "got 1000"):
        fit(synthetic(64), 1000)


@pytest.mark.parametrize(
    "config", [FitConfig(), FitConfig(round_size=300), FitConfig(flow=SMALL_GLOW)]
)
def test_shares_leave_enough_for_the_stages_after_them_and_the_certificate(config):
    """Whatever the stages before have used of theirs: nothing, or all of it."""
    problem, budget = synthetic(64), 20_000
    for used in (0.0, 1.0):
        run = opened(problem, budget, config)
        ends = []
        for scale in run.scales:
            limit, size = run.share(scale)
            ends.append(limit)
            assert limit - run.simulator.nfs > size
            assert limit <= budget - run.certificate_size
            run.simulator.count.nfs += int(used * (limit - run.simulator.nfs))
        assert ends == sorted(ends)
        assert ends[-1] > 0.9 * (budget - run.certificate_size)  # and nothing is left over
