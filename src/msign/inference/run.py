"""What hangs on a fit beside the mathematics: budget shares, files, progress, records, resuming."""

import dataclasses
import os
import time
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.random as jr
import numpy as np

from msign import archive
from msign.compilation import keep_compiled_programs
from msign.devices import wait, writes_files
from msign.diagnostics.modes import find_model_modes
from msign.inference.advice import about_means, stage_advice
from msign.inference.certificate import SHOWN, Certificate
from msign.inference.config import FitConfig
from msign.inference.files import FitFiles, describe_flows, network_like
from msign.inference.methods import Method, Stage
from msign.inference.posterior import Posterior
from msign.inference.predictive import Predictive
from msign.inference.simulate import simulate
from msign.inference.stage import StageState, initial_state
from msign.inference.watch import Watch, clock, most_left
from msign.interrupts import StopAtCheckpoint
from msign.network import MsIGN
from msign.problems.failures import SimulationError
from msign.problems.inverse import InverseProblem
from msign.problems.simulator import Simulator
from msign.problems.workers import Workers
from msign.weights import ess_fraction


class Run:
    """The changing parts of a fit: counts, records, files."""

    def __init__(
        self,
        problem: InverseProblem,
        budget: int,
        seed: int,
        out: str | os.PathLike[str] | None,
        resume: bool,
        progress: bool,
        config: FitConfig,
        workers: Workers | None = None,
    ):
        self.problem, self.seed, self.config = problem, seed, config
        self.simulator = Simulator(problem, budget, workers)
        alone = config.single_stage or config.kind.needs_one_stage
        self.scales = [problem.scales] if alone else list(range(1, problem.scales + 1))
        self.key = jr.key(seed)
        self.networks: dict[int, MsIGN] = {}
        self.certificates: dict[int, Certificate] = {}
        self.records: list[dict[str, Any]] = []
        self.stages: list[dict[str, Any]] = []
        self.seconds_before, self.began = 0.0, time.monotonic()
        self.certificate_size = config.certificate_size(budget)
        self.round_size = config.round_of(budget // problem.scales)
        self.running: tuple[Stage, MsIGN] | None = None
        config.method_for(problem, 1)  # refuses what cannot work, before any work
        self._check_budget(budget)
        self.files = None if out is None else self._opened(FitFiles(out), budget, resume)
        self.watch = Watch(
            progress and writes_files(), len(self.scales), self.simulator, lambda: self.seconds
        )
        self.stop = StopAtCheckpoint(self.files is not None, self.watch.line)

    def __enter__(self) -> "Run":
        keep_compiled_programs()
        simulator, files = self.simulator, self.files
        self.watch.__enter__()
        self.stop.__enter__()
        try:
            self.doing("trying the problem")
            if files is None or not (files.finished_stages() or files.checkpoint.exists()):
                simulator.check(scales=self.scales)
            if len(self.scales) > 1:
                simulator.prepare()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        self.stop.__exit__()
        self.watch.__exit__()
        if isinstance(error, SimulationError) and self.files is not None:
            with archive.atomic_write(self.files.path / "failed_field.npy") as file:
                np.save(file, error.field)

    def _check_budget(self, budget: int) -> None:
        """Refuse a budget with which no stage could do anything, before any work."""
        smallest = budget
        while (needed := self._least(smallest)) > smallest:  # it grows with certificate and rounds
            smallest = needed
        if budget < smallest:
            certificate = self.config.certificate_size(smallest)
            stage = self._least_of_stage(smallest)
            looked = smallest - certificate - len(self.scales) * stage
            raise ValueError(
                f"budget must be at least {smallest} (for {len(self.scales)} stages of at least "
                f"{stage} simulations, {certificate} for the certificate and {looked} to look at "
                f"the problem), got {budget}"
            )

    def _least(self, budget: int) -> int:
        """Simulations that a run needs with the rounds and the certificate of a budget."""
        problem, config = self.problem, self.config
        stage = self._least_of_stage(budget)
        looked = 2 * len(self.scales) + (6 if problem.vjp is not None else 0)
        looked += problem.inflate * problem.scales * (len(self.scales) > 1)
        return looked + config.certificate_size(budget) + len(self.scales) * stage

    def _least_of_stage(self, budget: int) -> int:
        """Simulations that any stage needs: its start and one round."""
        start = self.config.kind.least_allowance(self.problem.dim)
        return self.config.round_of(budget // self.problem.scales) + start

    def _opened(self, files: FitFiles, budget: int, resume: bool) -> FitFiles:
        what = {
            "problem": self.problem.name,
            "dimension": self.problem.dim,
            "budget": budget,
            "seed": self.seed,
            "fit": self.config.to_json(),
        }
        started = files.started
        wait("directory opened")
        if not started:
            if resume:
                raise ValueError(f"out must hold a run to resume, got {files.path}")
            files.save_prior(self.problem)
            files.write_json("config.json", what)
        elif not resume:
            raise ValueError(
                "out holds a run already: go on with it (--resume), delete it (--overwrite) or "
                f"choose another, got {files.path}"
            )
        else:
            files.check_same(what)
        return files

    # --- stages -----------------------------------------------------------------------------------

    def share(self, scale: int) -> tuple[int, int]:
        """The count of simulations that a stage must not exceed, and the size of its rounds.

        What a stage does not use is for those after it.
        """
        left = sum(1 for s in self.scales if s >= scale)
        room, least = self.simulator.left - self.certificate_size, self.round_size
        least += self.config.kind.least_allowance(self.problem.dim)
        share = self.config.share_of(room, left, least)
        size = self.round_size
        if scale == self.problem.scales:
            # Tails of weights are estimated from as many fields as those of the certificate.
            size = max(size, self.config.round_of(share, self.certificate_size))
        return self.simulator.nfs + share, size

    def stage(self, network: MsIGN, scale: int, begin: int, limit: int, size: int) -> Stage:
        """The stage of a scale whose flow is at its start in the network."""
        config, start = self.config, network.variables(scale, self.config.train)
        finest = scale == self.problem.scales
        method = config.method_for(self.problem, start.size)
        before = self.stages[-1]["jeffreys"] if self.stages else 0.0
        return Stage(
            scale=scale,
            start=start,
            simulator=self.simulator,
            begin=begin,
            limit=limit,
            round_size=size,
            first_round=min(size, max(self.round_size, method.fewest_fields(start.size))),
            rounds=config.rounds,
            learning_rate=config.kind.learning_rate(network, scale, config.train),
            bridge_ess=config.bridge_ess,
            tolerance=config.tolerance if finest else config.stepping_stone(before),
            key=jr.fold_in(self.key, scale),
        )

    def method(self, stage: Stage) -> Method:
        """How a stage learns."""
        return self.config.method_for(self.problem, stage.start.size)

    def begun(self, network: MsIGN, stage: Stage) -> tuple[MsIGN, Stage, StageState]:
        """A stage before its first round."""
        self.running = stage, network
        return network, stage, initial_state(stage, self.method(stage))

    def resumed(self, network: MsIGN, scale: int) -> tuple[MsIGN, Stage, StageState] | None:
        """The stage as its checkpoint has it; None if there is none.

        One of another scale was left by a run that ended just as that stage had been saved.
        """
        saved = self.files.read_checkpoint() if self.files is not None else None
        if saved is None or self.files is None or saved["scale"] != scale:
            return None
        network = network_like(network, self.config.kind, saved["flows"])
        stage = self.stage(network, scale, **saved["stage"])
        state = initial_state(stage, self.method(stage), saved["assessed"])
        state = _small(state, saved["proposals"])
        state, network = self.files.load_checkpoint(state, network)
        stage = stage._replace(start=network.variables(scale, self.config.train))
        self._restore(saved)
        self.at_stage(scale)
        self.running = stage, network
        return network, stage, _whole(state, stage)

    def after_round(self, state: StageState, record: dict[str, Any]) -> None:
        """Keep a round's record, show it, and write a checkpoint."""
        assert self.running is not None
        stage, network = self.running
        self.records.append({**record, "seconds": round(self.seconds, 3)})
        self._show(stage, state, record)
        if self.files is not None and state.round % self.config.checkpoint_rounds == 0:
            small = _small(state)
            description = {
                "scale": stage.scale,
                "flows": describe_flows(network, self.config.kind),
                "stage": {"begin": stage.begin, "limit": stage.limit, "size": stage.round_size},
                "assessed": len(state.log_weights),
                "proposals": state.memory.counts,
                **self._progress(),
            }
            self.files.save_checkpoint(small, network, description)
            self.files.write_lines("stages.jsonl", self.records)
            self.stop.checkpoint_written()

    def finish_stage(self, network: MsIGN, stage: Stage, state: StageState) -> None:
        """Keep what a stage has learned, and how good it is by held-out fields."""
        self.networks[stage.scale] = network.cut(stage.scale)
        known = state.memory.log_evidence() or (None, None)
        self.certificates[stage.scale] = Certificate(state.log_weights, state.shown, *known)
        self.stages.append(self._described(stage, state))
        self._report_stage(stage)
        if self.files is not None:
            progress = {
                "certificate": self.certificates[stage.scale].to_json(),
                **self._progress(),
            }
            self.files.save_stage(network, stage.scale, self.config.kind, progress)
            wait("stage saved")
            self.stop.checkpoint_written()

    def is_finished(self, scale: int) -> bool:
        """Whether an interrupted run has finished this stage already."""
        return self.files is not None and scale in self.files.finished_stages()

    def load(self, network: MsIGN, scale: int) -> MsIGN:
        """The network as a finished stage left it."""
        assert self.files is not None
        network, saved = self.files.load_stage(scale, network, self.config.kind)
        self.networks[scale] = network.cut(scale)
        self.certificates[scale] = Certificate.from_json(saved["certificate"])
        self._restore(saved)
        return network

    def certify(self, network: MsIGN) -> Posterior:
        """Simulate fresh fields of the finished model: its certificate."""
        scale, n = self.problem.scales, self.certificate_size
        self.stop.release()
        self.watch.left = ""
        self.doing("certifying")
        drawn = simulate(
            self.simulator, network.variables(scale), scale, jr.fold_in(self.key, 0), n
        )
        known = self.certificates[scale]
        self.certificates[scale] = Certificate(
            drawn.log_weights, drawn.s[:, :SHOWN], known.log_evidence, known.log_evidence_stderr
        )
        posterior = Posterior(
            self.problem,
            self.networks,
            self.certificates,
            self.config,
            seed=self.seed,
            records=self.records,
            stages=self.stages,
            nfs=self.simulator.nfs,
            budget=self.simulator.budget,
            failures=self.simulator.failures,
            seconds=self.seconds,
        )
        posterior.predictive = Predictive.of(self.problem, drawn, self.seed)
        if self.files is not None:
            posterior.save(self.files.path)
            self.files.write_lines("stages.jsonl", self.records)
        return posterior

    # --- what a person sees -----------------------------------------------------------------------

    def doing(self, activity: str) -> None:
        """Show what begins."""
        self.watch.activity = activity

    def at_stage(self, scale: int) -> None:
        """Show the stage that begins."""
        self.watch.place = f"stage {scale}/{self.scales[-1]}"
        self.watch.figures = self.watch.left = ""
        self.watch.done(self.scales.index(scale))
        self.doing("looking for a start")

    def _show(self, stage: Stage, state: StageState, record: dict[str, Any]) -> None:
        """Show what a round has reached."""
        share = (self.simulator.nfs - stage.begin) / max(1, stage.limit - stage.begin)
        self.watch.done(self.scales.index(stage.scale) + min(1.0, share))
        self.watch.figures = f"J {record['jeffreys']:.3g}"
        if stage.scale != self.scales[-1]:
            return
        left = most_left(
            self._rounds(stage), stage.rounds, stage.limit, self.certificate_size / stage.round_size
        )
        if left is not None and not state.done:
            self.watch.left = f"left < {clock(left)}"

    def _report_stage(self, stage: Stage) -> None:
        """One line of the stage that has ended, and advice."""
        last = self.stages[-1]
        self.watch.line(
            f"stage {last['scale']}/{self.scales[-1]} done  J {last['jeffreys']:.3g}  "
            f"ESS {last['ess_fraction']:.3f}  {self.watch.used()}"
        )
        means = about_means(stage, self._rounds(stage)) if self._has_advice(stage) else None
        for text in (*last["advice"], *([means] if means else [])):
            self.watch.line(f"advice: {text}")

    def _has_advice(self, stage: Stage) -> bool:
        """After the first stage of several, where it can still help."""
        return stage.scale == self.scales[0] and len(self.scales) > 1

    def _rounds(self, stage: Stage) -> list[dict[str, Any]]:
        return [r for r in self.records if r["scale"] == stage.scale]

    # --- records ----------------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Time used, that of interrupted processes included."""
        return self.seconds_before + time.monotonic() - self.began

    def _described(self, stage: Stage, state: StageState) -> dict[str, Any]:
        """What a finished stage did, and how good its model is by held-out fields."""
        first = next(r for r in self.records if r["scale"] == stage.scale)
        certificate = self.certificates[stage.scale]
        modes = find_model_modes(state.best, state.shown)
        weighted = modes.reweighted(state.log_weights)
        inflation = self.simulator.relative_inflation(stage.scale)
        advice = []
        if self._has_advice(stage):
            advice = stage_advice(self.problem, self.config, self._rounds(stage), inflation)
        return {
            "scale": stage.scale,
            "dimension": stage.start.dim,
            "variables": stage.start.size,
            "inflation": inflation,
            "nfs": self.simulator.nfs - stage.begin,
            "rounds": state.round,
            "seconds": self.seconds - sum(s["seconds"] for s in self.stages),
            "jeffreys_start": first["jeffreys"],
            "ess_fraction_start": first["ess_fraction"],
            "jeffreys": state.divergence,
            "ess_fraction": ess_fraction(state.log_weights),
            "khat": state.khat,
            "log_evidence": certificate.log_evidence,
            "log_evidence_stderr": certificate.log_evidence_stderr,
            "lost_evidence": certificate.report().lost,
            "mode_fractions": [float(f) for f in modes.fractions],
            "mode_fractions_stderr": [float(f) for f in modes.stderr],
            "mode_fractions_weighted": [float(f) for f in weighted.fractions],
            "advice": advice,
        }

    def _progress(self) -> dict[str, Any]:
        return {
            "counts": self.simulator.count.saved(),
            "seconds": self.seconds,
            "records": self.records,
            "stages": self.stages,
        }

    def _restore(self, saved: dict[str, Any]) -> None:
        self.simulator.count.restore(saved["counts"])
        self.records, self.stages = saved["records"], saved["stages"]
        self.seconds_before, self.began = saved["seconds"], time.monotonic()


def _small(state: StageState, proposals: Sequence[int] = ()) -> StageState:
    """The state with its models' flows alone, without their place in the field, for files.

    With room for so many fields of each of the `proposals` in the memory of its method.
    """
    if proposals:
        memory = state.memory.shaped(proposals, state.model)
        state = dataclasses.replace(state, memory=memory)
    models = state.model.alone, state.best.alone
    return eqx.tree_at(lambda t: (t.model, t.best), state, models)


def _whole(state: StageState, stage: Stage) -> StageState:
    """Inverse of `_small`."""
    models = tuple(stage.start.with_flow(m.flow) for m in (state.model, state.best))
    return eqx.tree_at(lambda t: (t.model, t.best), state, models)
