"""The page of a comparison inside another document, between two marks that stay where they are."""

import pathlib
import shutil

from msign.archive import atomic_write


def insert(page: pathlib.Path, document: pathlib.Path) -> list[pathlib.Path]:
    """Put a page written by `msign compare` or `msign ablate` into a document; what was written.

    It goes between the lines `<!-- begin NAME -->` and `<!-- end NAME -->`, NAME being that of the
    page's directory. Headings are two levels deeper there, and pictures are copied beside the
    document, to `figures/NAME_...`.
    """
    name = page.parent.name
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    text = document.read_text()
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"{document} must have one line {begin!r}, and {end!r} after it")
    figures, lines, written = document.parent / "figures", [], [document]
    for line in page.read_text().splitlines():
        if line.startswith("!["):
            picture = line.split("(figures/")[1].rstrip(")")
            figures.mkdir(exist_ok=True)
            written.append(figures / f"{name}_{picture}")
            shutil.copy(page.parent / "figures" / picture, written[-1])
            line = line.replace("(figures/", f"(figures/{name}_")
        lines.append(f"##{line}" if line.startswith("#") else line)
    before, after = text[: text.index(begin)], text[text.index(end) :]
    body = "\n".join(lines)
    with atomic_write(document) as file:
        file.write(f"{before}{begin}\n\n{body}\n\n{after}".encode())
    return written
