"""Algorithm 1 of the paper: train the posterior coarse to fine, within a budget of simulations."""

import os
from typing import Any

import jax.random as jr

from msign import checks
from msign.devices import alone, together, writes_files
from msign.inference.config import FitConfig
from msign.inference.files import prior_network
from msign.inference.flows import Start
from msign.inference.methods import Stage
from msign.inference.posterior import Posterior
from msign.inference.run import Run
from msign.inference.stage import train_stage
from msign.network import MsIGN
from msign.problems.inverse import InverseProblem
from msign.problems.workers import opened


@together()
def fit(
    problem: InverseProblem,
    budget: float = 800_000,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: bool = True,
    config: FitConfig | None = None,
    report: bool = True,
    executor: Any = None,
) -> Posterior:
    """Learn the posterior of an inverse problem.

    Args:
        problem: What is to be inferred.
        budget: Forward simulations that may be used, a hard limit (the certificate included).
        seed: Same seed, same numbers.
        out: Directory for checkpoints, log and result; None keeps everything in memory. With it
            Ctrl-C stops after the next checkpoint, a second one at once.
        resume: Go on with the run in `out` where it was interrupted.
        progress: Show where it is and what it does: a bar on a terminal, one line per stage
            elsewhere, and advice after the first stage where there is any.
        config: Options of training.
        report: Whether to write figures and `report.html` to `out` as well.
        executor: Who evaluates a forward map that is not JAX code: a number of processes, the
            address of a Dask scheduler, a Dask client, or anything with `submit` or `map`; None:
            this process.

    Example:
        >>> import msign
        >>> problem = msign.problems.synthetic(size=4)
        >>> posterior = msign.fit(problem, budget=1000, config=msign.FitConfig(steps=50))
        >>> posterior.sample(10).shape
        (10, 4, 4)
    """
    budget = checks.count("budget", budget, 1)
    config = (FitConfig() if config is None else config).for_problem(problem)
    network = prior_network(problem, config)
    given = (problem, budget, checks.integer("seed", seed, 0), out, resume, progress, config)
    with opened(executor) as workers, Run(*given, workers) as run:
        for scale in run.scales:  # Algorithm 1, line 3
            if run.is_finished(scale):
                network = run.load(network, scale)
                continue
            network, stage, state = run.resumed(network, scale) or run.begun(
                *start_stage(run, network, scale)
            )
            method = run.method(stage)
            state = train_stage(stage, state, method, config, run.after_round, run.doing)
            network = network.with_variables(scale, state.best, config.train)
            if scale == problem.scales:
                network = finished(run, network)
            run.finish_stage(network, stage, state)
        posterior = run.certify(network)
    if out is not None and report and writes_files():
        from msign.report.run_page import write_report  # which stands above inference

        with alone():
            write_report(posterior, out)
    return posterior


def start_stage(run: Run, network: MsIGN, scale: int) -> tuple[MsIGN, Stage]:
    """Lines 4 and 5: F_l at its start, behind all that coarser stages learned, is q~_l."""
    config, simulator = run.config, run.simulator
    run.at_stage(scale)
    begin, limit, size = simulator.nfs, *run.share(scale)
    key = jr.fold_in(run.key, scale)
    least = config.kind.least_allowance(network.lattices[scale - 1].dim)
    allowance = max(0, min(max((limit - begin) // 3, least), limit - begin - size))
    options = config.train, config.tolerance
    given = Start(network, scale, simulator, allowance, *options, jr.fold_in(key, 10**6))
    network = network.with_flow(scale, config.kind.start(given))
    if scale == run.problem.scales:
        variables = network.variables(scale)
        limit -= config.kind.kept_to_finish(variables, run.problem, limit - begin)
    return network, run.stage(network, scale, begin, limit, size)


def finished(run: Run, network: MsIGN) -> MsIGN:
    """The finest flow with what closed forms can add to it, once it is trained."""
    scale, simulator = run.problem.scales, run.simulator
    run.doing("looking beyond")
    allowance = simulator.left - run.certificate_size
    key = jr.fold_in(jr.fold_in(run.key, scale), 10**6 + 2)
    options = run.config.train, run.config.tolerance
    given = Start(network, scale, simulator, allowance, *options, key)
    return network.with_flow(scale, run.config.kind.finish(given))
