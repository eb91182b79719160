"""Text of a run stays text."""

import pytest

from msign.report.markup import Html, captioned, facts, joined, listing, table, tag, with_code

EVIL = "<script>alert('1')</script>\"&"


@pytest.mark.parametrize(
    "made",
    [
        tag("p", EVIL),
        tag("p", "x", title=EVIL),
        joined([EVIL]),
        with_code(f"a `{EVIL}` b"),
        with_code(f"a ` {EVIL}"),
        listing([EVIL]),
        table((EVIL,), [(EVIL,)]),
        facts([(EVIL, EVIL)]),
        captioned(tag("p", EVIL), EVIL),
    ],
)
def test_what_is_not_markup_is_escaped(made):
    assert isinstance(made, Html)
    assert "<script" not in made and "alert(&#x27;1&#x27;)" in made
    assert made.count('"') % 2 == 0


def test_attributes():
    made = tag("input", type="range", data_label="a", class_="b", hidden=True, value=None, min=0)
    assert made == '<input type="range" data-label="a" class="b" hidden min="0">'
