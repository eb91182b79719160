"""A run's certificate in words: what can be trusted, what cannot, what to do next.

Everything is a function of the summary, so that one summary always gives the same words.
"""

import math
from typing import Any, NamedTuple

from msign.weights import is_poor

SOUND_ESS = 0.1  # effective sample size, as a part, from which a coarse stage is worth showing
WEIGHTS = ("ess_fraction", "khat", "worst_log_weight")  # that tell whether weights say anything
SURPRISING = 4.0  # standard errors from which a mean square of residuals is no accident


class Words(NamedTuple):
    """What stands at the top of a report.

    Attributes:
        grade: `GOOD`, `ROUGH` or `NOT RELIABLE`.
        title: One sentence.
        trust: What can be trusted.
        doubt: What cannot.
        steps: What to do next; texts in backquotes are code.
    """

    grade: str
    title: str
    trust: list[str]
    doubt: list[str]
    steps: list[str]


class Misfit(NamedTuple):
    """How large residuals are.

    Attributes:
        mean_square: Of residuals in units of the noise, one where noise is all that is left.
        observations: How many there are.
    """

    mean_square: float
    observations: int

    @property
    def is_surprising(self) -> bool:
        """Whether noise of the given size makes such residuals next to never."""
        return self.mean_square > 1 + SURPRISING * math.sqrt(2 / self.observations)


def grade_of(summary: dict[str, Any]) -> str:
    """GOOD, ROUGH or NOT RELIABLE."""
    found = str(summary["verdict"]).partition(":")[0]
    return found if found in ("GOOD", "ROUGH") else "NOT RELIABLE"


def words(
    summary: dict[str, Any],
    misfit: Misfit | None = None,
    run: str = "RUN",
    refine: str | None = "msign refine RUN",
) -> Words:
    """What a reader should know before anything else.

    Args:
        summary: Of the run.
        misfit: Of the data, where there are observations.
        run: The run's directory, for commands.
        refine: The command that refines it; None where only Python code has its problem.
    """
    grade = grade_of(summary)
    if is_missing_a_part(summary):
        found = _lost_mode(summary)
    elif not math.isfinite(summary["log_evidence"]):
        found = _without_simulations()
    elif grade == "GOOD":
        found = _good(summary, run)
    elif grade == "ROUGH":
        found = _rough(summary, refine)
    else:
        found = _unreliable(summary, refine)
    found = _with_failures(found, summary)
    found = _with_misfit(found, misfit)
    return found._replace(steps=[*found.steps, *map(str, summary.get("advice", ()))])


def _good(summary: dict[str, Any], run: str) -> Words:
    fields = summary["try"]["fields"]
    worth = max(1, int(fields * summary["ess_fraction"]))
    trust = [
        f"Means, standard deviations, quantiles and probabilities of samples as they are: {fields} "
        f"of them are worth {worth} independent draws of the exact posterior.",
        f"The log evidence, {_evidence(summary)}, with which models can be compared.",
    ]
    count = len(summary["mode_fractions"])
    if count > 1:
        shares = " : ".join(f"{f:.2f}" for f in summary["mode_fractions_weighted"])
        trust.append(f"That there are {count} modes, and their shares {shares}.")
    return Words(
        "GOOD",
        "These samples can be used as they are.",
        trust,
        ["A mode that no simulation of this run ever met: it leaves no trace in these numbers."],
        [
            f"Draw as many as you need: `msign sample {run} -n {fields} -o samples.nc`.",
            "Where a missed mode would be costly, run once more with another seed "
            f"({_number(summary['nfs'])} simulations) and compare modes and evidence.",
        ],
    )


def _rough(summary: dict[str, Any], refine: str | None) -> Words:
    ess, numbers = summary["ess_fraction"], summary["try"]
    one_in = max(1, round(1 / ess))
    counts = f"one in {one_in} counts" if one_in > 1 else "nearly all count"
    doubt = []
    if summary["lowest_log_weight"] == -math.inf:
        doubt.append(
            "Samples without their weights: some of them lie where simulations fail, and weigh "
            "nothing."
        )
    elif ess < SOUND_ESS:
        doubt.append("Samples without their weights: they are not spread as the posterior is.")
    else:
        doubt.append(
            "Probabilities of rare events, below one percent or so: a few samples have weights far "
            f"from the rest (log-weights from {summary['lowest_log_weight']:.3g} to "
            f"{summary['worst_log_weight']:.3g})."
        )
    return Words(
        "ROUGH",
        "Usable with importance weights, not without.",
        [
            f"Means and standard deviations of weighted samples, of which {counts} (effective "
            f"sample size {percent(ess)}).",
            f"The log evidence {_evidence(summary)}.",
        ],
        doubt,
        [
            f"Correct the samples: `posterior.resample({numbers['fields']}, "
            f"draws={numbers['draws']})` takes {_number(numbers['draws'])} simulations.",
            _refine_step(summary, refine),
        ],
    )


