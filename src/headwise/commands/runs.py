"""`headwise runs`: a table of the runs in a folder: state, scores, overrides that differ."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from headwise.config.commands import RunsConfig
from headwise.config.saved import TARGET
from headwise.errors import ConfigError, HeadwiseError, counted, meant, refuse
from headwise.runs.archive import export_records, find_records
from headwise.runs.folder import flat, last_typed
from headwise.runs.listing import choice_of, frame_row, status
from headwise.runs.record import Record

Listed = dict[str, Any]  # what is shown of a run, by column
FORMATS = ("table", "csv", "json")
# Of a query: a text, or a key and its value.
TERM = re.compile(r"""("[^"]*"|'[^']*')|(`[^`]+`|[\w./]+)\s*==?\s*([\w./+-]+|(?=["']))""")


def runs(config: RunsConfig) -> None:
    """Print the table of runs, and export them.

    Raises:
        ConfigError: an invalid option.
        RunError: a folder does not exist, or nothing can be exported there.
    """
    if config.format not in FORMATS:
        raise refuse("format", config.format, FORMATS)
    records, text = _listing(config)
    print(text)
    if config.export is not None:
        export_records(records, Path(config.export), config.overwrite)
        print(f"written to {config.export}: {counted(len(records), 'run')}")


def _listing(config: RunsConfig) -> tuple[list[Record], str]:
    """The requested runs, also as text."""
    records = {str(run.folder): run for run in find_records(config.runs, Record)}
    rows: list[Listed] = [{**status(run), "run": name} for name, run in records.items()]
    settings: dict[str, None] = {}  # keys of overrides, in order
    for row in rows:
        for item in last_typed(row.pop("overrides", ())):
            key, _, value = item.lstrip("+").partition("=")
            if key not in row:
                row[key] = value
                settings[key] = None
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if rows and (config.where or config.sort):
        saved = [_saved(records[row["run"]], row) for row in rows]
        rows = _selected(rows, saved, columns, config)
    common = {key for key in settings if len({row.get(key) for row in rows}) < 2}
    rows = [{key: value for key, value in row.items() if key not in common} for row in rows]
    chosen = [records[row["run"]] for row in rows]
    if config.format == "json":
        return chosen, json.dumps(rows, indent=2, ensure_ascii=False)
    if config.format == "csv":
        return chosen, _csv(rows, [key for key in columns if key not in common])
    return chosen, _table(rows, [key for key in settings if key not in common])


def _saved(run: Record, row: Listed) -> Listed:
    """The row of a run with choices of groups, all settings, and that of `headwise.records`."""
    with suppress(HeadwiseError):  # broken
        settings = flat(run.settings)
        ending, of_name = f".{TARGET}", ".name"
        classes = {k.removesuffix(ending): v for k, v in settings.items() if k.endswith(ending)}
        choices = {group: choice_of(group, target) for group, target in classes.items()}
        names = {k.removesuffix(of_name): v for k, v in settings.items() if k.endswith(of_name)}
        return {**choices, **names, **row, **settings, **frame_row(run)}
    return row


def _selected(
    rows: Sequence[Listed], saved: Sequence[Listed], columns: Sequence[str], config: RunsConfig
) -> list[Listed]:
    """The rows that `where` holds for, in the order of `sort`.

    Args:
        rows: of the listing.
        saved: with more columns, see `_saved`; aligned with `rows`.
        columns: of `rows`.

    Raises:
        ConfigError: a wrong query or column.
    """
    import pandas as pd  # the listing alone does not wait for it

    table = pd.DataFrame(saved, index=[str(number) for number in range(len(rows))])
    for name in table:
        with suppress(ValueError, TypeError):  # overrides are texts
            table[name] = pd.to_numeric(table[name])
    known = f"{', '.join(columns)}, keys of config.yaml"
    where, column = config.where or "", (config.sort or "run").removeprefix("-")
    for name in (*re.findall("`([^`]+)`", where), column):
        if name not in table:
            raise ConfigError(f"{name} is not known; allowed: {known}.{meant(name, table)}")
    # @NAME has no meaning; a query is as trusted as the command line
    query = partial(table.query, engine="python", local_dict={}, global_dict={})
    try:
        if where:
            table = query(where)
    except Exception as error:  # of whatever the query evaluates
        reason = str(error).partition("\n")[0]
        example = "A query of pandas is expected, such as status == 'finished'"
        advice, corrected = f"{example}; columns: {known}", TERM.sub(_corrected, where)
        with suppress(Exception):
            query(corrected)
            advice = "Type where='{}'".format(corrected.replace("'", '"'))
        raise ConfigError(f"where={where}: {reason}. {advice}") from error
    if config.sort is not None:
        options: dict[str, Any] = {"ascending": not config.sort.startswith("-"), "kind": "stable"}
        try:
            table = table.sort_values(column, **options)
        except TypeError:  # numbers and texts
            table = table.sort_values(column, key=lambda values: values.astype(str), **options)
    return [rows[int(number)] for number in table.index]


def _corrected(term: re.Match[str]) -> str:
    """A term of a query with `==`, a text in quotes, and a key in backticks."""
    text, name, value = term[1], (term[2] or "").strip("`"), term[3]
    is_text = value and not re.fullmatch(r"[-+.]?\d[\d.e+-]*|true|false", value, re.IGNORECASE)
    key = name if name.isidentifier() else f"`{name}`"
    return text or f"{key} == " + (f'"{value}"' if is_text else value.title())


def _csv(rows: Iterable[Listed], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


def _table(rows: Sequence[Listed], settings: Sequence[str]) -> str:
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
        update += f" (logged {row['logged']})" if "logged" in row else ""
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
