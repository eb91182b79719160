"""Sequential Monte Carlo from poor flows to the posterior, against what is known exactly."""

import functools
import json
import resource

import jax.numpy as jnp
import numpy as np
import pytest
from flowjax.bijections import Scale
from typer.testing import CliRunner

from conformance import FLOWS
from helpers import Killed, killed_after, refused, seeded
from inference.small import (
    ROW,
    gaussian_posterior,
    linear_problem,
    ring_problem,
    started,
    with_data,
)
from msign import SMC, FitConfig, InverseProblem, LaplacePrior, Posterior, Simulator
from msign.cli import app
from msign.inference.certificate import Certificate
from msign.inference.files import prior_network
from msign.inference.moves import Frame
from msign.inference.refine import Refined, RefineFiles, family_stderr
from msign.inference.smc import Sampler, bridged, temperatures_left
from msign.network import MsIGN
from msign.problems import synthetic
from msign.problems.counting import BudgetExceeded
from msign.weights import ess_fraction, pareto_khat

pytestmark = pytest.mark.usefixtures("quick_compilation")


def posterior_of(problem: InverseProblem, network: MsIGN | None = None) -> Posterior:
    """With an untrained network, the prior, unless one is given."""
    network = prior_network(problem, FitConfig()) if network is None else network
    rng = np.random.default_rng(seeded(0))
    made_up = Certificate(rng.normal(size=30), rng.normal(size=(30, 2)))
    return Posterior(
        problem,
        {problem.scales: network},
        {problem.scales: made_up},
        FitConfig(flow=FLOWS["Informed"]),
        seed=0,
        records=[],
        stages=[],
        nfs=0,
        failures=0,
        seconds=0.0,
    )


@functools.cache
def two_modes() -> InverseProblem:
    """On 8 x 8 cells, modes of unequal mass, and noise so small that prior draws hardly count."""
    return synthetic(8, gamma=0.05, tilt=0.1, inflate=0)


def gaussian_evidence(problem: InverseProblem) -> float:
    """Exact log evidence of a linear problem of one scale."""
    d, simulator = problem.dim, Simulator(problem)
    at_zero = simulator.evaluate(np.zeros((1, d)), 1).features
    slope = (at_zero - simulator.evaluate(np.eye(d), 1).features).T
    covariance = np.eye(len(slope)) + slope @ slope.T
    away = np.linalg.solve(covariance, at_zero[0])
    return float(-0.5 * at_zero[0] @ away - 0.5 * np.linalg.slogdet(covariance)[1])


# --- against exact posteriors ---------------------------------------------------------------------


@pytest.mark.parametrize("moves", ["pcn", "langevin"])
def test_two_modes_from_the_prior(moves):
    """Their masses, the evidence, and the coordinate between them."""
    problem, posterior = two_modes(), posterior_of(two_modes())
    assert ess_fraction(posterior.importance(2000, seeded(1))[1]) < 0.05
    options = SMC(moves, particles=400, sweeps=20)
    found = posterior.refine(400, 200_000, seeded(2), options)
    reference = problem.reference
    assert abs(found.log_evidence - reference.log_evidence()) < 3 * found.log_evidence_stderr
    assert found.log_evidence_stderr < 0.3
    t = reference.critical_values(np.asarray(problem.prior.whiten(jnp.asarray(found.fields))))
    right = t > -0.05
    assert abs(right.mean() - reference.mode_fractions()[1]) < 3 * found.stderr(right)
    np.testing.assert_allclose(found.mode_fractions[-1], right.mean(), atol=0.1)
    assert len(found.mode_fractions) == 2 and sum(found.mode_fractions) == pytest.approx(1)
    assert found.distinct > 50 and found.acceptance > 0.1


