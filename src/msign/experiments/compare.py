"""`msign compare`: MsIGN and its rivals on one problem, at one budget of forward simulations."""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import jax.random as jr
import numpy as np

from msign import checks
from msign.bijections import GlowConfig
from msign.experiments.measured import own_samples
from msign.experiments.tasks import Setting, Task, begun, run_tasks
from msign.inference import FitConfig, Glow, Posterior, fit
from msign.inference.presets import NETWORKS
from msign.noise import as_array
from msign.problems import InverseProblem
from msign.rundir import RunDirectory
from msign.samplers import SAMPLERS, AmortizedSVGD, Sampler, Samples

# Methods that are no samplers: `fit`, with the paper's network, as in the paper; and the truth.
OWN, NETWORK, PAPER, EXACT = "msign", "msign-network", "msign-paper", "exact"
FITTED = (OWN, NETWORK, PAPER)
METHODS = (*FITTED, *SAMPLERS)
EXACT_KEY = 10**6  # no other method's
ENOUGH = 0.2  # divergence of the paper's network that is not trained any more: steps take seconds


def network_of(origin: dict[str, Any]) -> tuple[int, int]:
    """Blocks and hidden channels of the paper's network for its problem (appendix F)."""
    blocks, hidden = origin.get("network", NETWORKS[_of_paper(origin)])
    return blocks, hidden


def _of_paper(origin: dict[str, Any]) -> str:
    return "elliptic" if origin.get("problem") == "elliptic" else "synthetic"


def samplers_for(origin: dict[str, Any]) -> dict[str, Sampler]:
    """All samplers with the paper's network hyper-parameters for its problem."""
    return {**SAMPLERS, "asvgd": AmortizedSVGD(*network_of(origin))}


def config_of(method: str, origin: dict[str, Any]) -> FitConfig:
    """Options of `fit` for one of the methods that it is."""
    if method == OWN:
        return FitConfig()
    blocks, hidden = network_of(origin)
    if method == NETWORK:
        return FitConfig(flow=Glow(GlowConfig(blocks, hidden)), tolerance=ENOUGH)
    config = FitConfig.paper(_of_paper(origin))
    assert isinstance(config.flow, Glow)
    glow = dataclasses.replace(config.flow.config, blocks=blocks, hidden=hidden)
    return dataclasses.replace(config, flow=dataclasses.replace(config.flow, config=glow))


def as_known(problem: InverseProblem) -> InverseProblem:
    """The problem whose coarse posteriors are those that exact samples are known of.

    These are of q_l with the noise as it is: of an inflated one every method would be off.
    """
    return problem if problem.reference is None else problem.without_inflation()


def run_comparison(problem: InverseProblem, setting: Setting, out: pathlib.Path) -> Iterator[str]:
    """Do what is not done yet, a line for every result."""
    problem, samplers = as_known(problem), samplers_for(setting.origin)
    check_methods(problem, setting, samplers)
    directory = begun(problem, setting, out)
    known = (EXACT,) if problem.reference is not None else ()
    rivals = Rivals(problem, setting, samplers, directory)
    methods = (*known, *setting.methods)
    yield from run_tasks(problem, setting, directory, methods, rivals.samples)


def check_methods(problem: InverseProblem, setting: Setting, samplers: dict[str, Sampler]) -> None:
    """Refuse methods that cannot do a problem, and name those of them that can."""
    why = dict[str, str]()
    for method in setting.methods:
        checks.one_of("methods", method, METHODS)
        try:
            if method in FITTED:
                config_of(method, setting.origin).method_for(problem, problem.dim)
            else:
                samplers[method].check(problem)
        except ValueError as error:
            why[method] = str(error)
    if why:
        can = ",".join(method for method in setting.methods if method not in why)
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
        self._fitted: tuple[tuple[str, int], Posterior] | None = None

    def samples(self, task: Task) -> Samples | None:
        """Of any method."""
        n, problem = self.setting.n, self.problem
        if task.method == EXACT:
            key = jr.fold_in(jr.key(task.seed), EXACT_KEY + task.scale)
            u = problem.reference.sample(key, n, task.scale)
            fields = np.asarray(problem.priors[task.scale - 1].unwhiten(as_array(u)))
            return Samples(fields, u, 0, 0.0, log_weights=np.zeros(n))
        if task.method in FITTED:
            posterior = self._posterior(task.method, task.seed)
            return own_samples(posterior, task.scale, n) if task.scale in posterior.scales else None
        sampler = self.samplers[task.method]
        return sampler.run(problem, task.scale, self.setting.budget, n, task.seed)

    def _posterior(self, method: str, seed: int) -> Posterior:
        """What `fit` learns; its weights' simulations are left out of its budget."""
        if self._fitted is None or self._fitted[0] != (method, seed):
            setting = self.setting
            budget, config = setting.budget - setting.n, config_of(method, setting.origin)
            problem = self.problem.without_inflation() if method == PAPER else self.problem
            out = self.directory.path / f"{method}-{seed}"
            resume = (out / "config.json").exists()
            found = fit(problem, budget, seed, out, resume, progress=False, config=config)
            self._fitted = (method, seed), found
        return self._fitted[1]
