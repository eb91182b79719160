"""Algorithm 1 of the paper: train the posterior coarse to fine, within a budget of simulations."""

import os
import time
from collections.abc import Callable
from typing import Any

import jax.random as jr
import numpy as np

from msign import checks
from msign.diagnostics.modes import mode_fractions
from msign.inference.config import FitConfig
from msign.inference.models import StageModel
from msign.inference.posterior import Posterior
from msign.inference.progress import Progress
from msign.inference.rundir import RunDirectory
from msign.inference.simulate import simulate
from msign.inference.stage import SHOWN, choose_method, initial_state, run_stage
from msign.inference.start import start_model
from msign.inference.state import Plan, StageState
from msign.problems.inverse import InverseProblem, SimulationError
from msign.weights import ess_fraction


def fit(
    problem: InverseProblem,
    budget: int = 800_000,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = True,
    config: FitConfig | None = None,
) -> Posterior:
    """Learn the posterior of an inverse problem.

    Args:
        problem: What is to be inferred.
        budget: Forward simulations that may be used, a hard limit (the certificate included).
        seed: Same seed, same numbers.
        out: Directory for checkpoints, log and result; None keeps everything in memory.
        resume: Go on with the run in `out` where it was interrupted.
        progress: Show a progress bar (only where the output is a terminal).
        config: Options of training.

    Example:
        >>> import msign
        >>> problem = msign.problems.synthetic(size=4)
        >>> posterior = msign.fit(problem, budget=1000, config=msign.FitConfig(steps=50))
        >>> posterior.sample(10).shape
        (10, 4, 4)
    """
    config = FitConfig() if config is None else config
    checks.integer("budget", budget, 1000)
    checks.integer("seed", seed, 0)
    run = _Run(problem, budget, seed, out, resume, config)
    scales = [problem.scales] if config.single_stage else list(range(1, problem.scales + 1))
    with Progress(progress, scales, budget) as bar:
        models: dict[int, StageModel] = {}
        before: StageModel | None = None
        for scale in scales:  # Algorithm 1, line 3
            models[scale] = before = run.stage(scale, before, scales, bar.update)
        return run.finish(models)


