"""What a model's quality is known by."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from msign.weights import WeightReport, lost_evidence, weight_report

SHOWN = 32  # variables that are kept of fields, to look for modes


class Certificate(NamedTuple):
    """What a model's quality is known by: fields simulated that it was not trained on.

    Attributes:
        log_weights: Log q - log p of each, up to the evidence `(n,)`.
        coordinates: A few of their variables `(n, k)`.
        log_evidence: By all fields of the stage that trained the model, where these were kept.
        log_evidence_stderr: Its standard error.
    """

    log_weights: np.ndarray
    coordinates: np.ndarray
    log_evidence: float | None = None
    log_evidence_stderr: float | None = None

    @property
    def known_evidence(self) -> tuple[float, float] | None:
        """Log evidence by all fields of the stage, and its standard error; None if not known."""
        if self.log_evidence is None or self.log_evidence_stderr is None:
            return None
        return self.log_evidence, self.log_evidence_stderr

    def report(self) -> WeightReport:
        """Effective sample size, k-hat, divergence and evidence."""
        report, known = weight_report(self.log_weights), self.known_evidence
        if known is None:
            return report
        return dataclasses.replace(report, lost=lost_evidence(report, *known))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        lists = {n: getattr(self, n).tolist() for n in ("log_weights", "coordinates")}
        return {**self._asdict(), **lists}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Certificate":
        """Inverse of `to_json`."""
        arrays = {n: np.asarray(values[n], np.float64) for n in ("log_weights", "coordinates")}
        return cls(**{**values, **arrays})