@pytest.mark.parametrize("moves", ["pcn", "langevin"])
def test_moments_of_a_gaussian_posterior(moves):
    """Data that determine four directions of sixteen sharply; from the prior."""
    prior = LaplacePrior((16,), alpha=0.2, beta=2.0)
    problem = linear_problem(prior, 4, noise=0.02, scales=1)
    mean, covariance = gaussian_posterior(problem, 1)
    found = posterior_of(problem).refine(800, 200_000, seeded(3), SMC(moves=moves))
    u = np.asarray(prior.whiten(jnp.asarray(found.fields)))
    assert np.all(np.abs(u.mean(0) - mean) < 5 * found.stderr(u))
    squares = (u - mean) ** 2
    assert np.all(np.abs(squares.mean(0) - np.diag(covariance)) < 5 * found.stderr(squares))
    # Along what the data say, where the prior is wrong by far.
    stiff = np.linalg.eigh(covariance)[1][:, 0]
    along = ((u - mean) @ stiff) ** 2
    assert abs(along.mean() - stiff @ covariance @ stiff) < 4 * found.stderr(along)
    error = found.log_evidence - gaussian_evidence(problem)
    assert abs(error) < 3 * found.log_evidence_stderr


def deviations_of(posterior: Posterior, runs: int, options: SMC) -> np.ndarray:
    """Of the log evidence and of means from the exact ones, in stated standard errors.

    Of a linear problem of one scale, `(runs, 1 + d)`.
    """
    problem = posterior.problem
    exact, mean = gaussian_evidence(problem), gaussian_posterior(problem, 1)[0]
    found = []
    for seed in range(runs):
        run = posterior.refine(200, 50_000, seeded(100 + seed), options, progress=False)
        u = np.asarray(problem.prior.whiten(jnp.asarray(run.fields)))
        error = (run.log_evidence - exact) / run.log_evidence_stderr
        found.append([error, *(u.mean(0) - mean) / run.stderr(u)])
    return np.array(found)


def far_data() -> InverseProblem:
    """Four cells, data of a field at three standard deviations of the prior, small noise."""
    problem = linear_problem(ROW, 2, noise=0.05, scales=1)
    u = 1.6 * np.random.default_rng(seeded(17)).choice([-1.0, 1.0], size=(1, 4))
    field = ROW.unwhiten(jnp.asarray(u))
    return with_data(problem, np.asarray(problem.forward(field))[0])


REPEATED = {
    "prior": lambda: posterior_of(linear_problem(ROW, 2, noise=0.05, scales=1)),
    "prior, far from the data": lambda: posterior_of(far_data()),
    "good": lambda: narrow_flow(linear_problem(ROW, 1, noise=5.0, scales=1), 0.95),
}


@pytest.mark.parametrize("flow", REPEATED)
def test_standard_errors_are_those_of_repeated_runs(flow):
    """Of the evidence and of means: what families say, and how runs differ.

    With data far from the prior particles have a long way to go: moves that take their size from
    too narrow a cloud leave them behind, in all families alike. With a good flow every draw keeps
    its one descendant, so that families differ in nothing; the evidence has an error nevertheless.
    """
    deviations = deviations_of(REPEATED[flow](), 40, SMC("pcn", particles=200))
    size = np.sqrt(np.mean(np.square(deviations), 0))
    assert np.all(size > 0.5) and np.all(size < 1.6), size
    assert np.abs(deviations[:, 0]).max() < 5  # no run for itself is misled


def test_large_moves_reach_the_tails_of_a_density_of_which_few_draws_are_known():
    """A reference narrower than the density would take forever to fill them."""
    rng, m, n = np.random.default_rng(seeded(18)), 10, 100
    for _ in range(20):
        frame = Frame.of(rng.normal(size=(n, m)), np.eye(m))
        assert np.linalg.svd(frame.root)[1].min() > 0.9


def test_evidence_from_both_sides_of_a_step():
    """Bennett's estimate between two Gaussians, some of the simulations having failed."""
    rng, n = np.random.default_rng(seeded(19)), 4000
    log_ratio = lambda x: -0.5 * 4 * (x - 1) ** 2 + 0.5 * x**2  # noqa: E731
    before, after = log_ratio(rng.normal(size=n)), log_ratio(1 + 0.5 * rng.normal(size=n))
    assert abs(bridged(before, after) - np.log(0.5)) < 4 * 1.5 / np.sqrt(n)
    failed = np.append(before, np.full(n, -np.inf))
    found = bridged(failed, np.concatenate([after, after]))
    assert abs(found - np.log(0.25)) < 4 * 1.5 / np.sqrt(n)


