"""What an item of `msign paper` is, what it makes, and how that is written."""

import csv
import io
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from msign.archive import atomic_write
from msign.report.figures import save_figures
from msign.rundir import RunDirectory

QUICK_SIZE, SIZE = 16, 64  # cells per side
QUICK_BUDGET, QUICK_SAMPLES, SAMPLES = 20_000, 500, 2500
QUICK_NETWORK = [4, 16]  # blocks and hidden channels of Glow networks
DONE = "numbers.json"


class Context(NamedTuple):
    """What all items are made with.

    Attributes:
        out: Directory of everything; each item has a folder of its name in it.
        quick: Whether at 16 x 16 cells.
        seeds: Of methods that are compared.
        data_dir: Folder with a folder of each image data set; None: there are none.
        say: What is told about the work as it goes on.
    """

    out: pathlib.Path
    quick: bool
    seeds: tuple[int, ...]
    data_dir: pathlib.Path | None
    say: Callable[[str], None]

    @property
    def size(self) -> int:
        """Cells per side."""
        return QUICK_SIZE if self.quick else SIZE

    @property
    def samples(self) -> int:
        """Of each method."""
        return QUICK_SAMPLES if self.quick else SAMPLES

    def work(self, name: str) -> pathlib.Path:
        """Where runs lie that several items share."""
        return self.out / "work" / name

    def described(self) -> dict[str, Any]:
        """What decides the numbers of an item."""
        return {"quick": self.quick, "seeds": list(self.seeds)}


class Made(NamedTuple):
    """What an item has made.

    Attributes:
        rows: A table; `ours` and `paper` where there is a value of both.
        figures: By name.
        notes: What a reader should know; which data are missing, too.
    """

    rows: list[dict[str, Any]]
    figures: Mapping[str, Figure] = {}
    notes: tuple[str, ...] = ()


class Item(NamedTuple):
    """A figure or table of the paper.

    Attributes:
        name: Of the command.
        where: In the paper.
        what: It shows.
        make: The function that makes it.
    """

    name: str
    where: str
    what: str
    make: Callable[[Context], Made]

    @property
    def command(self) -> str:
        """That makes it."""
        return f"msign paper {self.name}"

    def done(self, context: Context) -> bool:
        """Whether it has been made with the same options."""
        folder = context.out / self.name
        if not (folder / DONE).exists():
            return False
        kept = RunDirectory(folder, write=False).read_json(DONE)
        return bool(kept["made_with"] == context.described() and not kept["missing"])


def write_made(item: Item, context: Context, made: Made) -> list[pathlib.Path]:
    """Write figures (PNG and PDF), numbers (JSON and CSV) of an item; their paths."""
    folder = context.out / item.name
    directory = RunDirectory(folder)
    pictures = save_figures(made.figures, folder)
    for name, figure in made.figures.items():
        with atomic_write(folder / f"{name}.pdf") as file:
            figure.savefig(file, format="pdf")
        pictures.append(folder / f"{name}.pdf")
    with atomic_write(folder / "numbers.csv") as file:
        file.write(_as_csv(made.rows).encode())
    numbers = {
        "name": item.name,
        "where": item.where,
        "what": item.what,
        "command": item.command,
        "made_with": context.described(),
        "missing": [note for note in made.notes if note.startswith("missing")],
        "notes": made.notes,
        "rows": made.rows,
    }
    directory.write_json(DONE, numbers)
    return [*pictures, folder / "numbers.csv", folder / DONE]


def _as_csv(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def table_lines(rows: list[dict[str, Any]], most: int = 60) -> list[str]:
    """Rows for people."""
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_short(row.get(name)) for name in names] for row in rows[:most]]
    widths = [max(len(name), *(len(line[k]) for line in cells)) for k, name in enumerate(names)]
    lines = ["  ".join(f"{n:{w}s}" for n, w in zip(names, widths, strict=True))]
    lines += ["  ".join(f"{c:{w}s}" for c, w in zip(line, widths, strict=True)) for line in cells]
    more = [f"({len(rows) - most} more in numbers.csv)"] if len(rows) > most else []
    return [line.rstrip() for line in lines] + more


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple | list):
        return ":".join(_short(v) for v in value)
    return "-" if value is None else str(value)
