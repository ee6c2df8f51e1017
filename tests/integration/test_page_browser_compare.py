"""The page of two runs in a real browser, and the ways to a head, a measure and a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwise.analysis.tables import FOLDER, HEADS
from headwise.report.page import write_page
from headwise.schema import ReportConfig
from opened_page import Opened, analyze, needs_browser, observed, sharp_runs, started_browser

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return sharp_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def compared(runs: tuple[Path, Path]) -> Path:
    config = ReportConfig(run=str(runs[0]), page=True, compare=str(runs[1]), n_sentences=2)
    return write_page(config, analyze)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from started_browser()


@pytest.fixture
def opened(browser: Any, compared: Path) -> Iterator[Opened]:
    found = Opened(browser, compared, viewport={"width": 1440, "height": 900})
    yield found
    found.context.close()


@needs_browser
def test_two_runs_stand_side_by_side_on_one_sentence(
    opened: Opened, runs: tuple[Path, Path]
) -> None:
    page = opened.page
    assert page.locator("h1").all_inner_texts() == [
        "alpha_entmax, scaling length on files De→En",
        "softmax on files De→En",
    ]
    assert page.locator(".scores").count() == 2
    assert page.inner_text("#found") == "2 of 5 sentences of test_a"
    page.evaluate("Object.assign(data, { n_lines: 1000, n_questions: 1 })")
    page.fill("#search", "no such words")
    page.fill("#search", "")
    asked = "2 of 1,000 sentences of test_a, some of them questions"
    assert page.inner_text("#found") == asked
    opened.choose("cross", 1, 2)
    for run in (0, 1):
        assert opened.head("cross", 1, 2, run).get_attribute("aria-selected") == "true"
    labels = [t.get_attribute("aria-label") for t in page.locator("table.weights").all()]
    assert labels == [
        f"Weights of cross-attention, layer 1, head 2, {name}"
        for name in ("alpha_entmax, scaling length", "softmax")
    ]
    left, right = (page.locator("figure.map").nth(run) for run in (0, 1))
    assert left.locator("td.ink").count() > 0
    # a weight has ink, be it ever so little
    weights_HQK, _ = observed(runs[1], page.locator("#texts dd").first.inner_text())["cross", 1]
    weights = weights_HQK[1]
    assert ((weights > 0) & (weights < 1e-4)).any()
    assert right.locator("td.ink").count() == (weights != 0).sum()
    opened.choose("encoder_self", 2, 1)
    assert "This run has no such head." in right.inner_text()
    assert left.locator("table.weights").count() == 1
    assert opened.complaints == []


@needs_browser
def test_a_view_can_be_linked_to(browser: Any, compared: Path) -> None:
    fragment = "#sentence=2&head=cross.1.2&by=density"
    opened = Opened(browser, compared, fragment, viewport={"width": 1280, "height": 900})
    page = opened.page
    assert opened.head("cross", 1, 2).get_attribute("aria-selected") == "true"
    assert page.locator("#sentences button").nth(1).get_attribute("aria-current") == "true"
    assert page.input_value("#measure") == "density"
    page.select_option("#layer", "1")
    page.select_option("#site", "encoder_self")
    page.wait_for_selector('table.weights[aria-label*="encoder self-attention, layer 1, head 2"]')
    assert page.evaluate("location.hash") == "#sentence=2&head=encoder_self.1.2&by=density"
    # an address that is changed in the open page is followed
    page.evaluate("location.hash = '#sentence=1&head=cross.1.1&by=entropy'")
    page.wait_for_selector('table.weights[aria-label*="cross-attention, layer 1, head 1"]')
    assert opened.head("cross", 1, 1).get_attribute("aria-selected") == "true"
    assert page.locator("#sentences button").first.get_attribute("aria-current") == "true"
    assert page.input_value("#measure") == "entropy"
    assert "entropy" in page.inner_text("#legend")
    # the link past the heads leaves the choice as it is
    page.evaluate("location.hash = '#attention'")
    page.wait_for_timeout(50)
    assert opened.head("cross", 1, 1).get_attribute("aria-selected") == "true"
    # what the page does not have is not asked for
    page.goto("about:blank")
    page.goto(compared.as_uri() + "#sentence=77&head=nowhere.9.9&by=magic")
    page.wait_for_selector("table.weights")
    assert page.locator('#grids .run:first-child td[aria-selected="true"]').count() == 1
    assert opened.complaints == []
    opened.context.close()


@needs_browser
def test_heads_can_be_coloured_by_what_was_measured_of_one_at_least(
    opened: Opened, runs: tuple[Path, Path]
) -> None:
    rows = HEADS.read(runs[0] / FOLDER)
    names = {
        "question_weight": "weight on ? at question words",
        "previous_weight": "weight on the token before",
        "next_weight": "weight on the token behind",
        "merge_score": "merge score",
    }
    known = {name for name in names if any(row[name] is not None for row in rows)}
    assert "previous_weight" in known
    options = {
        str(option.get_attribute("value")): option.inner_text()
        for option in opened.page.locator("#measure option").all()
    }
    assert options.keys() & names.keys() == known
    assert all(options[name] == names[name] for name in known)
    opened.page.select_option("#measure", "previous_weight")
    row = next(row for row in rows if row["previous_weight"] is not None)
    shown = opened.head(row["site"], row["layer"], row["head"]).inner_text()
    assert float(shown) == pytest.approx(row["previous_weight"], abs=0.0051)
    assert opened.page.locator("#legend > span").nth(2).inner_text() == "1"


@needs_browser
def test_a_head_in_the_findings_chooses_it(opened: Opened) -> None:
    opened.page.locator("summary", has_text="All findings").first.click()
    rows = opened.page.locator(".findings tr", has_text="encoder self-attention")
    link = rows.locator("button.link", has_text="layer 2 head").first
    head = int(link.inner_text().split()[-1])
    opened.choose("cross", 1, 1)
    link.click()
    chosen = opened.head("encoder_self", 2, head)
    assert chosen.get_attribute("aria-selected") == "true"
    opened.page.wait_for_selector(f'table.weights[aria-label*="layer 2, head {head}"]')
    opened.page.locator("summary", has_text="All findings").first.click()
    assert opened.complaints == []


@needs_browser
def test_a_matrix_larger_than_its_place_says_so(opened: Opened) -> None:
    page = opened.page
    maps = page.locator("figure.map")
    tops = "() => [...document.querySelectorAll('figure.map')].map((m) => m.offsetTop)"
    assert len(set(page.evaluate(tops))) == 1  # side by side
    assert page.locator(".cut:visible").count() == 0
    # as many columns as fit the page and not half of it
    wide = """(n) => {
      for (const row of document.querySelector("table.weights").rows)
        while (row.cells.length <= n) row.append(row.lastElementChild.cloneNode(true));
      document.querySelector("table.weights").style.setProperty("--columns", n);
      sizeMaps();
    }"""
    page.evaluate(wide, 50)
    assert len(set(page.evaluate(tops))) == 2  # one below the other
    assert maps.first.locator(".cut:visible").count() == 0
    page.evaluate(wide, 120)
    note = maps.first.locator(".cut").inner_text()
    assert "goes on to the right" in note
    assert "120 columns" in note
    assert maps.nth(1).locator(".cut:visible").count() == 0


@needs_browser
def test_matrices_of_two_runs_scroll_together(opened: Opened) -> None:
    wide = """() => {
      for (const table of document.querySelectorAll("table.weights")) {
        for (const row of table.rows)
          while (row.cells.length <= 150) row.append(row.lastElementChild.cloneNode(true));
        table.style.setProperty("--columns", 150);
      }
      sizeMaps();
    }"""
    opened.page.evaluate(wide)
    places = "() => [...document.querySelectorAll('#maps .scroll')].map((s) => s.scrollLeft)"
    for number, pixels in ((0, 300), (1, 100)):  # either of them leads
        frame = opened.page.locator("#maps .scroll").nth(number)
        frame.evaluate("(frame, to) => (frame.scrollLeft = to)", pixels)
        opened.page.wait_for_function(f"() => ({places})().every((x) => x === {pixels})")
        opened.page.wait_for_timeout(200)
        assert opened.page.evaluate(places) == [pixels] * 2


def test_the_page_lies_in_the_run_folder(compared: Path, runs: tuple[Path, Path]) -> None:
    assert compared.parent == runs[0]
    assert compared.name == f"page-{runs[1].name}.html"