def narrow_flow(problem: InverseProblem, width: float) -> Posterior:
    """The prior made so much narrower in all directions."""
    network = prior_network(problem, FitConfig())
    shape = problem.priors[0].lattice.field_shape
    return posterior_of(problem, network.with_flow(1, Scale(jnp.full(shape, width))))


@pytest.mark.parametrize("width", [0.2, 1.0])
def test_a_flow_that_is_far_too_narrow_is_told_by_its_weights(width):
    """What families cannot see: their errors are said to be too small, and only then."""
    posterior = narrow_flow(linear_problem(ROW, 1, noise=1.0, scales=1), width)
    found = posterior.refine(200, 50_000, seeded(20), SMC("pcn", particles=200))
    if width < 1:
        assert found.tail > 3 and found.verdict.startswith("ROUGH")
        assert "far out of the flow" in found.verdict and "ess=0.8" in found.verdict
    else:
        assert found.tail < 1 and found.verdict.startswith("GOOD")


def poor_flow(problem: InverseProblem, name: str) -> Posterior:
    """A flow moved at random off its start, as far as it still reaches all of the posterior."""
    for by in (0.3, 0.15, 0.07, 0.03, 0.01):
        posterior = posterior_of(problem, started(problem, FLOWS[name], by=by))
        log_weights = posterior.importance(4000, seeded(4))[1]
        if pareto_khat(log_weights) < 0.5:
            break
    assert ess_fraction(log_weights) < 0.9  # it is poor
    return posterior


@pytest.mark.parametrize(
    ("name", "moves"), [("Informed", "pcn"), ("Informed", "langevin"), ("Glow", "langevin")]
)
def test_every_flow_leads_to_the_same_posterior(name, moves):
    """Poor proposals of different kinds."""
    problem = linear_problem(LaplacePrior((8,), alpha=0.2, beta=2.0), 2, noise=0.1, scales=1)
    posterior = poor_flow(problem, name)
    found = posterior.refine(200, 100_000, seeded(5), SMC(moves=moves, particles=400))
    assert abs(found.log_evidence - gaussian_evidence(problem)) < 3 * found.log_evidence_stderr
    mean, u = gaussian_posterior(problem, 1)[0], problem.prior.whiten(jnp.asarray(found.fields))
    assert np.all(np.abs(np.mean(u, 0) - mean) < 5 * found.stderr(u))


def test_a_mode_that_the_flow_has_lost_is_told_by_the_evidence():
    """The particles know nothing of it, but the fields of training do."""
    posterior = posterior_of(two_modes())
    exact = two_modes().reference.log_evidence()
    kept = posterior.certificates[3]._replace(log_evidence=exact + 1, log_evidence_stderr=0.01)
    posterior.certificates[3] = kept
    found = posterior.refine(50, 20_000, seeded(16), SMC("pcn", particles=200))
    assert found.lost == pytest.approx(exact + 1 - found.log_evidence)
    assert found.verdict.startswith("NOT RELIABLE") and "lost a mode" in found.verdict


def test_a_coarse_stage_is_refined_to_its_own_posterior():
    problem = two_modes()
    network = prior_network(problem, FitConfig())
    coarse = posterior_of(problem, network.cut(2))
    coarse = Posterior(
        problem, {2: network.cut(2)}, {2: coarse.certificates[3]}, coarse.config,
        seed=0, records=[], stages=[], nfs=0, failures=0, seconds=0.0,
    )  # fmt: skip
    found = coarse.refine(300, 50_000, seeded(6))
    assert found.fields.shape == (300, 4, 4)
    exact = problem.reference.log_evidence(2)
    assert abs(found.log_evidence - exact) < 3 * found.log_evidence_stderr


# --- simulations of any kind ----------------------------------------------------------------------


class Ring:
    """Not JAX code, and it counts how often it is called for a field."""

    def __init__(self, fails: float = np.inf):
        self.fields, self.fails = 0, fails

    def __call__(self, x):
        if not isinstance(x, np.ndarray):
            raise TypeError("NumPy alone")
        self.fields += len(x)
        a = x @ np.array([1.0, 1, 1, 1])
        b = x @ np.array([1.0, 1, -1, -1])
        observed = np.stack([a**2 + b, b - 0.3 * a * b], -1)
        observed[np.abs(x[:, 0]) > self.fails] = np.nan
        return observed


