"""A posterior for other tools: ArviZ 0.x or 1.x, whichever is there, xarray, netCDF."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy import stats

from conformance import SMALL_INFORMED
from inference.small import ring_problem
from msign import FitConfig, InverseProblem, LaplacePrior, Posterior, fit
from msign.problems import likelihoods
from msign.problems.data_likelihood import Layout
from msign.weights import ess_fraction

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import arviz as az

pytestmark = pytest.mark.usefixtures("quick_compilation")

QUICK = FitConfig(flow=SMALL_INFORMED, round_size=100, rounds=1, steps=20)


def quick_fit(problem, out=None):
    return fit(problem, 1000, 2, out, progress=False, config=QUICK, report=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "ring"
    return quick_fit(ring_problem(), out), out


@pytest.fixture(scope="module")
def exported(run):
    return run[0].to_arviz(200, 3, simulate=True)


def flat(array):
    """Values by draw, chains one behind the other."""
    return np.asarray(array).reshape(-1, *array.shape[2:])


def read_again(data, path):
    data.to_netcdf(str(path))
    if az.__version__.startswith("0."):
        return az.from_netcdf(str(path))
    return xr.open_datatree(path, engine="h5netcdf")


GROUPS = {
    "posterior", "prior", "sample_stats", "observed_data", "log_likelihood",
    "posterior_predictive", "prior_predictive",
}  # fmt: skip


def names(data):
    return set(data.groups()) if az.__version__.startswith("0.") else set(data.children)


def test_samples_and_densities_are_those_of_the_posterior(run, exported):
    fields, log_prob = run[0].sample_and_log_prob(200, 3)
    assert exported.posterior["x"].dims == ("chain", "draw", "s1")
    assert exported.posterior["x"].shape == (4, 50, 4)
    np.testing.assert_array_equal(flat(exported.posterior["x"]), fields)
    np.testing.assert_array_equal(flat(exported.sample_stats["lp"]), log_prob)
    np.testing.assert_allclose(exported.posterior["s1"], [0.125, 0.375, 0.625, 0.875])
    np.testing.assert_array_equal(exported.observed_data["y"], run[0].problem.data)
    assert exported.posterior.attrs["nfs"] == run[0].nfs


def test_weights_and_likelihoods_are_those_of_simulations(run, exported):
    _, log_weights = run[0].importance(200, 3)
    ours = flat(exported.sample_stats["log_weight"])
    np.testing.assert_allclose(np.exp(ours).sum(), 1)
    np.testing.assert_allclose(ess_fraction(ours), ess_fraction(log_weights))
    np.testing.assert_allclose(ours - ours[0], log_weights - log_weights[0], atol=1e-8)
    problem = run[0].problem
    found = problem.log_likelihood(run[0].sample(200, 3))
    np.testing.assert_allclose(flat(exported.sample_stats["log_likelihood"]), found)
    # Of each observation, with the constant that noise_std leaves out.
    whole = flat(exported.log_likelihood["y"]).sum(1)
    constant = len(problem.data) * np.log(0.3 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(whole, found - constant)


def test_predictive_data_are_predictions_and_noise(run, exported):
    for name in ("posterior_predictive", "prior_predictive"):
        group = exported[name]
        noise = flat(group["y"]) - flat(group["predicted"])
        assert stats.kstest(noise.reshape(-1) / 0.3, "norm").pvalue > 1e-4
    fields = flat(exported.posterior["x"])
    predicted = run[0].problem.forward(jnp.asarray(fields))
    np.testing.assert_allclose(flat(exported.posterior_predictive["predicted"]), predicted)


def test_summary_has_no_warnings(exported):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = az.summary(exported)
    assert len(table) == 4


def test_netcdf_and_back(exported, tmp_path):
    again = read_again(exported, tmp_path / "all.nc")
    assert names(exported) == names(again) == GROUPS
    for name in GROUPS:
        for variable in exported[name].data_vars:
            a, b = exported[name][variable], again[name][variable]
            np.testing.assert_array_equal(a, b)
            assert a.dims == b.dims
            for axis in a.dims:
                np.testing.assert_array_equal(a[axis], b[axis])
        assert again[name].attrs["verdict"] == exported[name].attrs["verdict"]


def test_a_run_without_its_problem_simulates_nothing(run):
    loaded = Posterior.load(run[1])
    assert names(loaded.to_arviz(8)) == {"posterior", "prior", "sample_stats"}
    with pytest.raises(ValueError, match=r"problem must be given to Posterior\.load"):
        loaded.to_arviz(8, simulate=True)


@pytest.mark.parametrize(("n", "chains"), [(8, 2), (12, 3), (16, 4), (7, 1), (1, 1)])
def test_chains_keep_all_draws(n, chains, run):
    assert run[0].to_arviz(n).posterior["x"].shape == (chains, n // chains, 4)


def test_statistics_have_the_coordinates_of_the_lattice():
    prior = LaplacePrior((2, 4), alpha=0.5, beta=2.0)
    problem = InverseProblem(
        prior, lambda x: x[:, 0, :1], [1], likelihood=likelihoods.Poisson(), scales=1
    )
    posterior = quick_fit(problem)
    fields = posterior.sample(300, 1)
    mean, std = posterior.mean(300, 1), posterior.std(300, 1)
    quantiles = posterior.quantile([0.1, 0.9], 300, 1)
    np.testing.assert_array_equal(mean, fields.mean(0))
    np.testing.assert_array_equal(std, fields.std(0, ddof=1))
    np.testing.assert_array_equal(quantiles, np.quantile(fields, [0.1, 0.9], axis=0))
    assert mean.dims == std.dims == posterior.quantile(0.5, 300, 1).dims == ("s1", "s2")
    assert quantiles.dims == ("quantile", "s1", "s2")
    np.testing.assert_allclose(mean.sel(s1=0.75, s2=0.125), fields.mean(0)[1, 0])
    counts = posterior.to_arviz(40, simulate=True)
    predicted, drawn = (flat(counts.prior_predictive[k]) for k in ("predicted", "y"))
    assert np.all(drawn == np.round(drawn)) and np.all(drawn >= 0)
    one = stats.poisson(np.exp(flat(counts.posterior_predictive["predicted"]))).logpmf(1)
    np.testing.assert_allclose(flat(counts.log_likelihood["y"]), one, rtol=1e-6)
    assert predicted.shape == (40, 1)


@pytest.mark.parametrize(
    ("family", "exact"),
    [
        (likelihoods.StudentT(0.3, 5.0), stats.t(5.0, 0.4, 0.3)),
        (likelihoods.Laplace(0.3), stats.laplace(0.4, 0.3)),
        (likelihoods.Gaussian(std=0.3), stats.norm(0.4, 0.3)),
        (likelihoods.Poisson(), stats.poisson(np.exp(0.4))),
        (likelihoods.Binomial(7), stats.binom(7, 1 / (1 + np.exp(-0.4)))),
        (
            likelihoods.NegativeBinomial(0.5),
            stats.nbinom(2.0, 2 / (2 + np.exp(0.4))),
        ),
    ],
    ids=lambda v: type(v).__name__,
)
def test_data_are_drawn_from_the_likelihood(family, exact):
    n, data = 4000, np.array([1.0])
    bound = family.restricted(Layout((1,)))
    predicted = np.full((n, 1), 0.4)
    drawn = bound.draw(predicted, np.random.default_rng(0))[:, 0]
    spread = exact.std() / np.sqrt(n)
    assert abs(drawn.mean() - exact.mean()) < 5 * spread
    kurtosis = float(exact.stats("k"))
    assert abs(drawn.var() / exact.var() - 1) < 6 * np.sqrt((kurtosis + 2) / n)
    density = exact.logpmf if hasattr(exact.dist, "pmf") else exact.logpdf
    np.testing.assert_allclose(bound.log_prob_of_each(predicted[:1], data), [density(data)])
