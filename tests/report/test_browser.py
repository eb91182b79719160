"""The page in a browser: Debian's chromium, headless; skipped where there is none."""

import shutil

import pytest

from report.untrained import EVIL, SHAPES

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt install chromium")

PHONE = 390


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser, pages):
    """Opens a page; afterwards there must have been no message, dialog or request."""
    noise: list[str] = []
    contexts = []

    def open_page(name, **options):
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on("dialog", lambda dialog: (noise.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda r: noise.append(r.url) if r.url.startswith("http") else None)
        page.goto(pages[name].as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert noise == []


@pytest.mark.parametrize("name", SHAPES)
def test_the_slider_goes_through_the_scales(opened, name):
    page = opened(name)
    slider, frames = page.locator(".film input"), page.locator(".film .frame")
    assert frames.count() == 2
    visible = [frames.nth(i).is_visible() for i in range(2)]
    assert visible == [False, True]
    slider.focus()
    slider.press("ArrowLeft")
    assert [frames.nth(i).is_visible() for i in range(2)] == [True, False]
    assert page.locator(".film output").inner_text().startswith("scale 1")
    assert page.locator(".frame:visible svg").count() == 1


def test_a_name_is_shown_and_does_nothing(opened):
    page = opened("line")
    assert page.locator("h1").inner_text() == EVIL
    assert page.evaluate("document.scripts.length") == 1
    assert page.title().endswith(EVIL)


@pytest.mark.parametrize("name", SHAPES)
def test_a_phone_needs_no_sideways_scrolling(opened, name):
    page = opened(name, viewport={"width": PHONE, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE


def test_light_and_dark_differ_in_paper_and_in_figures(opened):
    colours = {}
    for scheme in ("light", "dark"):
        page = opened("plane", color_scheme=scheme)
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        ink = page.evaluate("getComputedStyle(document.querySelector('svg text')).fill")
        colours[scheme] = paper, ink
    assert colours["light"][0] != colours["dark"][0]
    assert colours["light"][1] != colours["dark"][1]


def test_all_scales_are_printed(opened):
    page = opened("plane")
    page.emulate_media(media="print")
    frames = page.locator(".film .frame")
    assert all(frames.nth(i).is_visible() for i in range(2))
    assert not page.locator(".film input").is_visible()


def test_without_scripts_all_scales_are_shown(opened):
    page = opened("plane", java_script_enabled=False)
    frames = page.locator(".film .frame")
    assert all(frames.nth(i).is_visible() for i in range(2))
