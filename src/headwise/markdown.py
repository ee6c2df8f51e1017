"""Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


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
