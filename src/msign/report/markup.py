"""HTML that is escaped unless it was made here: text from a run can never become a tag."""

import html
from collections.abc import Iterable, Sequence
from typing import Any

VOID = ("input", "meta", "img", "br")


class Html(str):
    """Text that is HTML already."""


def tag(name: str, *children: Any, **attributes: Any) -> Html:
    """An element; children that are not `Html` are escaped, and all attributes.

    A trailing underscore of an attribute's name is dropped, others become hyphens; True stands for
    an attribute without a value, None and False for none.
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}"
        + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    inside = joined(children)
    return Html(f"<{name}{given}>" + ("" if name in VOID else f"{inside}</{name}>"))


def joined(parts: Iterable[Any]) -> Html:
    """Parts one after the other, escaped unless they are `Html`."""
    return Html("".join(p if isinstance(p, Html) else html.escape(str(p)) for p in parts))


def with_code(text: str) -> Html:
    """A text in which backquotes mark code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # a backquote without its pair
        return joined([text])
    return joined(tag("code", p) if i % 2 else p for i, p in enumerate(pieces))


def listing(texts: Iterable[str]) -> Html:
    """A bulleted list."""
    return tag("ul", *(tag("li", with_code(text)) for text in texts))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], first: str = "num") -> Html:
    """A table of numbers that scrolls sideways where it is too wide.

    `first` is the class of the first column: `num`, or `name` for words.
    """

    def line(cell: str, values: Sequence[Any]) -> Html:
        kinds = [first] + ["num"] * (len(values) - 1)
        return tag("tr", *(tag(cell, v, class_=k) for v, k in zip(values, kinds, strict=True)))

    body = tag("tbody", *(line("td", row) for row in rows))
    return tag("div", tag("table", tag("thead", line("th", head)), body), class_="wide")


def facts(pairs: Iterable[tuple[str, Any]]) -> Html:
    """A table of names and values."""
    rows = (tag("tr", tag("th", n, scope="row"), tag("td", v)) for n, v in pairs)
    return tag("div", tag("table", tag("tbody", *rows), class_="facts"), class_="wide")


def count(value: float) -> str:
    """A whole number, with narrow spaces between thousands."""
    return f"{value:,.0f}".replace(",", "\u202f")


def section(anchor: str, title: str, *children: Any) -> Html:
    """A part of the page with a heading."""
    return tag("section", tag("h2", title), *children, id=anchor)


def captioned(picture: Html, caption: str, **attributes: Any) -> Html:
    """A picture with what it shows."""
    return tag("figure", picture, tag("figcaption", with_code(caption)), **attributes)