def test_a_numpy_forward_map_without_derivative():
    forward = Ring()
    problem = ring_problem(forward=forward)
    before = forward.fields
    found = posterior_of(problem).refine(100, 20_000, seeded(7), SMC(particles=200))
    assert forward.fields - before == found.nfs <= 20_000
    jax_found = posterior_of(ring_problem()).refine(100, 20_000, seeded(7), SMC(particles=200))
    error = np.hypot(found.log_evidence_stderr, jax_found.log_evidence_stderr)
    assert abs(found.log_evidence - jax_found.log_evidence) < 3 * error
    with refused("moves must not be 'langevin': the forward map has no derivative"):
        posterior_of(problem).refine(100, 20_000, 0, SMC(moves="langevin"))


def test_rejected_simulations_count_as_impossible_fields():
    """Most of the prior's draws, and the evidence is lower by what they had of it."""
    problem = ring_problem(forward=Ring(fails=0.05), on_failure="reject")
    found = posterior_of(problem).refine(200, 60_000, seeded(8), SMC(particles=600))
    assert found.failures > 100
    assert np.all(np.abs(found.fields[:, 0]) <= 0.05)
    rng = np.random.default_rng(seeded(9))
    u = rng.normal(size=(200_000, 4))
    weights = np.exp(Simulator(problem).evaluate(u, 1).log_likelihood)
    exact, stderr = np.log(weights.mean()), weights.std() / weights.mean() / np.sqrt(len(weights))
    assert abs(found.log_evidence - exact) < 3 * np.hypot(found.log_evidence_stderr, stderr)
    nothing = ring_problem(forward=Ring(fails=-1.0), on_failure="reject")
    with pytest.raises(RuntimeError, match="no simulation of the flow's draws succeeded"):
        posterior_of(nothing).refine(10, 1000)


# --- the budget -----------------------------------------------------------------------------------


@pytest.mark.parametrize("moves", ["pcn", "langevin"])
def test_the_budget_is_never_exceeded(moves):
    posterior, each = posterior_of(two_modes()), 2 if moves == "langevin" else 1
    used = set()
    for budget in (200 * each, 777 * each, 2000 * each, 6000 * each):
        try:
            used.add(posterior.refine(50, budget, seeded(10), SMC(moves, particles=100)).nfs)
        except BudgetExceeded as error:
            assert str(budget) in str(error) and "ended at temperature 0." in str(error)
        assert all(nfs <= budget for nfs in used)
    assert used  # the largest is enough
    least = 2 * each * 100
    with refused(f"budget must be at least {least}", f"got {least - 1}"):
        posterior.refine(50, least - 1, 0, SMC(moves, particles=100))
    with refused("budget must be at least 600", "300 particles", "got 500"):
        posterior.refine(300, 500, method=SMC("pcn"))


def test_a_refinement_that_ended_early_goes_on_with_a_larger_budget(tmp_path):
    posterior, options = posterior_of(two_modes()), SMC("pcn", particles=100)
    with pytest.raises(BudgetExceeded, match="resume goes on from here"):
        posterior.refine(50, 350, seeded(11), options, tmp_path)
    assert not (tmp_path / "refined.json").exists()
    found = posterior.refine(50, 50_000, seeded(11), options, tmp_path, resume=True)
    assert found.temperatures[-1] == 1 and found.nfs > 350
    error = found.log_evidence - two_modes().reference.log_evidence()
    assert abs(error) < 3 * found.log_evidence_stderr


def test_temperatures_to_come():
    assert temperatures_left(0.5, 1.0) == 0
    assert temperatures_left(0.4, 0.6) == 2  # steps of 0.2, or of a factor 1.5
    assert temperatures_left(0.0, 0.01) == 7  # doubling
    assert temperatures_left(0.01, 0.1) == 1


# --- files ----------------------------------------------------------------------------------------


def assert_same(a: Refined, b: Refined) -> None:
    np.testing.assert_array_equal(a.fields, b.fields)
    np.testing.assert_array_equal(a.families, b.families)
    first, second = a.numbers(), b.numbers()
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


