"""Everything a reader wants to know of a run, as plain values."""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import ArrayLike

from msign.diagnostics.modes import find_model_modes
from msign.inference.remedies import next_step, remedies

if TYPE_CHECKING:
    from msign.inference.posterior import Posterior


def summary(posterior: "Posterior") -> dict[str, Any]:
    """Everything a reader wants to know of the run, as plain values."""
    report, held_out = posterior.certificate(), posterior.certificates[posterior.scale]
    rounds = [r for r in posterior.records if r["scale"] == posterior.scale]
    numbers = remedies(report, rounds, posterior.budget or posterior.nfs, posterior.seed)
    estimate = {
        name: getattr(report, name)
        for name in ("reverse_kl", "forward_kl", "jeffreys", "jeffreys_stderr")
    }
    modes = find_model_modes(posterior.variables, held_out.coordinates)
    weighted = modes.reweighted(held_out.log_weights)
    result: dict[str, Any] = {
        "problem": posterior.problem.name,
        "dimension": posterior.prior.lattice.dim,
        "flow": type(posterior.config.kind).__name__,
        "scales_skipped": [l for l in range(1, posterior.scale) if l not in posterior.networks],
        "nfs": posterior.nfs,
        "failures": posterior.failures,
        "seconds": round(posterior.seconds, 1),
        **estimate,
        "jeffreys_estimated": report.jeffreys,
        "jeffreys_from": "importance weights of the model's own samples",
        "ess_fraction": report.ess_fraction,
        "khat": report.khat,
        "worst_log_weight": report.worst,
        "lowest_log_weight": report.lowest,
        "lost_evidence": report.lost,
        "certificate_size": report.n,
        "log_evidence": report.log_evidence,
        "log_evidence_stderr": report.log_evidence_stderr,
        "mode_fractions": _floats(modes.fractions),
        "mode_fractions_stderr": _floats(modes.stderr),
        "mode_fractions_weighted": _floats(weighted.fractions),
        "mode_fractions_weighted_stderr": _floats(weighted.stderr),
        "rmse": None,
        "verdict": f"{report.verdict} {next_step(report, numbers)}".strip(),
        "try": numbers._asdict(),
        "advice": [text for stage in posterior.stages for text in stage.get("advice", ())],
        "stages": [stage for stage in posterior.stages if stage["scale"] <= posterior.scale],
    }
    if posterior.reference:
        result.update(posterior.reference)
        result["jeffreys_from"] = "exact samples and exact evidence"
    return result


def _floats(values: ArrayLike) -> list[float]:
    return [float(v) for v in np.asarray(values)]
