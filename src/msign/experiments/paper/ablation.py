"""Figure 5 and the last table of appendix F: MsIGN without each of its parts."""

import dataclasses
import pathlib
from collections.abc import Iterator

from msign import checks
from msign.experiments.ablate import SMALL, VARIANTS, base_config, run_ablation
from msign.experiments.paper.base import (
    QUICK_BUDGET,
    QUICK_SAMPLES,
    QUICK_SIZE,
    SIZE,
    Context,
    Made,
)
from msign.experiments.run import BUILT_IN, default_budget, load_problem
from msign.experiments.tasks import Setting
from msign.inference import FitConfig
from msign.inference.presets import NETWORKS
from msign.problems import InverseProblem
from msign.report.ablation_page import letter_rows, write_ablation
from msign.report.comparison import Comparison
from msign.report.comparison_figures import marginals_figure
from msign.report.comparison_page import write_report


@dataclasses.dataclass(frozen=True)
class Ablation:
    """What an ablation is of.

    Attributes:
        problem: Without inflated noise, as in the paper.
        setting: Variants, budget, scales.
        base: Options of MsIGN itself.
    """

    problem: InverseProblem
    setting: Setting
    base: FitConfig

    def only(self, variants: tuple[str, ...]) -> "Ablation":
        """The same of some variants."""
        return dataclasses.replace(
            self, setting=dataclasses.replace(self.setting, methods=variants)
        )

    def at(self, scales: tuple[int, ...]) -> "Ablation":
        """The same at some scales."""
        return dataclasses.replace(self, setting=dataclasses.replace(self.setting, scales=scales))


def ablation_setting(
    name: str,
    training: str = "paper",
    budget: int | None = None,
    size: int | None = None,
    n: int = 2500,
    seeds: tuple[int, ...] = (0,),
    quick: bool = False,
) -> Ablation:
    """The ablation of a problem of the paper at all scales; `quick`: small in every respect."""
    checks.one_of("problem", name, BUILT_IN)
    size = size or (QUICK_SIZE if quick else SIZE)
    problem = load_problem(name, size=size, inflate=0)
    limit = budget or (QUICK_BUDGET if quick else default_budget(name))
    network = SMALL if quick else NETWORKS[name]
    origin = {
        "problem": name,
        "options": {"size": size},
        "training": training,
        "network": list(network),
    }
    setting = Setting(
        origin=origin,
        methods=VARIANTS,
        budget=limit,
        n=min(n, QUICK_SAMPLES) if quick else n,
        seeds=seeds,
        scales=tuple(range(1, problem.scales + 1)),
        reference=2 * limit,
    )
    return Ablation(problem, setting, base_config(name, training, quick))


def run_and_report(wanted: Ablation, out: pathlib.Path, report: bool = False) -> Iterator[str]:
    """A line for every result, then the page; `report`: only the page of what there is."""
    if not report:
        yield from run_ablation(wanted.problem, wanted.setting, wanted.base, out)
    written = write_report(out)
    page = write_ablation(out)
    yield "\n" + page.read_text()
    yield from (f"written to {path}" for path in (*written, page))


def _ablated(context: Context, name: str) -> Comparison:
    """The ablation of a problem, with what is missing of it made."""
    out = context.work(f"ablate-{name}")
    wanted = ablation_setting(name, n=context.samples, seeds=context.seeds, quick=context.quick)
    for line in run_ablation(wanted.problem, wanted.setting, wanted.base, out):
        context.say(line)
    write_report(out)
    write_ablation(out)
    return Comparison(out)


def synthetic_ablation(context: Context) -> Made:
    """Marginals of all variants at all scales, synthetic problem."""
    return _marginals(context, "synthetic")


def elliptic_ablation(context: Context) -> Made:
    """Marginals of all variants at all scales, elliptic problem."""
    return _marginals(context, "elliptic")


def _marginals(context: Context, name: str) -> Made:
    found = _ablated(context, name)
    return Made(letter_rows(found), {"marginals": marginals_figure(found)}, (_NOTE,))


def ablation_table(context: Context) -> Made:
    """Letters of both problems, beside the paper's."""
    rows = [
        {"problem": name, **row}
        for name in ("synthetic", "elliptic")
        for row in letter_rows(_ablated(context, name))
    ]
    return Made(rows, {}, (_NOTE,))


_NOTE = (
    "training as in the paper; thresholds of the letters in msign/diagnostics/judge.py; those of "
    "the paper are by eye, for 64 x 64 cells"
)