@pytest.mark.parametrize("moves", ["pcn", "langevin"])
def test_resumed_as_if_nothing_had_happened(moves, tmp_path):
    posterior, options = posterior_of(two_modes()), SMC(moves, particles=100)
    run = functools.partial(posterior.refine, 40, 20_000, seeded(12), options)
    whole = run()
    temperatures = len(whole.temperatures) - 1
    assert temperatures > 2
    for checkpoints in (1, 2, temperatures):
        out = tmp_path / str(checkpoints)
        with killed_after(RefineFiles, checkpoints):
            run(out)
        assert not (out / "refined.json").exists()
        assert_same(run(out, resume=True), whole)
    # Once more, from the finished files: nothing is simulated.
    assert_same(run(out, resume=True), whole)
    kept = json.loads((out / "refined.json").read_text())
    assert kept["log_evidence"] == whole.log_evidence and kept["nfs"] == whole.nfs
    with np.load(out / "fields.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["fields"], whole.fields)


def test_killed_before_the_first_checkpoint(tmp_path, monkeypatch):
    posterior, options = posterior_of(two_modes()), SMC("pcn", particles=100)
    run = functools.partial(posterior.refine, 40, 20_000, seeded(12), options, tmp_path)

    def dying(*_):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Sampler, "start", dying)
        run()
    assert_same(run(resume=True), posterior.refine(40, 20_000, seeded(12), options))


