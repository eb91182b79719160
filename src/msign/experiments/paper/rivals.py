"""Figures 3 and 4 (a), table 1 and appendix F: MsIGN and its rivals at all scales."""

from typing import Any

from msign.experiments.compare import run_comparison
from msign.experiments.paper.base import QUICK_BUDGET, QUICK_NETWORK, Context, Made
from msign.experiments.run import default_budget, load_problem
from msign.experiments.tasks import Setting
from msign.problems import InverseProblem
from msign.report.comparison import LABELS, MOMENTS, Comparison, table
from msign.report.comparison_figures import errors_figure, marginals_figure
from msign.report.comparison_page import write_report
from msign.report.paper_values import CAPTURED, JEFFREYS

PAPERS = ("msign", "hmc", "svgd", "asvgd", "psvgd")
TODAY = ("nuts", "pcn", "slice", "smc")  # which the paper does not have


def setting_of(context: Context, name: str) -> tuple[InverseProblem, Setting]:
    """A problem of the paper, and how methods are compared on it."""
    problem = load_problem(name, size=context.size)
    budget = QUICK_BUDGET if context.quick else default_budget(name)
    origin: dict[str, Any] = {"problem": name, "options": {"size": context.size}}
    if context.quick:
        origin["network"] = QUICK_NETWORK
    setting = Setting(
        origin=origin,
        methods=PAPERS if context.quick else (*PAPERS, *TODAY),
        budget=budget,
        n=context.samples,
        seeds=context.seeds,
        scales=tuple(range(1, problem.scales + 1)),
        reference=2 * budget,
    )
    return problem, setting


def compared(context: Context, name: str) -> Comparison:
    """The comparison on a problem of the paper, with what is missing of it made."""
    out = context.work(f"compare-{name}")
    problem, setting = setting_of(context, name)
    for line in run_comparison(problem, setting, out):
        context.say(line)
    write_report(out)
    return Comparison(out)


def synthetic_marginals(context: Context) -> Made:
    """Figure 3 (a) and appendix F."""
    return _marginals(context, "synthetic")


def elliptic_marginals(context: Context) -> Made:
    """Figure 4 (a) and appendix F."""
    return _marginals(context, "elliptic")


def _marginals(context: Context, name: str) -> Made:
    found = compared(context, name)
    rows = [
        {
            "method": LABELS[row["method"]],
            "scale": row["scale"],
            "ours": row["letters"],
            "balance": row["balance"],
            "bias": row["bias"],
            "nfs": row["nfs"],
            "seconds": row["seconds"],
            "paper": CAPTURED[name].get(row["method"]),
        }
        for row in table(found)
        if row["method"] != "exact"
    ]
    note = "letters by the rule of `msign compare`; of the paper what it says of its figures"
    return Made(rows, {"marginals": marginals_figure(found)}, (note,))


def errors(context: Context) -> Made:
    """Figure 3 (b): root mean square errors of moments, with confidence intervals."""
    found = compared(context, "synthetic")
    rows = [
        {
            "moment": moment,
            "method": LABELS[row["method"]],
            "scale": row["scale"],
            "ours": row[f"rmse_{moment}"],
            "half of the interval": row[f"rmse_{moment}_ci"],
        }
        for moment in MOMENTS
        for row in table(found)
    ]
    note = "the paper has a figure and no numbers; exact samples are the floor of Monte Carlo"
    return Made(rows, {"errors": errors_figure(found, table(found))}, (note,))


def jeffreys(context: Context) -> Made:
    """Table 1: the Jeffreys divergence of methods that know their density."""
    found = compared(context, "synthetic")
    rows = [
        {
            "method": LABELS[row["method"]],
            "scale": row["scale"],
            "ours": row["jeffreys"],
            "half of the interval": row["jeffreys_ci"],
            "paper": JEFFREYS.get(row["method"], (None,))[0] if row["scale"] == 6 else None,
        }
        for row in table(found)
        if row["jeffreys"] is not None and row["method"] != "exact"
    ]
    note = "the paper's values are of l = 6, in a normalisation of the problem it does not state"
    return Made(rows, {}, (note,))