def _unreliable(summary: dict[str, Any], refine: str | None) -> Words:
    trust = []
    sound = [s for s in summary["stages"][:-1] if s["ess_fraction"] >= SOUND_ESS]
    if sound:
        last = sound[-1]
        trust.append(
            f"The coarse picture up to scale {last['scale']} ({last['dimension']} values): its "
            f"stage ended with an effective sample size of {percent(last['ess_fraction'])}."
        )
    numbers = summary["try"]
    fields = numbers["fields"]
    longer = (
        f"Train longer: `--budget {numbers['fit_budget']}`; this run used "
        f"{_number(summary['nfs'])} simulations."
    )
    steps = [_refine_step(summary, refine), longer]
    if numbers["fit_budget"] < numbers["refine_budget"]:
        steps.reverse()  # what costs less stands first
    steps[1] = f"Or {steps[1][0].lower()}{steps[1][1:]}"
    return Words(
        "NOT RELIABLE",
        "Do not use these samples: training did not reach the posterior.",
        trust or ["Nothing in numbers. The pictures show where training was going."],
        [
            "Means, spreads, modes and evidence at the finest scale: weighted or not, "
            f"{fields} samples are worth {max(1, round(fields * summary['ess_fraction']))}.",
        ],
        steps,
    )


def _without_simulations() -> Words:
    return Words(
        "NOT RELIABLE",
        "No simulation of these samples succeeded: there is nothing to weigh them by.",
        ["Nothing."],
        ["All of it: these samples lie where the forward map has no answer."],
        [],
    )


def _lost_mode(summary: dict[str, Any]) -> Words:
    missing = 1 - math.exp(-summary["lost_evidence"])
    return Words(
        "NOT RELIABLE",
        "A part of the posterior is missing from these samples.",
        [
            "What samples look like within the modes that were kept (effective sample size "
            f"{percent(summary['ess_fraction'])} there).",
        ],
        [
            f"Everything else. Fields met in training carry about {100 * missing:.0f} percent of "
            "the posterior's mass where there are no samples any more: means, spreads, mode "
            "shares and evidence are those of the rest.",
            "The effective sample size, which cannot see what is missing.",
        ],
        [
            "Train again, longer and from another seed: `--budget "
            f"{summary['try']['fit_budget']} --seed {summary['try']['fit_seed']}`. `refine` cannot "
            "bring a lost mode back.",
        ],
    )


def _with_failures(found: Words, summary: dict[str, Any]) -> Words:
    """What rejected simulations mean; they count as fields that cannot be."""
    failures, nfs = summary["failures"], max(1, summary["nfs"])
    if not failures:
        return found
    part = f"{_number(failures)} of {_number(nfs)} simulations ({percent(failures / nfs)})"
    doubt = (
        f"What is said of fields that could not be simulated: {part} failed, and these count "
        "as impossible. That is right where failure means an impossible field, and wrong where the "
        "simulator is at fault."
    )
    step = (
        "Look at a field that fails: a run with `on_failure='raise'` stops at the first and keeps "
        "it in `failed_field.npy`."
    )
    title = found.title
    if found.grade != "NOT RELIABLE":
        title = f"{title} Fields that could not be simulated count as impossible."
    return found._replace(title=title, doubt=[doubt, *found.doubt], steps=[step, *found.steps])


def _with_misfit(found: Words, misfit: Misfit | None) -> Words:
    if misfit is None or found.grade == "NOT RELIABLE" or not misfit.is_surprising:
        return found
    typical = math.sqrt(misfit.mean_square)
    doubt = (
        f"The model of the data: residuals are {typical:.2g} times as large as the noise allows. "
        "The posterior is computed well, of a model that does not fit."
    )
    step = (
        f"Check forward map and noise; a standard deviation {typical:.2g} times as large, or "
        "`likelihoods.StudentT`, would fit."
    )
    return found._replace(doubt=[doubt, *found.doubt], steps=[step, *found.steps])


def _refine_step(summary: dict[str, Any], refine: str | None) -> str:
    fields, budget = summary["try"]["fields"], summary["try"]["refine_budget"]
    if refine is None:
        return (
            f"Go on from these samples to the posterior: `posterior.refine({fields}, "
            f"budget={budget})`."
        )
    return f"Go on from these samples to the posterior: `{refine} -n {fields} --budget {budget}`."


def is_missing_a_part(summary: dict[str, Any]) -> bool:
    """Whether fields of training have evidence that the samples lack, and weights that say so."""
    lost = summary.get("lost_evidence", 0.0) > 0
    return lost and not is_poor(*(summary[name] for name in WEIGHTS))


def percent(part: float) -> str:
    """A part in words."""
    value = 100 * part
    return f"{value:.0f} percent" if value >= 10 else f"{value:.2g} percent"


def with_error(value: float, error: float) -> tuple[str, str]:
    """A number with as many digits as its standard error leaves it, and the error."""
    if not (math.isfinite(value) and math.isfinite(error) and error > 0):
        return f"{value:.4g}", f"± {error:.1g}"
    digits = max(0, -math.floor(math.log10(error)))
    return f"{value:.{digits}f}", f"± {error:.{digits}f}"


def _evidence(summary: dict[str, Any]) -> str:
    return " ".join(with_error(summary["log_evidence"], summary["log_evidence_stderr"]))


def _number(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")
