"""The page of a run: one HTML file that needs nothing else and runs nothing but its slider."""

import base64
import hashlib
import html
import importlib.resources
import os
import pathlib
import string

from msign.archive import atomic_write
from msign.report.markup import Html, listing, tag
from msign.report.words import Words

PAGE = "report.html"


def assembled(title: str, body: Html) -> str:
    """A whole page.

    Its policy allows its own script by the script's hash, and pictures that are part of the page:
    nothing is fetched, and no other script would run even if one came in with a run's texts.
    """
    style, script = (_own(name) for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    return string.Template(_own("page.html")).substitute(
        policy=html.escape(policy, quote=True),
        title=html.escape(title),
        style=style,
        body=body,
        script=script,
    )


def write_page(folder: str | os.PathLike[str], title: str, body: Html) -> pathlib.Path:
    """Write the page of a run to its folder."""
    path = pathlib.Path(folder) / PAGE
    with atomic_write(path) as file:
        file.write(assembled(title, body).encode())
    return path


def heading(name: str, about: str) -> Html:
    """What the page is about."""
    return tag("header", tag("p", "msign report"), tag("h1", name), tag("p", about))


def certificate(said: Words) -> Html:
    """What stands at the top."""
    columns = (
        ("What can be trusted", said.trust),
        ("What cannot", said.doubt),
        ("What to do next", said.steps),
    )
    parts = (tag("div", tag("h3", name), listing(texts)) for name, texts in columns)
    return tag(
        "section",
        tag("span", said.grade, class_="grade"),
        tag("p", said.title, class_="headline"),
        tag("div", *parts, class_="columns"),
        class_=f"verdict {said.grade.lower().replace(' ', '-')}",
        id="certificate",
    )


def film(frames: list[tuple[str, Html]]) -> Html:
    """Pictures of which a slider shows one at a time, at first the last; all of them in print."""
    if len(frames) == 1:
        return tag("div", tag("p", frames[0][0], class_="name"), frames[0][1], class_="frame")
    last = len(frames) - 1
    slider = tag("input", type="range", min=0, max=last, value=last, step=1, aria_label="scale")
    shown = [
        tag("div", tag("p", label, class_="name"), picture, class_="frame", data_label=label)
        for label, picture in frames
    ]
    return tag("div", tag("div", slider, tag("output"), class_="control"), *shown, class_="film")


def tiles(items: list[tuple[str, str, str]]) -> Html:
    """Numbers to see at once: name, value, what it means."""
    boxes = (
        tag("div", tag("dt", name), tag("dd", value, tag("small", about)))
        for name, value, about in items
    )
    return tag("dl", *boxes, class_="tiles")


def _own(name: str) -> str:
    return importlib.resources.files("msign.report").joinpath(name).read_text(encoding="utf-8")
