"""The learned posterior: samples, densities, corrections, and an honest certificate."""

import dataclasses
import os
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike

from msign import checks
from msign.diagnostics.modes import mode_fractions
from msign.inference.config import FitConfig
from msign.inference.models import StageModel, draw, excess_all
from msign.inference.rundir import RunDirectory
from msign.inference.simulate import part_size
from msign.network import MsIGN
from msign.problems.inverse import InverseProblem
from msign.weights import WeightReport, lost_evidence, resampled, weight_report


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


class Posterior:
    """What `fit` returns.

    `log_weights` and `coordinates` (a few trained variables) are those of fields simulated for
    the certificate. Densities are exact and normalised, of fields on the lattice. Methods with a
    `seed` give the same numbers for the same seed.
    """

    def __init__(
        self,
        problem: InverseProblem,
        models: dict[int, StageModel],
        config: FitConfig,
        *,
        seed: int,
        log_weights: np.ndarray,
        coordinates: np.ndarray,
        records: list[dict[str, Any]],
        stages: list[dict[str, Any]],
        nfs: int,
        failures: int,
        seconds: float,
        scale: int | None = None,
    ):
        self.problem, self.models, self.config, self.seed = problem, models, config, seed
        self.log_weights, self.coordinates = log_weights, coordinates
        self.records, self.stages = records, stages
        self.nfs, self.failures, self.seconds = nfs, failures, seconds
        self.scale = problem.scales if scale is None else scale
        self.reference: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Posterior({self.problem.name}, scale {self.scale}, dimension {self.model.dim})"

    @property
    def model(self) -> StageModel:
        """The trained model of this scale."""
        return self.models[self.scale]

    @property
    def scales(self) -> list[int]:
        """Scales that were trained."""
        return sorted(self.models)

    def network(self) -> MsIGN:
        """The MsIGN network with this distribution."""
        return self.model.to_network(self.problem.priors[self.scale - 1], self.scale)

    def at_scale(self, scale: int) -> "Posterior":
        """The posterior of a coarser scale, as its own stage left it."""
        if scale not in self.models:
            raise ValueError(f"scale must be one of {self.scales}, got {scale!r}")
        coarse = Posterior(
            self.problem,
            self.models,
            self.config,
            seed=self.seed,
            log_weights=self.log_weights if scale == self.scale else np.zeros(0),
            coordinates=self.coordinates,
            records=self.records,
            stages=self.stages,
            nfs=self.nfs,
            failures=self.failures,
            seconds=self.seconds,
            scale=scale,
        )
        return coarse

    # --- samples and densities ------------------------------------------------------------------

    def sample(self, n: int, seed: int = 0) -> np.ndarray:
        """N independent fields."""
        return self.sample_and_log_prob(n, seed)[0]

    def sample_and_log_prob(self, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """N independent fields and the model's log-density of each."""
        prior = self.problem.priors[self.scale - 1]
        u, excess = self.whitened_samples(n, seed)
        fields = _chunked(prior.unwhiten, u)
        return fields, _log_prior(prior, u) + excess

    def whitened_samples(self, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """N independent fields in whitened coordinates, and log p - log prior of each."""
        checks.integer("n", n, 1)
        key = jr.fold_in(jr.key(checks.integer("seed", seed, 0)), 7)
        parts, size = [], part_size(self.model.dim)
        for i, start in enumerate(range(0, n, size)):
            eta = jr.normal(jr.fold_in(key, i), (min(size, n - start), self.model.dim))
            u, _, excess = draw(self.model, eta)
            parts.append((np.asarray(u), np.asarray(excess, np.float64)))
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def log_prob(self, x: ArrayLike) -> np.ndarray:
        """The model's log-density of fields."""
        prior = self.problem.priors[self.scale - 1]
        x = prior.lattice.check("x", x)
        u = np.asarray(prior.whiten(x))
        return _log_prior(prior, u) + self.excess(u)

    def excess(self, u: ArrayLike) -> np.ndarray:
        """Log p - log prior of fields in whitened coordinates `(..., d)`."""
        u = np.asarray(u)
        flat = u.reshape(-1, u.shape[-1])
        values = _chunked(lambda v: excess_all(self.model.core, self.model.reduce(v)), flat)
        return values.reshape(u.shape[:-1]).astype(np.float64)

    # --- corrections by simulation ----------------------------------------------------------------

    def importance(self, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """N draws in whitened coordinates and their log-weights q/p; costs n simulations."""
        u, excess = self.whitened_samples(n, seed)
        return u, self.problem.evaluate(u, self.scale).log_likelihood - excess

    def resample(self, n: int, seed: int = 0, draws: int | None = None) -> Corrected:
        """N fields of the posterior by importance resampling of `draws` (default 4 n) draws."""
        checks.integer("n", n, 1)
        u, log_weights = self.importance(draws or 4 * n, seed)
        index = resampled(log_weights, n, float(jr.uniform(jr.fold_in(jr.key(seed), 11))))
        fields = _chunked(self.problem.priors[self.scale - 1].unwhiten, u[index])
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
        fields = _chunked(self.problem.priors[self.scale - 1].unwhiten, u[kept])
        return Corrected(fields, len(np.unique(kept)), accepted / max(total - 1, 1))

    # --- certificate ---------------------------------------------------------------------------

    def certificate(self) -> WeightReport:
        """Quality of the model by fields simulated after training."""
        if not len(self.log_weights):
            raise ValueError(f"scale {self.scale} has no certificate: only the finest one has")
        report = weight_report(self.log_weights)
        last = self.stages[-1] if self.stages else {}
        if last.get("log_evidence") is None:
            return report
        found = last["log_evidence"], last["log_evidence_stderr"]
        return dataclasses.replace(report, lost=lost_evidence(report, *found))

    def summary(self) -> dict[str, Any]:
        """Everything a reader wants to know of the run, as plain values."""
        report = self.certificate()
        estimate = {
            name: getattr(report, name)
            for name in ("reverse_kl", "forward_kl", "jeffreys", "jeffreys_stderr")
        }
        result: dict[str, Any] = {
            "problem": self.problem.name,
            "dimension": self.problem.dim,
            "nfs": self.nfs,
            "failures": self.failures,
            "seconds": round(self.seconds, 1),
            **estimate,
            "jeffreys_estimated": report.jeffreys,
            "jeffreys_from": "importance weights of the model's own samples",
            "ess_fraction": report.ess_fraction,
            "khat": report.khat,
            "worst_log_weight": report.worst,
            "log_evidence": report.log_evidence,
            "log_evidence_stderr": report.log_evidence_stderr,
            "mode_fractions": mode_fractions(self.coordinates),
            "mode_fractions_weighted": mode_fractions(self.coordinates, self.log_weights),
            "rmse": None,
            "verdict": report.verdict,
            "stages": self.stages,
        }
        if self.reference:
            result.update(self.reference)
            result["jeffreys_from"] = "exact samples and exact evidence"
        return result

    def to_arviz(self, n: int = 2500, seed: int = 0) -> Any:
        """N samples as ArviZ InferenceData, with the model's log-density as a sample statistic."""
        import arviz as az

        fields, log_prob = self.sample_and_log_prob(n, seed)
        names = [f"axis{i}" for i in range(fields.ndim - 1)]
        return az.from_dict(
            posterior={"x": fields[None]},
            sample_stats={"lp": log_prob[None]},
            dims={"x": names},
            attrs={"problem": self.problem.name, "nfs": self.nfs},
        )

    # --- files ------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to a directory: one file per stage, weights, summary."""
        directory = RunDirectory(path)
        if not directory.started:
            directory.write_json(
                "config.json",
                {
                    "problem": self.problem.name,
                    "dimension": self.problem.dim,
                    "seed": self.seed,
                    "budget": None,
                    "fit": self.config.to_json(),
                },
            )
            directory.save_prior(self.problem)
        for scale, model in self.models.items():
            if scale not in directory.finished_stages():
                directory.save_stage(model, scale, {"records": self.records, "stages": self.stages})
        directory.write_json(
            "posterior.json",
            {
                "seed": self.seed,
                "nfs": self.nfs,
                "failures": self.failures,
                "seconds": self.seconds,
                "records": self.records,
                "stages": self.stages,
                "log_weights": self.log_weights,
                "coordinates": self.coordinates,
                "reference": self.reference,
            },
        )
        directory.write_json("summary.json", self.summary())

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], problem: InverseProblem | None = None
    ) -> "Posterior":
        """Read a posterior. No code from the directory is run.

        Without its `problem` it gives samples and densities, but nothing that simulates.
        """
        if not (pathlib.Path(path) / "posterior.json").exists():
            raise ValueError(f"path must hold a finished run, got {path}")
        directory = RunDirectory(path)
        had = directory.read_json("config.json")
        problem = directory.load_problem() if problem is None else problem
        for name, value in (("problem", problem.name), ("dimension", problem.dim)):
            if had[name] != value:
                raise ValueError(
                    f"problem must be that of the run: {name} {had[name]!r}, got {value!r}"
                )
        config = FitConfig.from_json(had["fit"])
        models = {
            scale: directory.load_stage(scale, problem, config)[0]
            for scale in directory.finished_stages()
        }
        saved = directory.read_json("posterior.json")
        reference = saved.pop("reference")
        for name in ("log_weights", "coordinates"):
            saved[name] = np.asarray(saved[name], np.float64)
        posterior = cls(problem, models, config, **saved)
        posterior.reference = reference
        return posterior


def _log_prior(prior: Any, u: np.ndarray) -> np.ndarray:
    """Log-density of the prior at whitened coordinates, in float64."""
    squares = np.sum(np.asarray(u, np.float64) ** 2, -1)
    return float(prior.log_det) - 0.5 * squares - 0.5 * u.shape[-1] * np.log(2 * np.pi)


def _chunked(f: Any, u: ArrayLike) -> np.ndarray:
    """`f` of batches `(n, d)`, some at a time."""
    u = np.asarray(u)
    size = part_size(max(u.shape[-1], 1))
    parts: list[Array] = [f(jnp.asarray(u[i : i + size])) for i in range(0, len(u), size)]
    return np.concatenate([np.asarray(jax.device_get(p)) for p in parts])
