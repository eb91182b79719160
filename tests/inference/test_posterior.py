"""The posterior as an object, for every kind of flow: its network, scales, ancestors, files."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from conformance import FLOWS
from helpers import identical, moved, refused, seeded
from inference.small import growing_problem, started
from msign import FitConfig, Posterior
from msign.inference.certificate import Certificate
from msign.problems import synthetic

pytestmark = pytest.mark.usefixtures("quick_compilation")
N = 5  # fields in every call, so that compiled code is shared


@functools.cache
def made(name: str) -> Posterior:
    """Of two scales, with flows as if they had been trained; the certificates are made up."""
    problem, kind = growing_problem(), FLOWS[name]
    network = started(problem, kind)
    # The coarse flow of the finished network differs from what its own stage left, as it does
    # where all flows are trained at every stage.
    coarse = network.cut(1)
    if name == "Glow":
        coarse = coarse.with_flow(1, moved(coarse.flows[0], 0.1))
    rng = np.random.default_rng(seeded(0))
    certificates = {
        s: Certificate(rng.normal(size=30) / s, rng.normal(size=(30, 2)), -1.0 / s, 0.1)
        for s in (1, 2)
    }
    stages = [{"scale": 1}, {"scale": 2}]
    return Posterior(
        problem,
        {1: coarse, 2: network},
        certificates,
        FitConfig(flow=kind),
        seed=0,
        records=[],
        stages=stages,
        nfs=1000,
        failures=0,
        seconds=1.0,
    )


@pytest.fixture(params=FLOWS)
def posterior(request):
    return made(request.param)


# --- one network ----------------------------------------------------------------------------------


def test_its_density_is_that_of_the_network(posterior):
    x, log_p = posterior.sample_and_log_prob(N, seeded(1))
    np.testing.assert_allclose(posterior.log_prob(x), log_p, rtol=0, atol=1e-8)
    np.testing.assert_allclose(posterior.network.log_prob(x), log_p, rtol=0, atol=1e-8)
    assert np.abs(log_p - posterior.prior.log_prob(jnp.asarray(x))).max() > 0.1
    np.testing.assert_array_equal(posterior.sample(N, seeded(1)), x)
    assert not np.array_equal(posterior.sample(N, seeded(2)), x)


def test_a_sample_of_a_coarse_scale_is_the_ancestor_of_the_fine_one(posterior):
    """The field that all finer layers refine: what the first part of the noise alone makes."""
    network = posterior.network
    fine, coarse = posterior.sample(N, seeded(3)), posterior.sample(N, seeded(3), scale=1)
    assert coarse.shape == (N, 4)
    z = network.encode(fine)
    assert [entry.shape for entry in z] == [(N, 4), (N, 4)]
    np.testing.assert_allclose(network.decode(z), fine, rtol=0, atol=1e-8)
    np.testing.assert_allclose(network.decode(z[:1]), coarse, rtol=0, atol=1e-8)
    # Without the last flow pooling gives it back.
    refined = network.decode(z, upto=1)
    np.testing.assert_allclose(network.lattices[1].pool(refined), coarse, rtol=0, atol=1e-8)
    assert np.abs(network.lattices[1].pool(jnp.asarray(fine)) - coarse).max() > 1e-4

    # Both are ends of what the last flow does.
    (_, tail), (head, last) = network.snapshots(z, per_scale=2)
    for shown, expected in ((tail, coarse), (head, refined), (last, fine)):
        np.testing.assert_allclose(shown, expected, rtol=0, atol=1e-8)


# --- stages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Informed", "Glow"])
def test_a_stage_is_the_model_that_it_left(name):
    """Of informed flows also what the finished network draws there; joint training changes it."""
    posterior = made(name)
    stage = posterior.stage(1)
    x, log_p = stage.sample_and_log_prob(N, seeded(1))
    assert x.shape == (N, 4)
    np.testing.assert_allclose(stage.log_prob(x), log_p, rtol=0, atol=1e-8)
    ancestors = posterior.sample(N, seeded(1), scale=1)
    assert np.allclose(ancestors, x, rtol=0, atol=1e-10) == (name == "Informed")
    assert [s["scale"] for s in stage.summary()["stages"]] == [1]
    assert stage.certificate().ess_fraction < posterior.certificate().ess_fraction


def test_stages_keep_their_certificates():
    posterior = made("Informed")
    assert posterior.stage(2) is posterior
    back = posterior.stage(1).stage(2)
    assert back.certificate() == posterior.certificate()
    assert back.summary() == posterior.summary()
    assert posterior.stage(1).scales == [1] and back.scales == [1, 2]
    with refused("scale must be one of [1, 2], got 3"):
        posterior.stage(3)
    with refused("scale must be from 1 to 2, got 3"):
        posterior.sample(3, scale=3)


# --- files ----------------------------------------------------------------------------------------


def test_written_and_read_again(posterior, tmp_path):
    posterior.save(tmp_path)
    again = Posterior.load(tmp_path, posterior.problem)
    for scale in (1, 2):
        assert identical(again.networks[scale], posterior.networks[scale])
    assert again.config == posterior.config
    assert again.summary() == posterior.summary()
    assert again.stage(1).summary() == posterior.stage(1).summary()


def test_a_stage_is_written_and_read_again_alone(tmp_path):
    stage = made("Informed").stage(1)
    stage.save(tmp_path)
    again = Posterior.load(tmp_path)
    assert again.scale == 1 and again.scales == [1]
    assert again.certificate() == stage.certificate()
    assert again.summary() == stage.summary()
    assert identical(again.network, stage.network)
    np.testing.assert_array_equal(again.sample(N), stage.sample(N))


def test_reading_runs_no_code_from_the_directory(tmp_path, monkeypatch):
    made("Informed").save(tmp_path)

    def unpickled(*_, **__):
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(f"pickle.{name}", unpickled)
    Posterior.load(tmp_path)


def test_without_its_problem_it_does_not_simulate(tmp_path):
    made("Informed").save(tmp_path)
    blind = Posterior.load(tmp_path)
    with pytest.raises(ValueError, match="problem must be given"):
        blind.resample(3)
    with refused("problem must be that of the run: problem 'growing', got 'synthetic'"):
        Posterior.load(tmp_path, synthetic(8))


def test_another_posterior_does_not_hide_behind_the_files_of_the_first(tmp_path):
    """It is refused, or replaces them; it must not be mixed with them."""
    first = made("Informed")
    first.save(tmp_path)
    changed = first.network.with_flow(2, moved(first.network.flows[1], 0.1))
    networks = {1: first.networks[1], 2: changed}
    options = {n: getattr(first, n) for n in ("records", "stages", "nfs", "failures", "seconds")}
    other = Posterior(first.problem, networks, first.certificates, first.config, seed=1, **options)
    try:
        other.save(tmp_path)
    except ValueError:
        return
    np.testing.assert_array_equal(Posterior.load(tmp_path).sample(N), other.sample(N))
