"""The learned posterior: samples, densities, corrections, and an honest certificate."""

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax.random as jr
import numpy as np
import paramax
from jaxtyping import Array, ArrayLike

from msign import checks, passes
from msign.devices import gathered, spread
from msign.inference.certificate import Certificate
from msign.inference.config import FitConfig
from msign.inference.export import statistic, to_arviz
from msign.inference.known import Known
from msign.inference.predictive import Predictive
from msign.inference.refine import Refined, refine
from msign.inference.saved import load_posterior, save_posterior
from msign.inference.simulate import part_size
from msign.inference.smc import SMC
from msign.inference.summary import summary
from msign.network import MsIGN
from msign.noise import normal
from msign.priors import Prior
from msign.problems.inverse import InverseProblem
from msign.problems.simulator import Simulator
from msign.variables import PIECES, Variables, draw, in_pieces, log_ratio
from msign.weights import WeightReport, resampled, weight_report

if TYPE_CHECKING:
    import xarray as xr


class Corrected(NamedTuple):
    """Samples corrected by simulation.

    Attributes:
        fields: `(n, *field_shape)`.
        distinct: How many different draws they rest on.
        acceptance: Fraction of accepted proposals (Metropolis) or ESS fraction (resampling).
    """

    fields: np.ndarray
    distinct: int
    acceptance: float


class Draws(NamedTuple):
    """Independent samples of the model.

    Attributes:
        fields: `(n, *field_shape)`.
        log_prob: The model's log-density `(n,)`.
        log_ratio: The same minus the prior's `(n,)`.
    """

    fields: np.ndarray
    log_prob: np.ndarray
    log_ratio: np.ndarray


