"""The published tables, made again from the records in `results/`, are equal in every character.

The text of the tables is in `docs/table1/` where the guide shows it whole, else in `tests/golden/`.
After a change of the text that is meant, write the files again:

    WRITE_TABLES=1 .venv/bin/python -m pytest -n 0 tests/integration/test_published_tables.py
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from command_line import CommandLine
from guide import DOCS, ROOT
from headwise.runs.record import archived

pytestmark = pytest.mark.slow

ENCODERS = ("heads=true", "runs=[results/encoder_small,results/how_many_heads,results/mnist]")
LONG = ("heads=true", "runs=[results/correia2019_long]")
# Table -> the other arguments of the command that README.md or a page of docs/ gives for it.
TABLES: dict[str, Sequence[str]] = {
    "five_tasks": (
        "runs=[results/correia2019_long,results/child2019_small,results/encoder_small,results/mnist]",
    ),
    "child2019_small": ("runs=[results/child2019_small]",),
    "correia2019_long": LONG,
    "alpha_settings": LONG,
    "yubert": ENCODERS,
    "fine_tuning": ENCODERS,
    "cls_tokens": ENCODERS,
    "how_many_heads": ENCODERS,
    "repulsion_layers": ENCODERS,
    "repulsion_dropout": ENCODERS,
    "label_fractions": ENCODERS,
}


@functools.cache  # several tables are of the same runs
def read_once(folder: Path, kind: type[Any]) -> list[Any]:
    return [*archived(folder, kind)]


def published(name: str) -> Path:
    shown_whole = DOCS / "table1" / name
    return shown_whole if shown_whole.is_file() else ROOT / "tests" / "golden" / name


@pytest.mark.parametrize("table", TABLES)
def test_tables_from_the_records_are_those_published(
    headwise: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, table: str
) -> None:
    monkeypatch.chdir(ROOT)  # the text names runs by the paths that the command was given
    monkeypatch.setattr("headwise.runs.record.archived", read_once)
    headwise.ok("table", f"study={table}", *TABLES[table], f"output={tmp_path}")
    for name in (f"{table}.md", f"{table}.tex"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        if os.environ.get("WRITE_TABLES"):
            published(name).write_text(text, encoding="utf-8")
        before = published(name).read_text(encoding="utf-8")
        lines = (before.splitlines(keepends=True), text.splitlines(keepends=True))
        changes = [*difflib.unified_diff(*lines, "published", "now", n=0)]
        assert not changes, f"{name}:\n" + "".join(changes)
