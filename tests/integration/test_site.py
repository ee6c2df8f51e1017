"""The guide as a site, opened from a disk: it needs no network."""

import re
import subprocess
import sys

import pytest

from guide import DOCS, ROOT
from opened_page import OpenedPage, needs_browser, started_browser

pytestmark = pytest.mark.slow

LIVE = "live/heads.html"
MAX_LIVE = 1_500_000  # bytes
# Addresses that a browser fetches without a click.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\s(?:src|srcset|data)=\"([^\"]*)"
)
NO_FETCH = re.compile(r'\srel="(?:canonical|next|prev|alternate)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="mkdocs-material is in the docs extra")
    built = tmp_path_factory.mktemp("guide") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return built


@pytest.fixture(scope="module")
def browser():
    yield from started_browser()


def fetched_by(text):
    """Addresses that a page makes a browser fetch."""
    links = [link for link in re.findall(r"<link\b[^>]*>", text) if not NO_FETCH.search(link)]
    styles = re.findall(r'\sstyle="[^"]*url\(([^")]*)', text)
    found = FETCHED.findall(text) + styles + re.findall(r'\shref="([^"]*)"', "".join(links))
    return [address for address in found if not address.startswith("data:")]


def is_outside(address):
    return re.match(r"['\"]?\s*(?:[a-z]+:)?//", address) is not None


def test_site_needs_no_network(site):
    pages = sorted(site.rglob("*.html"))
    assert {page.stem for page in pages} >= {path.stem for path in DOCS.glob("*.md")}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        fetched = fetched_by(text)
        assert fetched or page == site / LIVE, page.name
        assert not [address for address in fetched if is_outside(address)], page.name
        for address in fetched:
            path = re.split(r"[?#]", address)[0]
            target = site / path[1:] if path.startswith("/") else page.parent / path
            assert not path or target.is_file(), f"{page.name}: {address}"
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        urls = re.findall(r"url\(([^)]*)", text) + re.findall(r"@import\s+([\"'][^\"']*)", text)
        assert not [url for url in urls if is_outside(url)], style.name


@needs_browser
def test_search_works_without_a_server(site, browser):
    opened = OpenedPage(browser, site / "index.html", ".md-search__input")
    opened.page.click(".md-search__input")
    opened.page.keyboard.type("trainer.max_updates")
    hits = opened.page.locator(".md-search-result__link")
    hits.first.wait_for()
    addresses = [str(hit.get_attribute("href")) for hit in hits.all()]
    assert any(address.startswith((site / "settings.html").as_uri()) for address in addresses)
    assert opened.console_messages == []
    assert {url.split(":")[0] for url in opened.requests} == {"file"}
    opened.context.close()


@needs_browser
def test_live_page_shows_the_heads_of_a_trained_model(site, browser):
    assert (site / LIVE).stat().st_size <= MAX_LIVE
    assert (DOCS / "live/heads.json").stat().st_size <= MAX_LIVE
    for page in (DOCS / "index.md", ROOT / "README.md"):
        assert "live-page.md)" in page.read_text("utf-8")
    inside = OpenedPage(browser, site / "live-page.html", "iframe.live")
    inside.page.frame_locator("iframe.live").locator("table.weights").first.wait_for()
    inside.context.close()
    opened = OpenedPage(browser, site / LIVE)
    opened.choose("cross", 2, 3)
    weights, has_colour = opened.cells()
    assert has_colour.any()
    assert (weights == 0).any()
    assert ((weights != 0) == has_colour).all()
    assert opened.console_messages == []
    opened.context.close()
