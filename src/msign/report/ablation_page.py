"""The table of letters of an ablation, with the numbers behind them and the paper's beside."""

import pathlib
from typing import Any

from msign.archive import atomic_write
from msign.diagnostics.judge import Thresholds
from msign.report.comparison import LABELS, Comparison
from msign.report.paper_values import LETTERS

NUMBERS = ("shares", "balance", "depth", "bias")


def letter_rows(found: Comparison) -> list[dict[str, Any]]:
    """One row per variant, scale and seed: our letter, the paper's, and the numbers behind ours."""
    paper = LETTERS.get(found.config["origin"]["problem"], {})
    rows = []
    for method in found.methods:
        for scale in found.scales:
            for run in found.of(method, scale):
                letters = paper.get(method, "")
                row = {"variant": LABELS[method], "scale": scale, "seed": run["seed"]}
                row |= {"ours": run["letter"], "paper": letters[scale - 1 : scale] or "-"}
                row |= {name: run[name] for name in NUMBERS}
                rows.append(row | {"nfs": run["nfs"], "seconds": run["seconds"]})
    return rows


def letter_table(found: Comparison) -> list[str]:
    """Letters as a table of Markdown: ours, one per seed, and in brackets the paper's."""
    paper = LETTERS.get(found.config["origin"]["problem"], {})
    heads = " | ".join(f"l = {l}" for l in found.scales)
    lines = [f"| variant | {heads} |", "|---" * (1 + len(found.scales)) + "|"]
    for method in found.methods:
        cells = []
        for scale in found.scales:
            ours = "".join(run["letter"] for run in found.of(method, scale)) or "-"
            cells.append(f"{ours} ({paper.get(method, '')[scale - 1 : scale] or '-'})")
        lines.append(f"| {LABELS[method]} | {' | '.join(cells)} |")
    return lines


def ablation_lines(found: Comparison) -> list[str]:
    """The ablation as a page of Markdown."""
    origin = found.config["origin"]
    blocks, hidden = origin["network"]
    return [
        f"# Ablation: {found.title()}",
        "",
        "Written by `msign ablate`; nothing here is typed by hand.",
        "",
        f"Glow flows of {blocks} blocks with {hidden} hidden channels, training "
        f"{'as in the paper' if origin['training'] == 'paper' else 'of this project'}. "
        "Each variant has the budget for all of its stages, those of a single stage at every scale "
        "anew. Ours, one letter per seed; in brackets the paper's, by eye, for 64 x 64 cells and "
        "its own budget. MsIGN-KL and MsIGN-AS begin their second stage with the first of MsIGN.",
        "",
        Thresholds(**found.config["thresholds"]).line(),
        "",
        *letter_table(found),
        "",
        "| variant | l | letter | shares | off by | valley | bias | nFS | seconds |",
        "|---" * 9 + "|",
        *(
            f"| {r['variant']} | {r['scale']} | {r['ours']} | "
            f"{':'.join(f'{s:.2f}' for s in r['shares'])} | {r['balance']:.2f} | "
            f"{r['depth']:.2f} | {r['bias']:.2f} | {r['nfs']:,} | {r['seconds']:.0f} |"
            for r in letter_rows(found)
        ),
        "",
        "![marginals](figures/marginals.png)",
    ]


def write_ablation(path: pathlib.Path) -> pathlib.Path:
    """Write the page of an ablation; its path."""
    with atomic_write(path / "ablation.md") as file:
        file.write(("\n".join(ablation_lines(Comparison(path))) + "\n").encode())
    return path / "ablation.md"
