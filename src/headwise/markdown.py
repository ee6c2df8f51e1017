"""Markdown tables, and generated parts of a page."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: bool = True) -> str:
    """Return a Markdown table whose first column is text.

    Args:
        head: one text per column; may be empty.
        rows: cell texts.
        numeric: whether the other columns are numbers, aligned right.
    """
    marks = ["---", *("---:" if numeric else "---" for _ in head[1:])]
    lines = [[_cell(text) for text in line] for line in (head, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], marks, *lines[1:]))


def _cell(text: str) -> str:
    """Escape text for a cell: no line break, no column separator."""
    return re.sub(r"\s+", " ", text).replace("|", r"\|")


def with_part(text: str, name: str, content: str) -> str:
    """Return `text` with `content` between its markers `<!-- name -->` and `<!-- /name -->`."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = text.partition(begin)
    _, marker, after = rest.partition(end)
    if not marker:
        raise SystemExit(f"no {begin} … {end} in the file")
    return f"{before}{begin}\n{content}\n{end}{after}"


def print_or_write(about: str, parts: Mapping[str, Callable[[], str]]) -> None:
    """Command line of a generator of page parts: print them, or update them in a file."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--write", type=Path, metavar="FILE", help="update it in this file")
    path: Path | None = parser.parse_args().write
    if path is None:
        print("\n\n".join(content() for content in parts.values()))
        return
    text = path.read_text(encoding="utf-8")
    for name, content in parts.items():
        text = with_part(text, name, content())
    path.write_text(text, encoding="utf-8")
