"""The guide: every command of it runs, prints what it shows, and the built site stands alone."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from guide import DOCS, ROOT, WorkingCopy, blocks_of, inline_overrides, misses
from headwise.config.schema import KINDS
from warm_python import warm_python

PAGES = sorted(
    page.relative_to(DOCS).as_posix() for page in (*DOCS.glob("*.md"), *DOCS.glob("api/*.md"))
)
CHAPTERS = [
    "first-run", "variants", "your-own-variant", "your-own-task", "your-own-data",
    "reproducing-a-paper",
]  # fmt: skip
MOST_MARKS = 2  # a page
# What a browser fetches by itself; a link is followed by the reader.
FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\s(?:src|srcset|data)=\"([^\"]*)"
)
NO_FETCH = re.compile(r'\srel="(?:canonical|next|prev|alternate)"')


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a `warm_python`."""
    with tempfile.TemporaryDirectory(prefix="hw") as folder, warm_python(f"{folder}/s"):
        yield f"{folder}/s"


def test_the_chapters_are_there_and_the_site_lists_every_page() -> None:
    listed = re.findall(r"^ +- .*?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M)
    assert listed[:7] == ["index.md", *(f"{chapter}.md" for chapter in CHAPTERS)]
    assert sorted(listed) == PAGES


def test_links_lead_to_a_page_and_a_heading() -> None:
    for page in (ROOT / "README.md", *(DOCS / name for name in PAGES)):
        text = page.read_text(encoding="utf-8")
        for path, heading in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
            place = page.parent / path if path else page
            assert place.is_file(), f"{page.name}: {path}"
            titles = re.findall(r"^#+ (.+)$", place.read_text("utf-8"), re.M) if heading else []
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert not heading or heading in anchors, f"{page.name}: {path}#{heading}"


def test_the_reference_has_what_pages_import() -> None:
    """Names that it has and the code does not are errors of the strict build."""
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


def test_the_demo_has_one_figure() -> None:
    told = re.search(r"`make demo`[^.]*BLEU ([\d.]+)", (ROOT / "README.md").read_text("utf-8"))
    shown = re.search(r"^test +bleu +([\d.]+) ", (DOCS / "first-run.md").read_text("utf-8"), re.M)
    assert told
    assert shown
    assert told[1] == shown[1]


@pytest.mark.parametrize("name", PAGES)
def test_what_is_not_run_is_little_and_has_a_reason(name: str) -> None:
    marked = [block for block in blocks_of(DOCS / name) if block.not_run is not None]
    assert len(marked) <= MOST_MARKS, [block.line for block in marked]
    for block in marked:
        assert len(block.not_run.split()) > 2, f"{name}:{block.line}: a reason, please"  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in PAGES if any(block.runs for block in blocks_of(DOCS / name))]
)
def test_commands_run_and_print_what_pages_show(name: str, address: str, tmp_path: Path) -> None:
    blocks = blocks_of(DOCS / name)
    printed = WorkingCopy(tmp_path / "headwise", address).run(blocks)
    for done in printed:
        assert done.ended, f"{name}:{done.block.line} failed:\n{done.block.text}\n{done.text}"
    assert [done.block for done in printed] == [block for block in blocks if block.runs]
    told = {done.block.line: done.text for done in printed}
    for before, shown in itertools.pairwise(blocks):
        if shown.language == "text" and before.line in told:
            missing = misses(shown.text, told[before.line], shown.exact)
            assert not missing, f"{name}:{shown.line}: {missing} not in\n{told[before.line]}"


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_every_key_that_a_page_names_is_one(name: str, make: Any) -> None:
    for overrides in inline_overrides(DOCS / name):
        first = re.split(r"[.@=]", overrides[0])[0]
        kind = next((k for k in KINDS if first in {f.name for f in fields(KINDS[k])}), "train")
        make(overrides, kind)


def test_what_a_page_shows_is_compared_loosely_and_in_order() -> None:
    told = "update 4/4, loss 5.21\n test   bleu  0.03   nrefs:1|x\nall done\n"
    assert misses("test bleu 87.63 …\n…\nall done\n", told) == []
    assert misses("all done\ntest bleu 87.63 …\n", told) == ["test bleu 87.63 …"]
    assert misses("test chrf 87.63 …\n", told) == ["test chrf 87.63 …"]
    assert misses("bleu\n", told) == ["bleu"]
    assert misses("test bleu 0.03 …\n", told, exact=True) == []
    assert misses("test bleu 0.04 …\n", told, exact=True) == ["test bleu 0.04 …"]


def fetched_by(text: str) -> list[str]:
    """Addresses that a page makes a browser fetch."""
    links = [link for link in re.findall(r"<link\b[^>]*>", text) if not NO_FETCH.search(link)]
    styles = re.findall(r'\sstyle="[^"]*url\(([^")]*)', text)
    return FETCHED.findall(text) + styles + re.findall(r'\shref="([^"]*)"', "".join(links))


def is_outside(address: str) -> bool:
    return re.match(r"['\"]?\s*(?:[a-z]+:)?//", address) is not None


@pytest.mark.slow
def test_the_site_stands_alone(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is in the docs extra")
    built = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    pages = sorted(built.rglob("*.html"))
    assert {page.stem for page in pages} >= {"index", *CHAPTERS}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        fetched = fetched_by(text)
        assert fetched, page.name
        assert not [address for address in fetched if is_outside(address)], page.name
        for address in fetched:
            path = re.split(r"[?#]", address)[0]
            place = built / path[1:] if path.startswith("/") else page.parent / path
            assert not path or place.is_file(), f"{page.name}: {address}"
    for style in built.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        found = re.findall(r"url\(([^)]*)", text) + re.findall(r"@import\s+([\"'][^\"']*)", text)
        assert not [address for address in found if is_outside(address)], style.name


def test_brackets_are_quoted_as_zsh_needs_it() -> None:
    pages = [ROOT / "README.md", *DOCS.glob("*.md"), *(ROOT / "conf").rglob("*.yaml")]
    for page in pages:
        for line in page.read_text(encoding="utf-8").splitlines():
            command = re.match(r"[\s#>]*((?:usage: )?(?:python|headwise|torchrun) .*)", line)
            words = command[1].split(" #")[0].split() if command else []
            assert not [word for word in words if re.search(r"^[^'\"]*=\[", word)], (page, line)