class Posterior:
    """What `fit` returns: a trained network and its certificate.

    Densities are exact and normalised, of fields on the lattice. Methods with a `seed` give the
    same numbers for the same seed.

    Attributes:
        problem: What was inferred.
        networks: The network that each stage left, by scale.
        certificates: Of each.
        scale: The scale of this posterior, the finest unless it comes from `stage`.
        stages: What each stage did.
        records: What each round did.
        nfs: Forward simulations used.
        budget: That were allowed; None where that is not known.
        predictive: What fields of the certificate predict of the data, where there are any.
        known: What is known of the answer.
    """

    def __init__(
        self,
        problem: InverseProblem,
        networks: dict[int, MsIGN],
        certificates: dict[int, Certificate],
        config: FitConfig,
        *,
        seed: int,
        records: list[dict[str, Any]],
        stages: list[dict[str, Any]],
        nfs: int,
        failures: int,
        seconds: float,
        budget: int | None = None,
        scale: int | None = None,
    ):
        self.problem, self.config, self.seed = problem, config, seed
        self.networks, self.certificates = networks, certificates
        self.records, self.stages = records, stages
        self.nfs, self.failures, self.seconds = nfs, failures, seconds
        self.budget = budget
        self.scale = max(networks) if scale is None else scale
        self.reference: dict[str, Any] = {}
        self.predictive: Predictive | None = None
        self.known = Known.of(problem)

    def __repr__(self) -> str:
        d = self.prior.lattice.dim
        return f"Posterior({self.problem.name}, scale {self.scale}, dimension {d})"

    @property
    def network(self) -> MsIGN:
        """The trained network, up to this posterior's scale."""
        return self.networks[self.scale]

    @property
    def variables(self) -> Variables:
        """The variables that the network moves, and their distribution."""
        return self.network.variables()

    @property
    def basis(self) -> np.ndarray | None:
        """Directions of whitened space `(d, m)` that the network moves; None: all."""
        basis = self.variables.basis
        return None if basis is None else np.asarray(paramax.unwrap(basis), np.float64)

    @property
    def prior(self) -> Prior:
        """Of the fields of this scale."""
        return self.problem.priors[self.scale - 1]

    @property
    def scales(self) -> list[int]:
        """Scales that were trained, up to this one."""
        return [scale for scale in sorted(self.networks) if scale <= self.scale]

    def stage(self, scale: int) -> "Posterior":
        """The posterior of a scale as its own stage left it, an approximation of q_l.

        Its certificate is the held-out one by which the stage chose it among its rounds.
        """
        if scale not in self.networks:
            raise ValueError(f"scale must be one of {sorted(self.networks)}, got {scale!r}")
        if scale == self.scale:
            return self
        found = Posterior(
            self.problem,
            self.networks,
            self.certificates,
            self.config,
            seed=self.seed,
            records=self.records,
            stages=self.stages,
            nfs=self.nfs,
            failures=self.failures,
            seconds=self.seconds,
            budget=self.budget,
            scale=scale,
        )
        if scale == max(self.networks):
            found.reference, found.predictive = self.reference, self.predictive
            found.known = self.known
        else:
            found.known = Known()  # fields of another lattice
        return found

    # --- samples and densities ------------------------------------------------------------------

    def sample(self, n: int, seed: int = 0, scale: int | None = None) -> np.ndarray:
        """N independent fields.

        With a coarser `scale`: their ancestors there, the fields that the rest of the network
        refines to the samples with the same seed.
        """
        scale = self.scale if scale is None else checks.integer("scale", scale, 1, self.scale)
        u, _ = self.whitened_samples(n, seed, scale)
        return _fields(self.problem.priors[scale - 1], u)

    def sample_and_log_prob(self, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """N independent fields and the model's log-density of each."""
        drawn = self.draws(n, seed)
        return drawn.fields, drawn.log_prob

    def draws(self, n: int, seed: int = 0) -> Draws:
        """N independent fields with what the model knows of each."""
        u, ratio = self.whitened_samples(n, seed)
        return Draws(_fields(self.prior, u), _log_prior(self.prior, u) + ratio, ratio)

    def whitened_samples(
        self, n: int, seed: int = 0, scale: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """N independent fields in whitened coordinates, and log p - log prior of each.

        They are drawn in pieces of one size, for which one program is compiled: the first fields
        of a seed are the same for every n.
        """
        checks.integer("n", n, 1)
        key = jr.fold_in(jr.key(checks.integer("seed", seed, 0)), 7)
        scale = self.scale if scale is None else scale
        network = self.network.cut(scale)
        variables = network.variables(scale)
        few = variables.basis is not None
        carried = network.turns() if few else network
        lengths = network.noise_sizes(scale)
        parts, size = [], min(PIECES[0], part_size(self.prior.lattice.dim))
        for i in range(-(-n // size)):
            own = jr.fold_in(key, i)
            z = tuple(spread(normal(jr.fold_in(own, l), (size, k))) for l, k in enumerate(lengths))
            u, ratio = (gathered(a) for a in passes.whitened(carried, z, scale))
            if few:
                u, _, ratio = draw(variables, u)
            parts.append((u, ratio.astype(np.float64)))
        fields, ratios = zip(*parts, strict=True)
        return np.concatenate(fields)[:n], np.concatenate(ratios)[:n]

    def log_prob(self, x: ArrayLike) -> np.ndarray:
        """The model's log-density of fields."""
        u = np.asarray(self.prior.whiten(self.prior.lattice.check("x", x)))
        return _log_prior(self.prior, u) + self.log_ratio(u)

    def log_ratio(self, u: ArrayLike) -> np.ndarray:
        """Log p - log prior of fields in whitened coordinates `(..., d)`."""
        u, basis = np.asarray(u), self.basis
        s = u.reshape(-1, u.shape[-1])
        s = s if basis is None else s @ basis
        return log_ratio(self.variables, s).reshape(u.shape[:-1]).astype(np.float64)

    # --- corrections by simulation ----------------------------------------------------------------

    def importance(self, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """N draws in whitened coordinates and their log-weights q/p; costs n simulations."""
        u, ratio = self.whitened_samples(n, seed)
        return u, Simulator(self.problem).evaluate(u, self.scale).log_likelihood - ratio

    def resample(self, n: int, seed: int = 0, draws: int | None = None) -> Corrected:
        """N fields of the posterior by importance resampling of `draws` (default 4 n) draws."""
        checks.integer("n", n, 1)
        u, log_weights = self.importance(draws or 4 * n, seed)
        index = resampled(log_weights, n, float(jr.uniform(jr.fold_in(jr.key(seed), 11))))
        fields = _fields(self.prior, u[index])
        report = weight_report(log_weights)
        return Corrected(fields, len(np.unique(index)), report.ess_fraction)

    def metropolis(self, n: int, seed: int = 0, burn_in: int = 100) -> Corrected:
        """N states of an exact chain: independence Metropolis with the model as proposal.

        Its invariant distribution is the posterior itself; costs n + burn_in simulations.
        """
        checks.integer("n", n, 1)
        total = n + checks.integer("burn_in", burn_in, 0)
        u, log_weights = self.importance(total, seed)
        uniform = np.asarray(jr.uniform(jr.fold_in(jr.key(seed), 13), (total,)), np.float64)
        state, index, accepted = 0, np.zeros(total, int), 0
        for i in range(1, total):
            if np.log(uniform[i]) < log_weights[i] - log_weights[state]:
                state, accepted = i, accepted + 1
            index[i] = state
        kept = index[total - n :]
        fields = _fields(self.prior, u[kept])
        return Corrected(fields, len(np.unique(kept)), accepted / max(total - 1, 1))

    def refine(
        self,
        n: float,
        budget: float,
        seed: int = 0,
        method: SMC | str = "smc",
        out: str | os.PathLike[str] | None = None,
        resume: bool = False,
        progress: bool = True,
        executor: Any = None,
    ) -> Refined:
        """N fields of the posterior by sequential Monte Carlo from the model, and the evidence.

        For models whose weights are worth too little (one sample in a hundred, say): particles
        go from the model to the posterior over as many temperatures as they need.

        Args:
            n: Number of fields.
            budget: Forward simulations, a hard limit. Where they end too early there is a
                `BudgetExceeded` and no result.
            seed: Of all random numbers.
            method: `"smc"`, or `SMC(...)` with its options.
            out: Directory for checkpoints and results.
            resume: Go on in `out`, with the same numbers, or with a larger budget.
            progress: Whether to show a bar, on a terminal.
            executor: Who evaluates the forward map, as of `fit`.
        """
        known, lost = self.certificates[self.scale].known_evidence, self._lost_before()
        given = (self.problem, self.variables, self.scale, n, budget, seed, method)
        return refine(*given, out, resume, progress, known, executor, lost)

    # --- certificate ---------------------------------------------------------------------------

    def certificate(self) -> WeightReport:
        """Quality of the model by fields that it was not trained on.

        What a coarser scale has lost is missing here, too, although neither these fields nor those
        of this scale's training, which began with that scale's model, can tell.
        """
        report = self.certificates[self.scale].report()
        return dataclasses.replace(report, lost=max(report.lost, self._lost_before()))

    def _lost_before(self) -> float:
        """The most log evidence that a coarser scale lacks for certain."""
        coarser = (self.certificates[l].report() for l in self.scales if l < self.scale)
        return max((report.lost for report in coarser if not report.poor), default=0.0)

    def summary(self) -> dict[str, Any]:
        """Everything a reader wants to know of the run, as plain values."""
        return summary(self)

    # --- for other tools --------------------------------------------------------------------------

    def mean(self, n: int = 2500, seed: int = 0) -> "xr.DataArray":
        """Mean of n samples, labelled by the centres of cells in the unit cube."""
        return statistic(self, self.sample(n, seed).mean(0))

    def std(self, n: int = 2500, seed: int = 0) -> "xr.DataArray":
        """Standard deviation of n samples, cell by cell."""
        return statistic(self, self.sample(n, seed).std(0, ddof=1))

    def quantile(self, q: float | Sequence[float], n: int = 2500, seed: int = 0) -> "xr.DataArray":
        """Quantiles of n samples, cell by cell; several `q` are a first axis."""
        found = np.quantile(self.sample(n, seed), q, axis=0)
        leading = () if np.ndim(q) == 0 else (("quantile", np.asarray(q)),)
        return statistic(self, found, *leading)

    def to_arviz(
        self, n: int = 2500, seed: int = 0, simulate: bool = False, executor: Any = None
    ) -> Any:
        """N samples for ArviZ: `InferenceData` of its versions 0.x, a `DataTree` of 1.x.

        There are groups `posterior`, `prior`, `sample_stats` (`lp`, the model's log-density) and
        `observed_data`. Samples are independent; they are divided into chains, if possible four,
        because diagnostics want several.

        Args:
            n: Number of samples, of prior draws too.
            seed: Of both.
            simulate: Run the forward map, 2 n times and not counted in `nfs`, for
                `posterior_predictive`, `prior_predictive`, `log_likelihood`, and the importance
                weights `log_weight` in `sample_stats`.
            executor: Who evaluates it, as of `fit`.
        """
        return to_arviz(self, n, seed, simulate, executor)

    # --- files ------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to a directory: one file per stage, certificates, summary."""
        save_posterior(self, path)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], problem: InverseProblem | None = None
    ) -> "Posterior":
        """Read a posterior. No code from the directory is run.

        Without its `problem` it gives samples and densities, but nothing that simulates.
        """
        return load_posterior(cls, path, problem)


def _log_prior(prior: Prior, u: np.ndarray) -> np.ndarray:
    """Log-density of the prior at whitened coordinates, in float64."""
    squares = np.sum(np.asarray(u, np.float64) ** 2, -1)
    return float(prior.log_det) - 0.5 * squares - 0.5 * u.shape[-1] * np.log(2 * np.pi)


def _fields(prior: Prior, u: np.ndarray) -> np.ndarray:
    """Fields of whitened coordinates `(n, d)`."""
    return in_pieces(lambda part: (_unwhiten(prior, part),), u)[0]


@eqx.filter_jit
def _unwhiten(prior: Prior, u: Array) -> Array:
    return prior.unwhiten(u)
