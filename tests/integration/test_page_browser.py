"""The page of runs in a real browser: its content, its interaction, and no requests.

The module shares one browser and two pages, which are reset before each test.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from headwise.commands.page import page as write_page
from headwise.config.commands import PageConfig
from headwise.page.document import page_text
from opened_page import (
    OpenedPage,
    needs_browser,
    observed_weights,
    sharp_runs,
    started_browser,
)

pytestmark = [pytest.mark.slow, needs_browser]

Runs = tuple[Path, Path]
FIRST = "Hund sieht Haus"
SENTENCES = [
    FIRST,
    "Kind <script>window.hacked = 1</script> \"kennt\" 'Auto' & <b>Baum</b>",
    "كلب يرى البيت 🙂🏳️‍🌈",
    "Hund" * 20,
    "Katze findet <img src=x onerror='window.hacked=1'> Baum",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return sharp_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def page_file(runs, tmp_path_factory):
    text = tmp_path_factory.mktemp("text") / "own.de"
    text.write_text("".join(f"{line}\tdog sees house\n" for line in SENTENCES), encoding="utf-8")
    config = PageConfig(run=str(runs[0]), sentences=str(text), device="cpu")
    return write_page(config)


@pytest.fixture(scope="module")
def compared_file(runs):
    config = PageConfig(run=str(runs[0]), other=str(runs[1]), n_sentences=2)
    return write_page(config)


@pytest.fixture(scope="module")
def browser():
    yield from started_browser()


@pytest.fixture(scope="module")
def desktop(browser, page_file):
    opened_page = OpenedPage(browser, page_file, viewport={"width": 1280, "height": 900})
    yield opened_page
    opened_page.context.close()


@pytest.fixture
def opened_page(desktop):
    """The page in its initial state."""
    desktop.page.select_option("#measure", "alpha")
    desktop.page.select_option("#item", "0")
    return desktop


@pytest.fixture
def compared_page(browser, compared_file):
    opened_page = OpenedPage(browser, compared_file, viewport={"width": 1440, "height": 900})
    yield opened_page
    opened_page.context.close()


def test_saved_record_gives_the_same_page(compared_file, runs, tmp_path):
    output = str(tmp_path / "page.json")
    write_page(PageConfig(run=str(runs[0]), other=str(runs[1]), n_sentences=2, output=output))
    record = json.loads(Path(output).read_text(encoding="utf-8"))
    assert page_text(record) == compared_file.read_text(encoding="utf-8")


def test_page_opens_without_errors_and_requests(opened_page, page_file):
    assert opened_page.console_messages == []
    assert {url for url in opened_page.requests if not url.startswith("data:")} == {
        page_file.as_uri()
    }
    assert "alpha_entmax, scaling length on files De→En" in opened_page.page.inner_text("h1")
    assert "nrefs:1|case:mixed" in opened_page.page.inner_text(".signature")
    pictures = opened_page.page.locator("#pictures img")
    titles = [str(image.get_attribute("alt")) for image in pictures.all()]
    kinds = (
        "α of the heads over training",
        "BLEU (greedy) and loss per target token",
        "Density",
        "Diversity",
    )
    for kind in kinds:
        assert any(title.startswith(kind) for title in titles), kind
    sizes = pictures.evaluate_all("(all) => all.map((image) => image.naturalWidth)")
    assert min(sizes) > 100  # all are decoded


def test_markup_in_text_is_shown_as_text(opened_page):
    options = opened_page.page.locator("#item option").all_text_contents()
    assert options == [f"{line} {text}" for line, text in enumerate(SENTENCES, start=1)]
    for index, text in enumerate(SENTENCES):
        opened_page.page.select_option("#item", str(index))
        assert opened_page.page.locator("#texts dd").first.text_content() == text
        assert opened_page.page.locator("#texts img, #maps img").count() == 0
    assert opened_page.page.evaluate("window.hacked") is None
    assert opened_page.console_messages == []
    # the longest word fits into its column
    assert opened_page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_nonzero_weights_have_a_colour(opened_page, runs):
    n_zeros = 0
    observations = observed_weights(runs[0], FIRST)
    for site, layer, head in (("encoder_self", 2, 1), ("decoder_self", 1, 2), ("cross", 1, 1)):
        weights_HQK, allowed_HQK = observations[site, layer]
        weights, allowed = weights_HQK[head - 1], allowed_HQK[head - 1]
        opened_page.choose(site, layer, head)
        page_weights, has_colour = opened_page.cells()
        assert (has_colour == ((weights != 0) | ~allowed)).all()
        np.testing.assert_allclose(page_weights, np.where(allowed, weights, np.nan), rtol=0.004)
        n_zeros += int(((weights == 0) & allowed).sum())
    assert n_zeros > 0  # else no exact zero was tested


def test_measures_and_heads_are_selected_by_keyboard(opened_page):
    page = opened_page.page
    # statistics of an attention are measures too
    page.select_option("#measure", "scale_gamma")
    assert "scale gamma" in str(opened_page.head("cross", 1, 2).get_attribute("aria-label"))
    page.select_option("#measure", "confidence")
    chosen = opened_page.head("encoder_self", 2, 2)
    assert "layer 2, head 2: confidence" in str(chosen.get_attribute("aria-label"))
    chosen.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector('table.weights[aria-label*="layer 2, head 2"]')
    assert chosen.get_attribute("aria-pressed") == "true"
    page.locator(".overview button").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector('table.weights[aria-label*="layer 2, head 1"]')
    assert page.evaluate("document.activeElement.textContent") == "head 1"


def test_weight_at_the_pointer_is_shown(opened_page, runs):
    opened_page.choose("cross", 1, 1)
    weights_HQK, _ = observed_weights(runs[0], FIRST)["cross", 1]
    line = opened_page.page.locator("#maps output")
    default_text = line.inner_text()
    for row, column in ((0, 0), (0, 2), (1, 1)):
        rows = opened_page.page.locator("table.weights tr + tr")
        rows.nth(row).locator("td").nth(column).hover()
        assert_weight_text(line.inner_text().partition(":")[0], float(weights_HQK[0][row, column]))
    opened_page.page.mouse.move(2, 2)
    assert line.inner_text() == default_text


def assert_weight_text(text, weight):
    """Assert that the text is the rounded weight, or "exactly 0"."""
    assert (text == "exactly 0") == (weight == 0)
    if weight:
        assert float(text) == pytest.approx(weight, abs=0.01)


def test_page_fits_a_phone_without_horizontal_scrolling(browser, page_file):
    opened_page = OpenedPage(browser, page_file, viewport={"width": 360, "height": 740})
    assert opened_page.page.evaluate("document.documentElement.scrollWidth") <= 360
    opened_page.page.select_option("#item", "3")  # the longest word
    assert opened_page.page.evaluate("document.documentElement.scrollWidth") <= 360
    opened_page.context.close()


def test_dark_colours_differ_and_stay_monotone(browser, page_file):
    opened_page = OpenedPage(browser, page_file, viewport={"width": 1280, "height": 900})
    colours_of_schemes = []
    for scheme in ("light", "dark"):
        opened_page.page.emulate_media(color_scheme=scheme)
        colours = opened_page.page.evaluate(
            """() => [...Array(21).keys()].map((place) => {
                 const cell = make("i", { class: "shade", style: `--share: ${place / 20}` });
                 document.body.append(cell);
                 return getComputedStyle(cell).backgroundColor;
               })"""
        )
        lightness = [float(colour.removeprefix("oklch(").split()[0]) for colour in colours]
        assert lightness == sorted(lightness, reverse=scheme == "light")
        assert abs(lightness[0] - lightness[-1]) > 0.4
        background = opened_page.page.evaluate("getComputedStyle(document.body).backgroundColor")
        colours_of_schemes.append([background, colours[0], colours[-1]])
    assert all(light != dark for light, dark in zip(*colours_of_schemes, strict=True))
    opened_page.context.close()


# -- two runs -------------------------------------------------------------------------------------


def test_two_runs_are_compared(compared_page, runs, compared_file):
    page = compared_page.page
    assert (compared_file.parent, compared_file.name) == (runs[0], f"page-{runs[1].name}.html")
    assert page.locator("h1").all_inner_texts() == [
        "alpha_entmax, scaling length on files De→En",
        "softmax on files De→En",
    ]
    assert page.inner_text("#origin") == "2 of 5 sentences of test_a"
    compared_page.choose("cross", 1, 2)
    for run in (0, 1):
        assert compared_page.head("cross", 1, 2, run).get_attribute("aria-pressed") == "true"
    labels = [c.get_attribute("aria-label") for c in page.locator("table.weights").all()]
    assert labels == [
        f"Weights of cross-attention, layer 1, head 2, {name}"
        for name in ("alpha_entmax, scaling length", "softmax")
    ]
    # every non-zero weight has a colour, however small
    weights_HQK, _ = observed_weights(runs[1], page.locator("#texts dd").first.inner_text())[
        "cross", 1
    ]
    weights = weights_HQK[1]
    assert ((weights > 0) & (weights < 1e-4)).any()
    _, has_colour = compared_page.cells(run=1)
    assert (has_colour == (weights != 0)).all()
    compared_page.choose("encoder_self", 2, 1)
    assert "This run has no such head." in page.locator("figure.map").nth(1).inner_text()
    assert page.locator("table.weights").count() == 1
    assert compared_page.console_messages == []


def test_head_in_the_findings_is_a_link_to_it(compared_page):
    compared_page.page.locator("summary", has_text="All findings").first.click()
    rows = compared_page.page.locator(".findings tr", has_text="encoder self-attention")
    link = rows.locator("button.link", has_text="layer 2 head").first
    head = int(link.inner_text().split()[-1])
    compared_page.choose("cross", 1, 1)
    link.click()
    chosen = compared_page.head("encoder_self", 2, head)
    assert chosen.get_attribute("aria-pressed") == "true"
    compared_page.page.wait_for_selector(f'table.weights[aria-label*="layer 2, head {head}"]')
    compared_page.page.locator("summary", has_text="All findings").first.click()
    assert compared_page.console_messages == []
