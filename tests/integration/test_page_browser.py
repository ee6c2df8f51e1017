"""The page of a run in a real browser: what it shows, how it answers, and that it asks for nothing.

One browser for the module; a page is opened anew where a test changes what it shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwise.errors import HeadwiseError
from headwise.report.page import write_page
from headwise.schema import ReportConfig
from opened_page import (
    UPDATES,
    Opened,
    analyze,
    needs_browser,
    observed,
    sharp_runs,
    started_browser,
)

pytestmark = pytest.mark.slow

FIRST = "Hund sieht Haus"
SENTENCES = [
    FIRST,
    "Kind <script>window.hacked = 1</script> \"kennt\" 'Auto' & <b>Baum</b>",
    "كلب يرى البيت 🙂🏳️‍🌈",
    "Hund" * 20,
    "Katze findet <img src=x onerror='window.hacked=1'> Baum",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return sharp_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def page_file(runs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = tmp_path_factory.mktemp("text") / "own.de"
    text.write_text("".join(f"{line}\tdog sees house\n" for line in SENTENCES), encoding="utf-8")
    config = ReportConfig(run=str(runs[0]), page=True, sentences=str(text), device="cpu")
    return write_page(config, analyze)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from started_browser()


@pytest.fixture(scope="module")
def desktop(browser: Any, page_file: Path) -> Iterator[Opened]:
    found = Opened(browser, page_file, viewport={"width": 1280, "height": 900})
    found.page.wait_for_selector(".chart.curve .main-svg")
    yield found
    found.context.close()


@pytest.fixture
def opened(desktop: Opened) -> Opened:
    """The page as it is when it is opened, whatever was done with it before."""
    desktop.page.select_option("#measure", "alpha")
    desktop.page.locator("#update").fill(str(len(UPDATES)))
    desktop.page.fill("#search", "")
    desktop.page.locator("#sentences button").first.click()
    return desktop


@needs_browser
def test_it_opens_without_complaint_and_asks_for_nothing(opened: Opened, page_file: Path) -> None:
    assert opened.complaints == []
    assert opened.requests == [page_file.as_uri(), "data:,"] or opened.requests == [
        page_file.as_uri()
    ]
    assert opened.page.locator(".chart.alpha .main-svg").count() >= 3
    assert "alpha_entmax, scaling length on files De→En" in opened.page.inner_text("h1")
    assert "nrefs:1|case:mixed" in opened.page.inner_text(".signature")


@needs_browser
def test_text_that_looks_like_markup_is_shown_as_it_is(opened: Opened) -> None:
    shown = opened.page.locator("#sentences bdi").all_text_contents()
    assert shown == SENTENCES
    for place in range(len(SENTENCES)):
        opened.page.locator("#sentences button").nth(place).click()
        assert opened.page.locator("#texts dd").first.text_content() == SENTENCES[place]
        assert opened.page.locator("#sentences img, #texts img, #maps img").count() == 0
    assert opened.page.evaluate("window.hacked") is None
    assert opened.complaints == []
    # the longest word stays inside of its column
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@needs_browser
def test_ink_is_where_the_models_weights_are_not_zero(
    opened: Opened, runs: tuple[Path, Path]
) -> None:
    n_zeros = 0
    found = observed(runs[0], FIRST)
    for site, layer, head in (("encoder_self", 2, 1), ("decoder_self", 1, 2), ("cross", 1, 1)):
        weights_HQK, allowed_HQK = found[site, layer]
        weights, allowed = weights_HQK[head - 1], allowed_HQK[head - 1]
        opened.choose(site, layer, head)
        codes, has_ink = opened.cells()
        assert (has_ink == (weights != 0)).all()
        assert ((codes == 255) == ~allowed).all()
        shown = np.where(has_ink, (codes / 254) ** 2, 0)
        assert np.abs(shown - weights).max() < 0.005
        n_zeros += int(((weights == 0) & allowed).sum())
    assert n_zeros > 0  # else the test has seen no exact zero


@needs_browser
def test_a_search_finds_in_source_reference_and_translation(opened: Opened) -> None:
    shown = opened.page.locator("#sentences li:visible")
    opened.page.fill("#search", "KATZE find")
    assert shown.count() == 1
    assert "Katze findet" in shown.first.inner_text()
    assert opened.page.inner_text("#found") == "1 of 5 sentences"
    opened.page.fill("#search", "katzé")  # whatever the accents
    assert shown.count() >= 1
    opened.page.fill("#search", "dog sees")  # of the references
    assert shown.count() == len(SENTENCES)
    opened.page.fill("#search", "البيت")
    assert shown.count() == 1
    opened.page.fill("#search", "4")  # the number of a line
    assert shown.locator(".number").all_inner_texts() == ["4"]
    opened.page.fill("#search", "no such words")
    assert shown.count() == 0
    assert opened.page.inner_text("#found") == (
        "none of the 5 sentences on this page; n_sentences= and sentences=FILE show others"
    )


@needs_browser
def test_the_slider_takes_the_heads_through_training(opened: Opened) -> None:
    cell = opened.head("cross", 1, 2)
    slider = opened.page.locator("#update")
    colours = {}
    for update, alpha in UPDATES.items():
        slider.fill(str(list(UPDATES).index(update)))
        assert opened.page.inner_text("#update-shown") == f"update {update}"
        assert cell.inner_text() == f"{alpha:.2f}"
        colours[update] = cell.evaluate("(cell) => cell.style.background")
    assert colours[100] != colours[200]
    assert "does not move the attention below" in opened.page.inner_text(".slider")
    slider.fill(str(len(UPDATES)))  # the weights shown have the α of the checkpoint
    assert cell.inner_text() not in [f"{alpha:.2f}" for alpha in UPDATES.values()]
    opened.page.select_option("#measure", "confidence")  # of no record: nothing to slide over
    assert slider.is_disabled()


@needs_browser
def test_what_an_attention_reports_itself_is_a_measure_too(opened: Opened) -> None:
    opened.page.select_option("#measure", "scale_gamma")
    shown = opened.page.inner_text("#legend")
    assert "scale gamma" in shown
    assert "-1.95" in shown, "the scale begins at the lowest value there is"
    slider = opened.page.locator("#update")
    slider.fill("0")
    cells = [opened.head("cross", 1, head) for head in (1, 2)]
    assert [cell.inner_text() for cell in cells] == ["-1.05", "1.05"]
    colours = [cell.evaluate("(cell) => cell.style.background") for cell in cells]
    assert colours[0] != colours[1]


@needs_browser
def test_the_keyboard_reaches_a_head_and_its_numbers(
    opened: Opened, runs: tuple[Path, Path]
) -> None:
    page = opened.page
    grid = page.locator("table.heads").first
    assert grid.locator("td[tabindex]").count() == 1  # one tab stop a grid
    grid.locator("td[tabindex]").focus()
    for key in ("Home", "ArrowUp", "ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector('table.weights[aria-label*="layer 2, head 2"]')
    chosen = opened.head("encoder_self", 2, 2)
    assert chosen.get_attribute("aria-selected") == "true"
    assert "layer 2, head 2: α" in str(chosen.get_attribute("aria-label"))
    page.locator("table.weights td[tabindex]").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    weights_HQK, _ = observed(runs[0], FIRST)["encoder_self", 2]
    weight = float(weights_HQK[1][1, -1])
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    value = label.rsplit(": ", 1)[1]
    if weight == 0:
        assert value == "exactly 0"
    else:
        assert float(value.removeprefix("below ")) == pytest.approx(weight, abs=0.01)
    page.locator("#tip").wait_for(state="visible")
    assert value in page.inner_text("#tip")


@needs_browser
def test_scrolling_beneath_a_pointer_at_rest_leaves_the_keyboard_s_tip(opened: Opened) -> None:
    page, cells = opened.page, opened.page.locator("table.weights td[data-code]")
    cells.nth(0).scroll_into_view_if_needed()
    cells.nth(2).hover()
    tip = page.inner_text("#tip")
    assert tip == told(cells.nth(2))
    cells.nth(0).focus()
    assert page.inner_text("#tip") == told(cells.nth(0)) != tip
    height = cells.nth(0).bounding_box()["height"]
    for times in (1, -1, 20):  # onto the next row, back, and away from the matrix
        page.evaluate("(by) => scrollBy({ top: by, behavior: 'instant' })", times * height)
        page.wait_for_timeout(200)  # the browser's own moves of the mouse come in between
        assert page.inner_text("#tip") == told(cells.nth(0))


@needs_browser
def test_the_mouse_s_tip_tells_of_what_is_beneath_it(opened: Opened) -> None:
    page, cells = opened.page, opened.page.locator("table.weights td[data-code]")
    cells.nth(0).scroll_into_view_if_needed()
    n_columns = page.locator("table.weights tbody tr").first.locator("td").count()
    cells.nth(2).hover()
    box = cells.nth(2).bounding_box()
    page.evaluate("(by) => scrollBy({ top: by, behavior: 'instant' })", box["height"])
    page.wait_for_timeout(200)
    below = cells.nth(2 + n_columns)
    assert page.inner_text("#tip") == told(below)
    cells.nth(0).focus()
    assert page.inner_text("#tip") == told(cells.nth(0))
    page.mouse.move(box["x"] + 5, box["y"] + 5)  # within the cell that it is in
    assert page.inner_text("#tip") == told(below)
    page.mouse.move(2, 2)
    assert page.locator("#tip").is_hidden()


def told(cell: Any) -> str:
    """What a tip says of a weight, by its label: the weight first."""
    pieces, weight = str(cell.get_attribute("aria-label")).rsplit(": ", 1)
    return f"{weight} {pieces.replace(' to ', ' → ')}"


@needs_browser
def test_a_phone_needs_no_sideways_scrolling(browser: Any, page_file: Path) -> None:
    opened = Opened(browser, page_file, viewport={"width": 360, "height": 740})
    opened.page.wait_for_selector(".chart.curve .main-svg")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
    opened.page.locator("#sentences button").nth(3).click()  # the longest word
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 360
    opened.context.close()


@needs_browser
def test_in_the_dark_all_colours_change_and_scales_stay_monotone(
    browser: Any, page_file: Path
) -> None:
    opened = Opened(browser, page_file, viewport={"width": 1280, "height": 900})
    opened.page.wait_for_selector(".chart.curve .main-svg")
    seen = """() => ({
      paper: getComputedStyle(document.body).backgroundColor,
      head: document.querySelector("table.heads td")?.style.background,
      ink: document.querySelector("table.weights td.ink")?.style.background,
      line: document.querySelector(".chart.alpha .lines path")?.style.stroke,
      tick: document.querySelector(".chart .xtick text")?.style.fill,
    })"""
    light = opened.page.evaluate(seen)
    for scheme in ("light", "dark"):
        opened.page.emulate_media(color_scheme=scheme)
        for scale in ("scaleColour", "inkColour"):
            bytes_of = opened.page.evaluate(
                f"asBytes([...Array(21).keys()].map((place) => {scale}(place / 20)))"
            )
            lightness = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in bytes_of]
            assert lightness == sorted(lightness, reverse=scheme == "light")
            assert abs(lightness[0] - lightness[-1]) > 100
    # the weights are drawn anew and the charts in a later frame (the page's policy bars the eval
    # that Playwright's own waiting is made of)
    assert all(light.values())
    for _ in range(300):
        dark = opened.page.evaluate(seen)
        if all(dark.get(name) not in (None, light[name]) for name in light):
            break
        opened.page.wait_for_timeout(50)
    assert {name for name in light if dark.get(name) in (None, light[name])} == set()
    opened.context.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compare": "SAME"}, "compare=.* is the run itself"),
        ({"n_sentences": 0}, "n_sentences must be at least 1"),
        ({"output": "page.txt"}, "output=page.txt must be an html file"),
        ({"output": "nowhere/page.html"}, "there is no folder nowhere"),
        ({"sentences": "nowhere.de"}, "there is no file sentences=nowhere.de"),
    ],
)
def test_what_cannot_be_is_refused(
    runs: tuple[Path, Path], changes: dict[str, Any], message: str
) -> None:
    given = {key: str(runs[0]) if value == "SAME" else value for key, value in changes.items()}
    with pytest.raises(HeadwiseError, match=message):
        write_page(ReportConfig(**{"run": str(runs[0]), "page": True, **given}), analyze)
