"""`scripts/runs.py`: a table of the runs in a folder: state, scores, overrides that differ."""

from __future__ import annotations

import csv
import fnmatch
import io
import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from headwise.config.commands import RunsConfig
from headwise.errors import ConfigError, counted, refuse, require, unknown
from headwise.runs.fingerprint import last_typed
from headwise.runs.listing import status
from headwise.runs.record import Record, export_records, find_records

Row = dict[str, Any]
FORMATS = ("table", "csv", "json")
CONDITION = re.compile(r"([^<>=!]+)(<=|>=|!=|<|>|=)(.*)")
ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def runs(config: RunsConfig) -> None:
    """Print the table of runs, and export them.

    Raises:
        ConfigError: an invalid option.
        RunError: a folder does not exist.
    """
    if config.format not in FORMATS:
        raise refuse("format", config.format, FORMATS)
    records, text = _listing(config)
    print(text)
    if config.export is not None:
        export_records(records, Path(config.export))
        print(f"written to {config.export}: {counted(len(records), 'run')}")


def _listing(config: RunsConfig) -> tuple[list[Record], str]:
    """The requested runs, also as text."""
    records = {str(run.folder): run for run in find_records(config.runs, Record)}
    rows: list[Row] = [{**status(run), "run": name} for name, run in records.items()]
    settings: dict[str, None] = {}  # keys of overrides, in order
    for row in rows:
        for item in last_typed(row.pop("overrides", ())):
            key, _, value = item.lstrip("+").partition("=")
            if key not in row:
                row[key] = value
                settings[key] = None
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for condition in (config.where or "").split():
        rows = _matching(rows, condition, columns)
    if config.sort is not None:
        rows = _sorted(rows, config.sort, columns)
    common = {key for key in settings if len({row.get(key) for row in rows}) < 2}
    rows = [{key: value for key, value in row.items() if key not in common} for row in rows]
    chosen = [records[row["run"]] for row in rows]
    if config.format == "json":
        return chosen, json.dumps(rows, indent=2, ensure_ascii=False)
    if config.format == "csv":
        return chosen, _csv(rows, [key for key in columns if key not in common])
    return chosen, _table(rows, [key for key in settings if key not in common])


def _number(value: Any) -> Any:
    """`value` as a number if it can be one."""
    with suppress(TypeError, ValueError):
        return float(value)
    return value


def _matching(rows: list[Row], condition: str, columns: Sequence[str]) -> list[Row]:
    """The rows with column=pattern, column!=pattern, column<number and the like."""
    parsed = CONDITION.fullmatch(condition)
    if parsed is None:
        raise ConfigError(f"where: {condition} is not COLUMN=VALUE, with = != < <= > or >=")
    column, sign, value = parsed.groups()
    _check_column(column, columns)
    pairs = [(row, row.get(column, "")) for row in rows]
    if sign not in ORDERS:
        equal = sign == "="
        return [r for r, item in pairs if fnmatch.fnmatchcase(str(item), value) == equal]
    require(isinstance(limit := _number(value), float), f"where: {column}", "a number", value)
    numbers = [(row, n) for row, item in pairs if isinstance(n := _number(item), float)]
    return [row for row, number in numbers if ORDERS[sign](number, limit)]


def _sorted(rows: list[Row], sort: str, columns: Sequence[str]) -> list[Row]:
    """The rows in the order of a column, numbers before texts, those without a value last."""
    column = sort.removeprefix("-")
    _check_column(column, columns)
    present, absent = ([row for row in rows if (column in row) is has] for has in (True, False))

    def key(row: Row) -> tuple[bool, Any]:
        value = _number(row[column])
        return isinstance(value, str), value

    return [*sorted(present, key=key, reverse=sort.startswith("-")), *absent]


def _check_column(column: str, columns: Sequence[str]) -> None:
    if columns and column not in columns:
        raise unknown("", column, columns)


def _csv(rows: Iterable[Row], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


def _table(rows: Sequence[Row], settings: Sequence[str]) -> str:
    """Aligned columns, and the number of runs in each state.

    Args:
        rows: of runs.
        settings: keys of overrides that differ.
    """
    scores = [key for row in rows for key in row if key.endswith(f"/{row.get('metric')}")]
    names = [*dict.fromkeys(scores), *settings]
    lines = [["status", "update", "left", "task", *names, "run"]]
    for row in rows:
        update = f"{row['update']}/{row['max_updates']}" if "update" in row else ""
        left = timedelta(seconds=row["seconds_left"]) if "seconds_left" in row else ""
        values = (_shown(row.get(name, "")) for name in names)
        about = f"{row['run']}  {row.get('reason', '')}".rstrip()
        lines.append([row["status"], update, str(left), row.get("task", ""), *values, about])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    # files of others may have control characters
    plain = ["".join(filter(str.isprintable, text)) for text in texts]
    counts = Counter(row["status"] for row in rows)
    total = ", ".join(f"{n} {state}" for state, n in counts.most_common())
    return "\n".join([*plain, counted(len(rows), "run") + (f": {total}" if total else "")])


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
