"""The words at the top of a report are those that its numbers call for."""

import itertools
import math
import re

import pytest

from msign.inference.remedies import Remedies
from msign.report.words import Misfit, with_error, words

STAGES = [
    {"scale": 1, "dimension": 4, "ess_fraction": 0.9},
    {"scale": 2, "dimension": 16, "ess_fraction": 0.4},
    {"scale": 3, "dimension": 64, "ess_fraction": 0.002},
]
GOOD = {
    "verdict": "GOOD: ...",
    "ess_fraction": 0.95,
    "khat": 0.2,
    "nfs": 20_000,
    "failures": 0,
    "reverse_kl": 0.03,
    "log_evidence": -2.9,
    "log_evidence_stderr": 0.01,
    "lowest_log_weight": -2.0,
    "worst_log_weight": 0.5,
    "lost_evidence": 0.0,
    "certificate_size": 1000,
    "mode_fractions": [0.4, 0.6],
    "mode_fractions_weighted": [0.41, 0.59],
    "stages": STAGES,
    "try": Remedies(1000, 1100, 12_000, 40_000, 7)._asdict(),
}
ROUGH = {**GOOD, "verdict": "ROUGH: ...", "ess_fraction": 0.05, "reverse_kl": 1.6}
UNTRAINED = {**GOOD, "verdict": "NOT RELIABLE: ...", "ess_fraction": 0.002, "reverse_kl": 9.0}
REJECTED = {
    **GOOD,
    "verdict": "ROUGH: ...",
    "failures": 500,
    "lowest_log_weight": -math.inf,
    "reverse_kl": math.inf,
}
LOST = {**GOOD, "verdict": "NOT RELIABLE: ...", "lost_evidence": math.log(2)}
NONE = {
    **UNTRAINED,
    "failures": 20_000,
    "log_evidence": -math.inf,
    "ess_fraction": math.nan,
    "reverse_kl": math.nan,
}
ALL = {
    "good": GOOD,
    "rough": ROUGH,
    "untrained": UNTRAINED,
    "rejected": REJECTED,
    "lost": LOST,
    "none": NONE,
}


def everything(found):
    return " ".join([found.title, *found.trust, *found.doubt, *found.steps])


@pytest.mark.parametrize("pair", list(itertools.combinations(ALL, 2)))
def test_different_runs_differ_in_all_that_is_said(pair):
    a, b = (words(ALL[name]) for name in pair)
    assert a.title != b.title
    assert set(a.doubt) != set(b.doubt)
    assert set(a.steps) != set(b.steps)


@pytest.mark.parametrize("name", ALL)
def test_every_step_ends_in_something_to_type_or_a_number(name):
    found = words(ALL[name])
    assert found.trust and found.doubt and found.steps
    assert all(re.search(r"\d|`", step) for step in found.steps)
    assert found.grade == ALL[name]["verdict"].partition(":")[0]


def test_a_good_run_is_used_and_its_limits_are_said():
    found = words(GOOD, run="runs/a")
    assert "as they are" in found.title
    assert "worth 950" in found.trust[0]
    assert "0.41 : 0.59" in found.trust[2]
    assert "never" in found.doubt[0] or "ever" in found.doubt[0]
    assert "msign sample runs/a" in found.steps[0]


def test_an_untrained_run_keeps_its_coarse_picture_and_gets_a_budget():
    found = words(UNTRAINED)
    assert "Do not use" in found.title
    assert "scale 2 (16 values)" in found.trust[0]
    assert "--budget 40000" in found.steps[1]
    assert "msign refine RUN -n 1000 --budget 12000" in found.steps[0]
    none = words({**UNTRAINED, "stages": STAGES[2:]})
    assert "Nothing" in none.trust[0]


def test_a_run_of_python_code_is_refined_in_python():
    assert "posterior.refine(1000, budget=12000)" in words(UNTRAINED, refine=None).steps[0]


def test_a_lost_mode_says_how_much_is_missing_and_that_refining_is_no_help():
    found = words(LOST)
    assert "missing" in found.title
    assert "50 percent" in found.doubt[0]
    assert "cannot" in found.steps[0] and "--budget 40000 --seed 7" in found.steps[0]


def test_evidence_that_poor_weights_lack_is_no_lost_mode():
    """An untrained model has found none of it yet."""
    assert words({**UNTRAINED, "lost_evidence": 20.0}) == words(UNTRAINED)


def test_what_costs_less_is_said_first():
    dear = {**UNTRAINED, "try": {**UNTRAINED["try"], "refine_budget": 500_000}}
    first, second = words(dear).steps
    assert first.startswith("Train longer: `--budget 40000`")
    assert second.startswith("Or go on from these samples")


def test_samples_that_cannot_be_simulated_are_said_in_words():
    assert "some of them lie where simulations fail" in words(REJECTED).doubt[1]
    assert "inf" not in everything(words(REJECTED)).split()


def test_rejected_simulations_are_said_with_their_number_whatever_the_grade():
    for summary in (REJECTED, {**GOOD, "failures": 500}, {**UNTRAINED, "failures": 500}):
        found = words(summary)
        assert "500 of 20 000 simulations (2.5 percent)" in found.doubt[0]
        assert "on_failure='raise'" in found.steps[0]
    assert "failed" not in everything(words(GOOD))


def test_data_that_do_not_fit_are_said_although_the_posterior_is_computed_well():
    found = words(GOOD, Misfit(9.0, 10))
    assert "3 times" in found.doubt[0] and "3 times" in found.steps[0]
    assert words(GOOD, Misfit(1.2, 10)) == words(GOOD)
    assert words(LOST, Misfit(9.0, 10)) == words(LOST)


def test_fields_that_all_fail_are_not_to_be_refined():
    found = words(NONE)
    assert "refine" not in everything(found)
    assert len(found.steps) == 1 and "on_failure='raise'" in found.steps[0]


def test_advice_of_the_run_itself_is_passed_on():
    assert words({**GOOD, "advice": ["try inflate=100"]}).steps[-1] == "try inflate=100"


def test_a_number_has_the_digits_that_its_error_leaves():
    assert with_error(-2.95274, 0.00029) == ("-2.9527", "± 0.0003")
    assert with_error(-331.3712, 0.037) == ("-331.37", "± 0.04")
    assert with_error(-1234.5678, 25.0) == ("-1235", "± 25")
    assert with_error(-2.5, 0.0) == ("-2.5", "± 0")
    assert with_error(-math.inf, math.nan) == ("-inf", "± nan")