class _Run:
    """The changing parts of a fit: counts, records, files."""

    def __init__(
        self,
        problem: InverseProblem,
        budget: int,
        seed: int,
        out: str | os.PathLike[str] | None,
        resume: bool,
        config: FitConfig,
    ):
        self.problem, self.budget, self.seed, self.config = problem, budget, seed, config
        self.key = jr.key(seed)
        self.records: list[dict[str, Any]] = []
        self.stages: list[dict[str, Any]] = []
        self.seconds_before = 0.0
        self.began = time.monotonic()
        self.certificate = config.certificate or int(np.clip(budget // 20, 200, 20_000))
        self.round_size = config.round_size or int(
            np.clip(budget // (8 * problem.scales), 200, 4000)
        )
        self.directory = None if out is None else RunDirectory(out)
        for scale in range(1, problem.scales + 1):
            choose_method(config, problem, scale, 1)  # refuses what cannot work, before any work
        what = {
            "problem": problem.name,
            "dimension": problem.dim,
            "budget": budget,
            "seed": seed,
            "fit": config.to_json(),
        }
        if self.directory is not None:
            self._open(self.directory, what, resume)
        problem.nfs, problem.failures = 0, 0
        if not (self.directory is not None and self.directory.finished_stages()):
            problem.check()

    def _open(self, directory: RunDirectory, what: dict[str, Any], resume: bool) -> None:
        if not directory.started:
            if resume:
                raise ValueError(f"out must hold a run to resume, got {directory.path}")
            directory.save_prior(self.problem)
            directory.write_json("config.json", what)
            return
        if not resume:
            raise ValueError(
                f"out holds a run already: resume it or choose another, got {directory.path}"
            )
        had = directory.read_json("config.json")
        for name, value in FitConfig.from_json(had["fit"]).to_json().items():
            if self.config.to_json()[name] != value:
                raise ValueError(
                    f"config must be that of the run to resume: {name} was {value!r}, got "
                    f"{self.config.to_json()[name]!r}"
                )
        for name in ("problem", "dimension", "budget", "seed"):
            if had[name] != what[name]:
                raise ValueError(
                    f"{name} must be that of the run to resume: it was {had[name]!r}, got "
                    f"{what[name]!r}"
                )

    def stage(
        self,
        scale: int,
        before: StageModel | None,
        scales: list[int],
        show: Callable[[dict[str, Any]], None],
    ) -> StageModel:
        """Lines 4 to 7 of Algorithm 1: start from q~_l, learn q_l; or what was learned already."""
        problem, config, directory = self.problem, self.config, self.directory
        if directory is not None and scale in directory.finished_stages():
            model, saved = directory.load_stage(scale, problem, config)
            self._restore(saved)
            return model
        key = jr.fold_in(self.key, scale)
        found = directory.load_checkpoint(problem, config, self.key) if directory else None
        try:
            if found is not None:
                state, plan, saved = found
                self._restore(saved)
            else:
                plan = self._plan(scale, before, scales, key)
                state = None
            method = choose_method(config, problem, scale, plan.model.core.size)
            if state is None:
                state = initial_state(problem, config, plan, method)
            state = run_stage(problem, state, config, plan, method, self._after_round(plan, show))
        except SimulationError as error:
            if directory is not None:
                np.save(directory.path / "failed_field.npy", error.field)
            raise
        model = plan.model.with_core(state.best)
        self.stages.append(self._described(plan, state))
        if directory is not None:
            directory.save_stage(model, scale, self._progress())
        return model

    def _described(self, plan: Plan, state: StageState) -> dict[str, Any]:
        """What a finished stage did, and how good its model is by held-out fields."""
        first = next(r for r in self.records if r["scale"] == plan.scale)
        pooled = state.pool.log_evidence() if state.pool.size else (None, None)
        return {
            "scale": plan.scale,
            "dimension": plan.model.dim,
            "trained_variables": plan.model.core.size,
            "nfs": self.problem.nfs - plan.begin,
            "rounds": state.round,
            "seconds": self.seconds - sum(s["seconds"] for s in self.stages),
            "jeffreys_start": first["jeffreys"],
            "ess_fraction_start": first["ess_fraction"],
            "jeffreys": state.best_jeffreys,
            "ess_fraction": ess_fraction(state.log_weights),
            "khat": state.khat,
            "log_evidence": pooled[0],
            "log_evidence_stderr": pooled[1],
            "mode_fractions": mode_fractions(state.shown),
            "mode_fractions_weighted": mode_fractions(state.shown, state.log_weights),
        }

    def _plan(self, scale: int, before: StageModel | None, scales: list[int], key: Any) -> Plan:
        """A stage's share of what is left: coarse scales, where the work is, get more."""
        problem = self.problem
        weights = [3 if s <= max(2, problem.scales - 3) else 1 for s in scales if s >= scale]
        left = self.budget - self.certificate - problem.nfs
        begin, share = problem.nfs, left * weights[0] // sum(weights)
        allowance = min(share // 3, share - self.round_size)
        size = self.round_size
        if scale == problem.scales and self.config.round_size is None:
            # What is judged by its tails is judged on as many fields as the certificate.
            size = int(np.clip(share // 8, size, max(size, self.certificate)))
        model = start_model(
            problem, scale, before, self.config, jr.fold_in(key, 10**6), max(0, allowance)
        )
        return Plan(model, scale, begin, begin + share, size, key)

    def _after_round(
        self, plan: Plan, show: Callable[[dict[str, Any]], None]
    ) -> Callable[[StageState, dict[str, Any]], None]:
        def after(state: StageState, record: dict[str, Any]) -> None:
            self.records.append({**record, "seconds": round(self.seconds, 3)})
            show(record)
            if self.directory is not None and state.round % self.config.checkpoint_rounds == 0:
                self.directory.save_checkpoint(state, plan, self._progress())
                self.directory.write_log(self.records)

        return after

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.began

    def _progress(self) -> dict[str, Any]:
        return {
            "nfs": self.problem.nfs,
            "failures": self.problem.failures,
            "seconds": self.seconds,
            "records": self.records,
            "stages": self.stages,
        }

    def _restore(self, saved: dict[str, Any]) -> None:
        self.problem.inflation(1)  # estimated once a process; the count that follows has it
        self.problem.nfs, self.problem.failures = saved["nfs"], saved["failures"]
        self.records, self.stages = saved["records"], saved["stages"]
        self.seconds_before, self.began = saved["seconds"], time.monotonic()

    def finish(self, models: dict[int, StageModel]) -> Posterior:
        """Simulate fresh fields of the finished model: its certificate."""
        problem, scale = self.problem, self.problem.scales
        drawn = simulate(problem, models[scale], scale, jr.fold_in(self.key, 0), self.certificate)
        posterior = Posterior(
            problem,
            models,
            self.config,
            seed=self.seed,
            log_weights=drawn.log_weights,
            coordinates=drawn.s[:, :SHOWN],
            records=self.records,
            stages=self.stages,
            nfs=problem.nfs,
            failures=problem.failures,
            seconds=self.seconds,
        )
        if self.directory is not None:
            posterior.save(self.directory.path)
            self.directory.write_log(self.records)
        return posterior
