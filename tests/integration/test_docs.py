"""The docs: commands run and print the shown output; the site, opened from a disk."""

import itertools
import re
import subprocess
import sys
import tempfile
from dataclasses import fields

import pytest

from guide import (
    DOCS,
    NOT_RUN,
    ROOT,
    SMALL_RUNS,
    Block,
    WorkingCopy,
    blocks_of,
    inline_commands,
    inline_overrides,
    missing_lines,
    runnable,
)
from headwise.config.register import KINDS
from opened_page import OpenedPage, needs_browser, started_browser
from warm_python import warm_python

PAGES = sorted(
    page.relative_to(DOCS).as_posix() for page in (*DOCS.glob("*.md"), *DOCS.glob("api/*.md"))
)
CHAPTERS = [
    "first-run", "live-page", "terms", "troubleshooting", "slow-runs", "translation",
    "beyond-translation", "encoders", "sequences", "variants", "your-own-data", "your-own-task",
    "your-own-variant", "in-your-own-model",
]  # fmt: skip
MAX_SKIPPED = 2  # blocks per page


@pytest.fixture(scope="module")
def address():
    """The address of a `warm_python` server."""
    with tempfile.TemporaryDirectory(prefix="hw") as folder, warm_python(f"{folder}/s"):
        yield f"{folder}/s"


def test_nav_lists_every_page():
    listed = re.findall(r"^ +- .*?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M)
    assert listed[: len(CHAPTERS) + 1] == ["index.md", *(f"{chapter}.md" for chapter in CHAPTERS)]
    assert sorted(listed) == PAGES


def test_rows_on_sameness_name_tests():
    named = set(re.findall(r"`(test_\w+)`", (DOCS / "sameness.md").read_text("utf-8")))
    files = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    assert named <= {name for text in files for name in re.findall(r"def (test_\w+)", text)}


def test_links_have_page_and_heading():
    for page in (ROOT / "README.md", *(DOCS / name for name in PAGES)):
        text = page.read_text(encoding="utf-8")
        for path, heading in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
            target = page.parent / path if path else page
            assert target.is_file(), f"{page.name}: {path}"
            titles = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.M) if heading else []
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert not heading or heading in anchors, f"{page.name}: {path}#{heading}"


def test_api_reference_lists_imported_names():
    """The strict build rejects names that the code does not have."""
    documented = {
        name
        for page in DOCS.glob("api/*.md")
        for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.M)
    }
    imported = {
        f"{module}.{name}"
        for page in DOCS.glob("*.md")
        for block in blocks_of(page)
        if block.language == "python"
        for module, names in re.findall(r"^from (headwise\.\S+) import (.+)$", block.text, re.M)
        for name in names.split(", ")
    }
    assert imported
    assert imported <= documented, imported - documented


def test_demo_score_is_the_same_on_every_page():
    pages = ROOT / "README.md", DOCS / "first-run.md", DOCS / "results.md"
    scores = [
        re.findall(r"^(?:test +bleu|.*corpus: BLEU) +([\d.]+) ", page.read_text("utf-8"), re.M)
        for page in pages
    ]
    assert scores == [scores[0]] * 3
    assert len(scores[0]) == 1


@pytest.mark.parametrize("name", PAGES)
def test_skipped_commands_have_reason(name):
    skipped = [block for block in blocks_of(DOCS / name) if block.not_run is not None]
    assert len(skipped) <= MAX_SKIPPED, [block.line for block in skipped]
    for block in skipped:
        assert len(block.not_run.split()) > 2, f"{name}:{block.line}: no reason"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in PAGES if any(block.runs for block in blocks_of(DOCS / name))]
)
def test_commands_run_and_print_the_shown_output(name, address, tmp_path):
    blocks = blocks_of(DOCS / name)
    printed = WorkingCopy(tmp_path / "headwise", address).run(blocks)
    for result in printed:
        assert result.succeeded, (
            f"{name}:{result.block.line} failed:\n{result.block.text}\n{result.output}"
        )
    assert [result.block for result in printed] == [block for block in blocks if block.runs]
    outputs = {result.block.line: result.output for result in printed}
    for before, shown in itertools.pairwise(blocks):
        if shown.language == "text" and before.line in outputs:
            missing = missing_lines(shown.text, outputs[before.line], shown.exact)
            assert not missing, f"{name}:{shown.line}: {missing} not in\n{outputs[before.line]}"


@pytest.mark.slow
def test_commands_of_the_readme_and_within_lines_run(address, tmp_path):
    """On small runs; trainings as dry runs. Others have a reason in NOT_RUN."""
    shown = [c for page in (ROOT / "README.md", *DOCS.glob("*.md")) for c in inline_commands(page)]
    commands = list(dict.fromkeys(c for c in shown if not c.startswith(tuple(NOT_RUN))))
    assert len(commands) > 15
    copy = WorkingCopy(tmp_path / "headwise", address)
    (copy.folder / "results").symlink_to(ROOT / "results")
    texts = [SMALL_RUNS, *(f"{runnable(command)}\n" for command in commands)]
    results = copy.run([Block(0, "sh", None, text, None, exact=False) for text in texts])
    assert results[-1].succeeded, f"{results[-1].block.text}\n{results[-1].output}"
    assert len(results) == len(texts)


@pytest.mark.slow
def test_python_of_the_readme_runs(address, tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", readme, re.M | re.S)
    assert blocks
    shown = [Block(0, "python", None, block, None, exact=False) for block in blocks]
    results = WorkingCopy(tmp_path / "headwise", address).run(shown)
    assert len(results) == len(shown)
    assert results[-1].succeeded, results[-1].output


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_keys_in_pages_exist(name, make):
    for overrides in inline_overrides(DOCS / name):
        first = re.split(r"[.@=]", overrides[0])[0]
        kind = next((k for k in KINDS if first in {f.name for f in fields(KINDS[k])}), "train")
        make(overrides, kind)


def test_missing_lines_compares_in_order():
    printed = "update 4/4, loss 5.21\n test   bleu  0.03   nrefs:1|x\nall done\n"
    assert missing_lines("test bleu 87.63 …\n…\nall done\n", printed) == []
    assert missing_lines("all done\ntest bleu 87.63 …\n", printed) == ["test bleu 87.63 …"]
    assert missing_lines("test chrf 87.63 …\n", printed) == ["test chrf 87.63 …"]
    assert missing_lines("bleu\n", printed) == ["bleu"]
    assert missing_lines("test bleu 0.03 …\n", printed, exact=True) == []
    assert missing_lines("test bleu 0.04 …\n", printed, exact=True) == ["test bleu 0.04 …"]


def test_brackets_are_quoted_for_zsh():
    pages = [ROOT / "README.md", *DOCS.glob("*.md"), *(ROOT / "conf").rglob("*.yaml")]
    for page in pages:
        for line in page.read_text(encoding="utf-8").splitlines():
            command = re.match(r"[\s#>]*((?:usage: )?(?:python|headwise|torchrun) .*)", line)
            words = command[1].split(" #")[0].split() if command else []
            assert not [word for word in words if re.search(r"^[^'\"]*=\[", word)], (page, line)


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


@pytest.mark.slow
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
@pytest.mark.slow
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
@pytest.mark.slow
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
