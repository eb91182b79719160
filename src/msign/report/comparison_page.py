"""The page of a comparison, and everything else that is written of it."""

import csv
import io
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from msign.archive import atomic_write
from msign.diagnostics.judge import Thresholds
from msign.report.comparison import LABELS, MOMENTS, Comparison, table
from msign.report.comparison_figures import errors_figure, marginals_figure
from msign.report.figures import save_figures
from msign.rundir import RunDirectory


def write_report(path: pathlib.Path) -> list[pathlib.Path]:
    """Write table (CSV, JSON), figures and page of a comparison; their paths."""
    found = Comparison(path)
    rows = table(found)
    directory = RunDirectory(path)
    thresholds = Thresholds(**found.config["thresholds"])
    directory.write_json("table.json", {"rule": thresholds.line(), "rows": _plain(rows)})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    with atomic_write(path / "table.csv") as file:
        file.write(text.getvalue().encode())
    figures = {"marginals": marginals_figure(found)}
    if any("rmse" in r for r in found.rows):
        figures["errors"] = errors_figure(found, rows)
    pictures = save_figures(figures, path / "figures")
    page = "\n".join(page_lines(found, rows, thresholds, list(figures))) + "\n"
    with atomic_write(path / "comparison.md") as file:
        file.write(page.encode())
    return [path / "table.csv", path / "table.json", *pictures, path / "comparison.md"]


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Numbers that are not finite as None, which JSON has."""
    return [
        {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()}
        for row in rows
    ]


def page_lines(
    found: Comparison, rows: list[dict[str, Any]], thresholds: Thresholds, figures: list[str]
) -> list[str]:
    """The comparison as a page of Markdown."""
    lines = [
        f"# {found.title()}",
        "",
        "Written by `msign compare`; nothing here is typed by hand.",
        "",
        "## Modes",
        "",
        f"{thresholds.line()} One letter per seed. Truth: "
        f"{found.critical[found.scales[-1]]['source']}; shares "
        + ", ".join(
            f"{':'.join(f'{s:.2f}' for s in found.critical[l]['shares'])} with a valley of "
            f"{found.critical[l]['marginal']['depth']:.2f} (scale {l})"
            for l in found.scales
        )
        + ".",
        "",
        *_markdown(found, rows, lambda row: row["letters"] or "-", with_exact=False),
        "",
    ]
    if any(row["rmse_mean"] is not None for row in rows):
        for name in MOMENTS:
            lines += [f"## RMSE of the {name}", ""]
            cell = _with_interval(f"rmse_{name}")
            lines += [*_markdown(found, rows, cell, with_exact=True), ""]
    if any(row["jeffreys"] is not None for row in rows):
        lines += ["## Jeffreys divergence from the exact posterior, of methods with a density", ""]
        dense = [row for row in rows if row["jeffreys"] is not None]
        lines += [*_markdown(found, dense, _with_interval("jeffreys"), with_exact=False), ""]
    lines += [*_efficiency(found, rows), ""]
    failed = [row for row in rows if row["failed"]]
    if failed:
        lines += ["## What failed", ""]
        lines += [f"- {row['method']}, scale {row['scale']}: {row['failed']}" for row in failed]
        lines += [""]
    return lines + [f"![{name}](figures/{name}.png)" for name in figures]


def _markdown(
    found: Comparison,
    rows: list[dict[str, Any]],
    cell: Callable[[dict[str, Any]], str],
    with_exact: bool,
) -> list[str]:
    """A table of methods by scales."""
    by = {(row["method"], row["scale"]): row for row in rows}
    heads = " | ".join(f"scale {l}" for l in found.scales)
    lines = [f"| method | {heads} |", "|---" * (1 + len(found.scales)) + "|"]
    for method in found.methods:
        if (method == "exact" and not with_exact) or not any(m == method for m, _ in by):
            continue
        cells = [cell(by[method, l]) if (method, l) in by else "-" for l in found.scales]
        lines.append(f"| {LABELS[method]} | {' | '.join(cells)} |")
    return lines


def _with_interval(name: str) -> Callable[[dict[str, Any]], str]:
    def cell(row: dict[str, Any]) -> str:
        if row[name] is None:
            return "-"
        half = row[f"{name}_ci"]
        return f"{row[name]:.3g}" + ("" if np.isnan(half) else f" ± {half:.1g}")

    return cell


def _efficiency(found: Comparison, rows: list[dict[str, Any]]) -> list[str]:
    """Effective samples of the finest scale per cost."""
    last = found.scales[-1]
    lines = [
        f"## Effective independent samples at scale {last}",
        "",
        f"Of {found.config['n']} samples, at most; mixing between modes counts. Training or "
        "burn-in is included, or left out (after training). Without a number: another run gives "
        "more samples, nothing else does, or nothing is known of their dependence.",
        "",
        "| method | effective | nFS | seconds | per 1000 nFS | per second | after training: per "
        "1000 nFS | per second |",
        "|---" * 8 + "|",
    ]
    names = (
        "effective",
        "nfs",
        "seconds",
        "per_1000",
        "per_second",
        "per_1000_trained",
        "per_second_trained",
    )
    for row in rows:
        if row["scale"] == last and row["method"] != "exact":
            cells = ["-" if row[n] is None else f"{row[n]:.4g}" for n in names]
            lines.append(f"| {LABELS[row['method']]} | {' | '.join(cells)} |")
    return lines
