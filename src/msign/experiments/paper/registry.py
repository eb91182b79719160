"""The list of all figures and tables, and the loop that makes them."""

import pathlib
import time
from collections.abc import Callable, Iterator, Sequence

from msign import checks
from msign.experiments.paper import (
    ablation,
    appendix_b,
    images,
    problems,
    rivals,
    trained,
)
from msign.experiments.paper.base import Context, Item, table_lines, write_made
from msign.progress import ProgressBar

ITEMS: tuple[Item, ...] = (
    Item("landscape", "appendix B", "landscapes of KL and Jeffreys", appendix_b.landscapes),
    Item("haar", "appendix G", "rows of pooling and of the Haar basis", images.haar),
    Item("multiscale", "figure 2", "the error of F on coarser fields", problems.multiscale),
    Item("force", "appendix F", "the force and the 15 measurement functions", problems.force),
    Item("maxima", "appendix F", "certification of the two maxima", problems.maxima),
    Item(
        "synthetic-marginals",
        "figure 3 (a), appendix F",
        "marginals along the critical direction at all scales",
        rivals.synthetic_marginals,
    ),
    Item("errors", "figure 3 (b)", "RMSE of mean, std and correlation", rivals.errors),
    Item("jeffreys", "table 1", "Jeffreys divergence from the posterior", rivals.jeffreys),
    Item(
        "elliptic-marginals",
        "figure 4 (a), appendix F",
        "marginals along the critical direction at all scales",
        rivals.elliptic_marginals,
    ),
    Item("clusters", "figure 4 (b)", "clusters of samples and their means", trained.clusters),
    Item(
        "necessity",
        "appendix F",
        "learning curve of the last stage, modes before and after training",
        trained.necessity,
    ),
    Item(
        "synthetic-ablation",
        "figure 5, appendix F",
        "marginals of all variants at all scales",
        ablation.synthetic_ablation,
    ),
    Item(
        "elliptic-ablation",
        "figure 5, appendix F",
        "marginals of all variants at all scales",
        ablation.elliptic_ablation,
    ),
    Item("ablation", "appendix F, last table", "letters of all variants", ablation.ablation_table),
    Item("mu", "appendix G", "table of mu_l", images.mu),
    Item("bits", "table 2", "bits per dimension", images.bits),
    Item("synthesis", "figure 6, appendix G", "new images", images.synthesis),
    Item("interpolation", "figure 6", "lines in latent space", images.interpolation),
    Item("activations", "figure 7, appendix G", "images inside the flows", images.activations),
)


def list_lines() -> list[str]:
    """All items with their commands, for people."""
    width = max(len(item.command) for item in ITEMS)
    where = max(len(item.where) for item in ITEMS)
    return [
        *(f"{i.command:{width}s}  {i.where:{where}s}  {i.what}" for i in ITEMS),
        "",
        "msign paper all makes all of them; with --quick at 16 x 16 cells",
    ]


def make(
    items: Sequence[Item],
    name: str,
    out: pathlib.Path,
    quick: bool = False,
    data_dir: pathlib.Path | None = None,
    seeds: tuple[int, ...] | None = None,
    again: bool = False,
    say: Callable[[str], None] = print,
) -> Iterator[str]:
    """Make an item, or all that are not done; lines to print.

    `say` is told what an item does while it is made. Where one of all fails the others are made,
    and the error is told at the end.
    """
    by = {item.name: item for item in items}
    if name != "all":
        checks.one_of("name", name, ("list", "all", *by))
    seeds = seeds or ((0,) if quick else (0, 1, 2))
    context = Context(out / ("quick" if quick else "full"), quick, seeds, data_dir, say)
    wanted = list(items) if name == "all" else [by[name]]
    failed = []
    with ProgressBar(True, len(wanted), "paper", "{done}, now {now}", done=0, now="") as bar:
        for k, item in enumerate(wanted):
            bar.update(k, done=f"{k} of {len(wanted)}", now=item.name)
            if item.done(context) and not again:
                yield f"{item.name}: done before, in {context.out / item.name}"
                continue
            began = time.monotonic()
            try:
                made = item.make(context)
                written = write_made(item, context, made)
            except (ValueError, RuntimeError) as error:
                if name != "all":
                    raise
                failed.append(f"{item.name}: {error}")
                yield f"{item.name}: failed: {error}"
                continue
            yield f"\n{item.name} ({item.where}): {item.what}, {time.monotonic() - began:.0f} s"
            yield from table_lines(made.rows)
            yield from made.notes
            yield from (f"written to {path}" for path in written)
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(wanted)} failed: {'; '.join(failed)}")
