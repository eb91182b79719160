"""`msign compare`: MsIGN and its rivals on one problem, at one budget of forward simulations."""

import pathlib
from collections.abc import Iterator
from typing import Any

import jax.random as jr
import numpy as np

from msign import checks
from msign.experiments.measured import own_samples
from msign.experiments.tasks import Setting, Task, begun, run_tasks
from msign.inference import Posterior, fit
from msign.noise import as_array
from msign.problems import InverseProblem
from msign.rundir import RunDirectory
from msign.samplers import SAMPLERS, AmortizedSVGD, Sampler, Samples

OWN, EXACT = "msign", "exact"  # methods that are no samplers: `fit`, and samples of the truth
METHODS = (OWN, *SAMPLERS)
EXACT_KEY = 10**6  # no other method's


def samplers_for(origin: dict[str, Any]) -> dict[str, Sampler]:
    """All samplers with the paper's network hyper-parameters for its problem (appendix F)."""
    wide = origin.get("problem") == "elliptic"
    blocks, hidden = origin.get("network", (32, 64) if wide else (16, 32))
    return {**SAMPLERS, "asvgd": AmortizedSVGD(blocks, hidden)}


def as_known(problem: InverseProblem) -> InverseProblem:
    """The problem whose coarse posteriors are those that exact samples are known of.

    These are of q_l with the noise as it is: of an inflated one every method would be off.
    """
    return problem if problem.reference is None else problem.without_inflation()


def run_comparison(problem: InverseProblem, setting: Setting, out: pathlib.Path) -> Iterator[str]:
    """Do what is not done yet, a line for every result."""
    problem, samplers = as_known(problem), samplers_for(setting.origin)
    check_methods(problem, setting.methods, samplers)
    directory = begun(problem, setting, out)
    known = (EXACT,) if problem.reference is not None else ()
    rivals = Rivals(problem, setting, samplers, directory)
    methods = (*known, *setting.methods)
    yield from run_tasks(problem, setting, directory, methods, rivals.samples)


def check_methods(
    problem: InverseProblem, methods: tuple[str, ...], samplers: dict[str, Sampler]
) -> None:
    """Refuse methods that cannot do a problem, and name those of them that can."""
    why = dict[str, str]()
    for method in methods:
        checks.one_of("methods", method, METHODS)
        try:
            if method != OWN:
                samplers[method].check(problem)
        except ValueError as error:
            why[method] = str(error)
    if why:
        can = ",".join(method for method in methods if method not in why)
        others = f"; of those asked for these can: --methods {can}" if can else ""
        raise ValueError(f"{next(iter(why.values()))}{others}")


class Rivals:
    """Samples of all methods; what several results share is made once.

    Args:
        problem: What is compared on.
        setting: How.
        samplers: By name.
        directory: Of the comparison.
    """

    def __init__(
        self,
        problem: InverseProblem,
        setting: Setting,
        samplers: dict[str, Sampler],
        directory: RunDirectory,
    ):
        self.problem, self.setting, self.samplers = problem, setting, samplers
        self.directory = directory
        self._fitted: tuple[int, Posterior] | None = None

    def samples(self, task: Task) -> Samples | None:
        """Of any method."""
        n, problem = self.setting.n, self.problem
        if task.method == EXACT:
            key = jr.fold_in(jr.key(task.seed), EXACT_KEY + task.scale)
            u = problem.reference.sample(key, n, task.scale)
            fields = np.asarray(problem.priors[task.scale - 1].unwhiten(as_array(u)))
            return Samples(fields, u, 0, 0.0, log_weights=np.zeros(n))
        if task.method == OWN:
            posterior = self._posterior(task.seed)
            return own_samples(posterior, task.scale, n) if task.scale in posterior.scales else None
        sampler = self.samplers[task.method]
        return sampler.run(problem, task.scale, self.setting.budget, n, task.seed)

    def _posterior(self, seed: int) -> Posterior:
        """What `fit` learns; its weights' simulations are left out of its budget."""
        if self._fitted is None or self._fitted[0] != seed:
            budget = self.setting.budget - self.setting.n
            out = self.directory.path / f"{OWN}-{seed}"
            resume = (out / "config.json").exists()
            found = fit(self.problem, budget, seed, out, resume, progress=False)
            self._fitted = seed, found
        return self._fitted[1]
