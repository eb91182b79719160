"""`msign ablate`: MsIGN without each of its parts (paper, figure 5, last table of appendix F).

Variants are options of `fit` (`inference.presets.ablations`), trained on one budget each. A variant
of a single stage has no models of coarse scales: at scale l it is trained on q_l, with a budget of
its own. The paper's star: models of KL and AS that are trained stage by stage begin their second
stage with the first one of MsIGN, because of their own first they lose a mode that later stages do
not find again; their letter at l = 1 is of a stage of their own.
"""

import dataclasses
import pathlib
import shutil
from collections.abc import Iterator

from msign import checks
from msign.bijections import GlowConfig
from msign.experiments.measured import own_samples
from msign.experiments.tasks import Setting, Task, begun, run_tasks
from msign.inference import FitConfig, Fresh, Glow, Posterior, fit
from msign.inference.methods.objectives import PathwiseJeffreys
from msign.inference.presets import ablations
from msign.problems import InverseProblem
from msign.rundir import RunDirectory
from msign.samplers import Samples

VARIANTS = ("glow", "msign-snn", "msign-kl-s", "msign-kl", "msign-as-s", "msign-as", "msign")
BASE = "msign"
STARRED = ("msign-kl", "msign-as")
TRAININGS = ("paper", "ours")
SMALL = (4, 16)  # blocks and hidden channels of quick ablations


def base_config(problem: str, training: str = "paper", small: bool = False) -> FitConfig:
    """MsIGN with the paper's network: trained as in the paper, or pathwise on fresh fields."""
    config = FitConfig.paper(problem)
    checks.one_of("training", training, TRAININGS)
    flow = config.flow
    assert isinstance(flow, Glow)
    glow = flow.config
    if training == "ours":
        glow = GlowConfig(glow.blocks, glow.hidden)
        config = FitConfig(method=Fresh(objective=PathwiseJeffreys()))
    if small:
        glow = dataclasses.replace(glow, blocks=SMALL[0], hidden=SMALL[1])
        config = dataclasses.replace(config, round_size=200)
    return dataclasses.replace(config, flow=dataclasses.replace(flow, config=glow))


def run_ablation(
    problem: InverseProblem, setting: Setting, base: FitConfig, out: pathlib.Path
) -> Iterator[str]:
    """Do what is not done yet, a line for every result."""
    for method in setting.methods:
        checks.one_of("variants", method, VARIANTS)
    configs = ablations(base)
    configs[BASE].method_for(problem, problem.dim)  # refuses what cannot work, before any work
    directory = begun(problem, setting, out)
    trained = Trained(problem, setting, configs, directory)
    yield from run_tasks(problem, setting, directory, setting.methods, trained.samples)


class Trained:
    """Samples of all variants, whose runs are kept in directories of their own.

    Args:
        problem: What is inferred.
        setting: How.
        configs: Options of each variant.
        directory: Of the ablation.
    """

    def __init__(
        self,
        problem: InverseProblem,
        setting: Setting,
        configs: dict[str, FitConfig],
        directory: RunDirectory,
    ):
        self.problem, self.setting, self.configs = problem, setting, configs
        self.directory = directory

    def samples(self, task: Task) -> Samples | None:
        """Of a variant at a scale."""
        return own_samples(self.posterior(task), task.scale, self.setting.n)

    def posterior(self, task: Task) -> Posterior:
        """The model of a variant that has a posterior at the task's scale."""
        out = self.run(task)
        problem = self.problem.cut(task.scale) if self._alone(task) else self.problem
        if (out / "posterior.json").exists():
            return Posterior.load(out, problem)
        if task.method in STARRED and not self._alone(task):
            self._begin_from_base(task, out)
        budget, resume = self.setting.budget - self.setting.n, (out / "config.json").exists()
        config = self.configs[task.method]
        given = (problem, budget, task.seed, out, resume, False)
        return fit(*given, config=config, report=False)

    def run(self, task: Task) -> pathlib.Path:
        """Directory of the run that a task takes its samples from."""
        which = f"-{task.scale}" if self._alone(task) else ""
        return self.directory.path / f"{task.method}-{task.seed}{which}"

    def _alone(self, task: Task) -> bool:
        """Whether there is a run for this scale alone."""
        config = self.configs[task.method]
        single = config.single_stage or config.kind.needs_one_stage
        return single or (task.method in STARRED and task.scale == 1)

    def _begin_from_base(self, task: Task, out: pathlib.Path) -> None:
        """The star: a run whose first stage is done is one that goes on with the second."""
        base = Task(BASE, self.problem.scales, task.seed)
        self.posterior(base)
        if not (out / "config.json").exists():
            out.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.run(base) / "stage_1.npz", out / "stage_1.npz")
