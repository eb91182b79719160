"""What a comparison left in its directory, and the table of it."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

from msign.rundir import RunDirectory

CONFIDENCE = 0.95
MOMENTS = ("mean", "std", "correlation")
AVERAGED = (  # columns of the table that are means over seeds
    "nfs",
    "seconds",
    "modes",
    "balance",
    "depth",
    "bias",
    "effective",
    "per_1000",
    "per_second",
    "per_1000_trained",
    "per_second_trained",
)
LABELS = {
    "msign": "MsIGN",
    "msign-network": "MsIGN, paper's network",
    "msign-paper": "MsIGN as in the paper",
    "exact": "exact samples",
    "hmc": "HMC",
    "nuts": "NUTS",
    "pcn": "pCN",
    "slice": "elliptical slice",
    "smc": "tempered SMC",
    "ismc": "informed SMC",
    "svgd": "SVGD",
    "psvgd": "projected SVGD",
    "asvgd": "amortized SVGD",
    "laplace": "Laplace mixture",
    "mgvi": "MGVI",
    "geovi": "geoVI",
    "glow": "Glow",
    "msign-snn": "MsIGN-SNN",
    "msign-kl-s": "MsIGN-KL-S",
    "msign-kl": "MsIGN-KL",
    "msign-as-s": "MsIGN-AS-S",
    "msign-as": "MsIGN-AS",
}


class Comparison:
    """What a directory holds: its setting, what it should be, and all results.

    Args:
        path: Directory of `msign compare`.
    """

    def __init__(self, path: pathlib.Path):
        if not (path / "config.json").exists():
            raise ValueError(f"out must hold a comparison (no config.json), got {path}")
        directory = RunDirectory(path)
        self.path, self.config = path, directory.read_json("config.json")
        self.rows = [json.loads(p.read_text()) for p in sorted((path / "results").glob("*.json"))]
        if not self.rows:
            raise ValueError(f"out must hold at least one result, got none in {path}")
        self.scales = sorted({r["scale"] for r in self.rows})
        names = {r["method"] for r in self.rows}
        self.methods = [m for m in LABELS if m in names]
        self.critical = {l: directory.read_json(f"critical-{l}.json") for l in self.scales}

    def of(self, method: str, scale: int) -> list[dict[str, Any]]:
        """Results of all seeds that did not fail."""
        found = [r for r in self.rows if r["method"] == method and r["scale"] == scale]
        return [r for r in found if "failed" not in r]

    def title(self) -> str:
        """What is compared with which budget."""
        origin = self.config["origin"]
        given = {k: "" if v is True else f" {v}" for k, v in origin["options"].items()}
        options = ", ".join(f"{k}{v}" for k, v in given.items())
        return (
            f"{origin['problem']}{', ' + options if options else ''}: d = {self.config['d']}, "
            f"{self.config['budget']:,} simulations, {self.config['n']:,} samples, "
            f"{self.seeds()}"
        )

    def seeds(self) -> str:
        """How many there are of each method, the samples of the truth left out."""
        counts = [len({r["seed"] for r in self.rows if r["method"] == m}) for m in self.methods]
        counts = [c for m, c in zip(self.methods, counts, strict=True) if m != "exact"] or counts
        low, high = min(counts), max(counts)
        number = str(high) if low == high else f"{low} to {high}"
        return f"{number} seed{'s' if high > 1 else ''}"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half of its confidence interval; NaN for the latter with one value."""
    a = np.asarray(values, np.float64)
    if len(a) < 2:
        return float(a.mean()), float("nan")
    half = student.ppf(0.5 + CONFIDENCE / 2, len(a) - 1) * a.std(ddof=1) / np.sqrt(len(a))
    return float(a.mean()), float(half)


def table(found: Comparison) -> list[dict[str, Any]]:
    """One row per method and scale, means over seeds."""
    rows = []
    for method in found.methods:
        for scale in found.scales:
            runs = found.of(method, scale)
            failed = [
                r["failed"]
                for r in found.rows
                if (r["method"], r["scale"]) == (method, scale) and "failed" in r
            ]
            if not runs and not failed:
                continue
            row: dict[str, Any] = {
                "method": method,
                "scale": scale,
                "letters": "".join(r["letter"] for r in runs) + "-" * len(failed),
                "failed": failed[0] if failed else "",
            }
            for name in AVERAGED:
                values = [r[name] for r in runs if r[name] is not None]
                row[name] = float(np.mean(values)) if values else None
            for name in MOMENTS:
                values = [r["rmse"][name] for r in runs if "rmse" in r]
                row[f"rmse_{name}"], row[f"rmse_{name}_ci"] = (
                    interval(values) if values else (None, None)
                )
            pairs = [r["jeffreys"]["jeffreys"] for r in runs if "jeffreys" in r]
            row["jeffreys"], row["jeffreys_ci"] = interval(pairs) if pairs else (None, None)
            rows.append(row)
    return rows
