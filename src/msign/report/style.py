"""How figures look, as files and inside a page.

A figure is drawn once in the colours of paper. Inside a page it is SVG, and these colours become
the page's own (`page.css`), so that it follows the reader's choice of light or dark.
"""

import html
import io
import re
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator

from msign.report.markup import Html

INK, ACCENT, SOFT, ALERT = "#1c2127", "#1a6fb0", "#8a94a0", "#c2571a"
PAGE = {
    INK: "currentColor",
    ACCENT: "var(--accent)",
    SOFT: "var(--soft)",
    ALERT: "var(--alert)",
}
WIDTH = 4.8  # inches: readable at full size beside another one, and as wide as a phone
FONT = 9.5
TICKS = 6  # intervals of an axis, at most
# Names of groups and images, to which nothing refers.
_UNUSED = re.compile(r' id="([A-Za-z0-9.]+_\d+|image[0-9a-f]+)"')
_NAMES = re.compile(r'( id="|url\(#|href="#)')


def new_figure(width: float = WIDTH, height: float = 3.0) -> Figure:
    """An empty figure."""
    return Figure(figsize=(width, height), layout="constrained")


def plain(axes: Any, xlabel: str = "", ylabel: str = "", title: str = "") -> None:
    """Axes with a frame on two sides, in the colours of the page."""
    axes.spines[["top", "right"]].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(SOFT)
    for axis in (axes.xaxis, axes.yaxis):
        # As many as fit would be a number that the layout changes, and that changes the layout.
        if isinstance(axis.get_major_locator(), AutoLocator):
            axis.get_major_locator().set_params(nbins=TICKS)
    axes.tick_params(colors=INK, color=SOFT, labelsize=FONT - 1)
    axes.set_xlabel(xlabel, color=INK, fontsize=FONT)
    axes.set_ylabel(ylabel, color=INK, fontsize=FONT)
    if title:
        axes.set_title(title, color=INK, fontsize=FONT, loc="left", parse_math=False)


def numbered(axes: Any, name: str, begin: float, line: bool = False) -> None:
    """Above the axes the name of a stage where it begins, with a line where others come before."""
    if line:
        axes.axvline(begin, color=SOFT, lw=0.6, alpha=0.6)
    axes.annotate(
        name,
        (begin, 1.0),
        xycoords=("data", "axes fraction"),
        fontsize=FONT - 1.5,
        color=INK,
        xytext=(3, -2),
        textcoords="offset points",
        va="bottom",
    )


def legend(figure: Figure, axes: Any) -> None:
    """What lines and bars of some axes are, below the figure, where it covers nothing."""
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=FONT - 1,
        labelcolor=INK,
    )


def titled(figure: Figure, title: str) -> Figure:
    """The figure with a title, in which nothing is taken for mathematics."""
    text = figure.suptitle(title, fontsize=FONT + 0.5, color=INK)
    text.set_parse_math(False)
    return figure


def as_svg(figure: Figure, label: str) -> Html:
    """The figure as an element of a page, with a label for those who cannot see it."""
    text = _transparent(figure)
    text = text[text.index("<svg") :]
    for colour, own in PAGE.items():
        text = text.replace(colour, own)
    prefix = html.escape(label.replace(" ", "-"))
    text = _NAMES.sub(rf"\g<1>{prefix}-", _UNUSED.sub("", text))
    width = figure.get_figwidth() / WIDTH
    start = f'<svg role="img" aria-label="{html.escape(label)}" style="--share: {width:.3g}"'
    return Html(text.replace("<svg", start, 1))


def _transparent(figure: Figure) -> str:
    """The figure as SVG without backgrounds: what `Figure.savefig` writes, which draws it twice."""
    buffer = io.BytesIO()
    empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    patches = [figure.patch, *(axes.patch for axes in figure.axes)]
    colours = [(patch.get_facecolor(), patch.get_edgecolor()) for patch in patches]
    for patch in patches:
        patch.set(facecolor="none", edgecolor="none")
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "msign", "svg.image_inline": True}):
        FigureCanvasSVG(figure).print_svg(buffer, metadata=empty)
    for patch, (face, edge) in zip(patches, colours, strict=True):
        patch.set(facecolor=face, edgecolor=edge)
    return buffer.getvalue().decode()