def test_a_disk_that_is_full_and_a_checkpoint_that_is_cut(tmp_path):
    """Each a clear error; what there was before is intact, and the refinement goes on from it."""
    posterior, options = posterior_of(two_modes()), SMC("pcn", particles=100)
    run = functools.partial(posterior.refine, 40, 20_000, seeded(12), options)
    with killed_after(RefineFiles, 1):
        run(tmp_path)
    checkpoint = tmp_path / "checkpoint.npz"
    whole = checkpoint.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # files of more than 1000 bytes
    try:
        with pytest.raises(OSError, match=r"checkpoint.npz could not be written.* intact"):
            run(tmp_path, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert checkpoint.read_bytes() == whole
    checkpoint.write_bytes(whole[: len(whole) // 2])
    with refused(checkpoint, "damaged", "delete it to go on from the flow"):
        run(tmp_path, resume=True)
    checkpoint.unlink()
    assert_same(run(tmp_path, resume=True), run())


def test_another_refinement_is_not_resumed(tmp_path):
    posterior, options = posterior_of(two_modes()), SMC("pcn", particles=100)
    with refused("out must hold a refinement to resume, got"):
        posterior.refine(40, 20_000, 0, options, tmp_path, resume=True)
    with killed_after(RefineFiles, 1):
        posterior.refine(40, 20_000, 0, options, tmp_path)
    with refused("out holds a refinement already"):
        posterior.refine(40, 20_000, 0, options, tmp_path)
    with refused("seed must be 0 to resume", "got 1"):
        posterior.refine(40, 20_000, 1, options, tmp_path, resume=True)
    with refused("smc.ess must be 0.5 to resume", "got 0.4"):
        posterior.refine(40, 20_000, 0, SMC("pcn", 100, ess=0.4), tmp_path, resume=True)
    other = posterior_of(synthetic(8, gamma=0.06, tilt=0.1))  # of the same name and size
    with refused("posterior must be", "to resume"):
        other.refine(40, 20_000, 0, options, tmp_path, resume=True)


# --- bad input ------------------------------------------------------------------------------------


def test_same_seed_same_numbers():
    posterior, options = posterior_of(ring_problem()), SMC(particles=100)
    first = posterior.refine(30, 5000, seeded(13), options)
    assert_same(posterior.refine(30, 5000, seeded(13), options), first)
    assert posterior.refine(30, 5000, seeded(14), options).log_evidence != first.log_evidence
    assert first.fields.shape == (30, 4) and first.particles == 100
    assert first.temperatures[0] == 0 and first.temperatures[-1] == 1
    assert np.all(np.diff(first.temperatures) > 0)


def test_bad_arguments(tmp_path):
    posterior = posterior_of(two_modes())
    for arguments, message in (
        ((0, 1000), "n must be at least 1, got 0"),
        ((10, 0), "budget must be at least 1, got 0"),
        ((10, 1000, -1), "seed must be at least 0, got -1"),
        ((10, 1000, 0, "hmc"), "method must be one of 'smc', got 'hmc'"),
    ):
        with refused(message):
            posterior.refine(*arguments)
    for options, message in (
        ({"moves": "hmc"}, "moves must be one of 'auto', 'pcn', 'langevin', got 'hmc'"),
        ({"ess": 1.0}, "ess must be in (0, 1), got 1.0"),
        ({"particles": 1}, "particles must be at least 2, got 1"),
        ({"sweeps": 0}, "sweeps must be at least 1, got 0"),
    ):
        with refused(message):
            SMC(**options)
    posterior.save(tmp_path)
    out = tmp_path / "refine"
    with refused("problem must be given to Posterior.load to simulate"):
        Posterior.load(tmp_path).refine(10, 1000, out=out)
    assert not out.exists()


def test_moves_are_chosen_by_what_is_known():
    """PCN where the flow knows its directions, or particles can tell all of them."""
    wide, narrow = (posterior_of(p).variables for p in (two_modes(), ring_problem()))
    flow = started(ring_problem(), FLOWS["Informed"]).variables()
    chosen = lambda v, p: SMC().settled(p, v, 50, 20_000)  # noqa: E731
    assert chosen(wide, two_modes()).moves == "langevin"
    assert chosen(wide, synthetic(8, black_box=True)).moves == "pcn"
    assert chosen(narrow, ring_problem()).moves == "pcn"
    assert chosen(flow, ring_problem()) == SMC("pcn", 200)


def test_errors_of_dependent_values():
    """Copies of one draw say no more than the draw."""
    values = np.random.default_rng(seeded(15)).normal(size=(50, 2))
    alone = family_stderr(values, np.arange(50))
    np.testing.assert_allclose(alone, values.std(0) / np.sqrt(50))
    copied = family_stderr(np.repeat(values, 3, axis=0), np.repeat(np.arange(50), 3))
    np.testing.assert_allclose(copied, alone)


# --- the command ----------------------------------------------------------------------------------


def test_msign_refine(tmp_path):
    runner, out = CliRunner(), str(tmp_path / "run")
    arguments = ["run", "synthetic", "--size", "2", "--tilt", "0.1", "--budget", "1000"]
    arguments += ["--flow", "glow", "--blocks", "1", "--hidden", "4"]  # that compiles soon
    result = runner.invoke(app, [*arguments, "--out", out])
    assert result.exit_code == 0, result.output
    command = ["refine", out, "-n", "50", "--budget", "5000", "--seed", "3"]
    result = runner.invoke(app, command)
    assert result.exit_code == 0, result.output
    kept = json.loads((tmp_path / "run" / "refine" / "refined.json").read_text())
    assert f"{kept['log_evidence']:.4f}" in result.output and kept["nfs"] <= 5000
    with np.load(tmp_path / "run" / "refine" / "fields.npz") as file:
        assert file["fields"].shape == (50, 2, 2)
    for more, message in (
        ([], "out holds a refinement already"),
        (["--resume", "--seed", "4"], "seed must be 3 to resume"),
        (["--overwrite", "--budget", "50"], "budget must be at least"),
        (["--problem", "elliptic"], "problem must be that of the run"),
    ):
        failed = runner.invoke(app, [*command, *more])
        assert failed.exit_code == 1 and message in failed.output.replace("\n", " ")
        assert "Traceback" not in failed.output
    # A directory that does not say which problem it is for, or names a file, runs no code.
    for origin in (None, {"problem": "evil.py:problem", "options": {}}):
        path = tmp_path / "run" / "problem.json"
        path.unlink() if origin is None else path.write_text(json.dumps(origin))
        failed = runner.invoke(app, [*command, "--overwrite"])
        assert failed.exit_code == 1 and "problem must be given" in failed.output
    named = ["--problem", "synthetic", "--size", "2", "--tilt", "0.1", "--overwrite"]
    again = runner.invoke(app, [*command, *named])
    assert again.exit_code == 0, again.output
    fresh = json.loads((tmp_path / "run" / "refine" / "refined.json").read_text())
    assert fresh["log_evidence"] == kept["log_evidence"]
