"""Output that is compared whole with a file, such as those of `tests/golden/`.

After a change of the output that is meant, write the files again, and read what has changed:

    WRITE_TABLES=1 .venv/bin/python -m pytest -n 0 FILE
"""

import difflib
import json
import os
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
SMALLEST = 1e-6  # smaller numbers are written as 0


def assert_golden(file, text):
    """Compare a text with a file, whose path is below `tests/golden/` unless it is absolute."""
    path = GOLDEN / file
    if os.environ.get("WRITE_TABLES"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    before = path.read_text(encoding="utf-8")
    lines = (before.splitlines(keepends=True), text.splitlines(keepends=True))
    changes = [*difflib.unified_diff(*lines, "before", "now", n=0)]
    assert not changes, f"{path.name}:\n" + "".join(changes)


def leaves(value, path=""):
    """Path -> each value that has no others inside."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found = {}
    for key, inner in pairs:
        place = f"{path}/{key}"
        is_nested = isinstance(inner, dict | list | tuple) and inner
        found |= leaves(inner, place) if is_nested else {place: inner}
    return found


def rounded(value):
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if abs(value) >= SMALLEST else 0.0
    return value


def assert_golden_record(name, record, rel=2e-4):
    """Compare with `tests/golden/NAME.json`.

    Args:
        record: name -> rows, of values of JSON.
        rel: relative difference of numbers that are equal.
    """
    path = GOLDEN / f"{name}.json"
    record = rounded(record)
    if os.environ.get("WRITE_TABLES"):
        parts = []
        for part, rows in record.items():
            lines = (json.dumps(row, ensure_ascii=False) for row in rows)
            parts.append(f"{json.dumps(part)}: [\n" + ",\n".join(lines) + "\n]")
        path.parent.mkdir(exist_ok=True)
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    before, now = leaves(json.loads(path.read_text(encoding="utf-8"))), leaves(record)
    assert list(now) == list(before), f"{path.name}: other values or another order"
    changed = {
        place: (before[place], value)
        for place, value in now.items()
        if value != (pytest.approx(before[place], rel=rel, abs=SMALLEST)
                     if isinstance(value, float) else before[place])
    }  # fmt: skip
    assert not changed, f"{path.name}: before and now:\n" + "\n".join(
        f"{place} {values}" for place, values in changed.items()
    )
