"""Both languages in one file: Parquet, JSON lines or tab-separated values, streamed.

A table has one column (key) per language, or one column `translation` with both, as on the
Hugging Face Hub. A tab-separated file starts with a header of language codes.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headwise.data.corpora.text import check_text, decoded_lines, open_bytes
from headwise.errors import DataError

_BATCH_ROWS = 2048
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d+)-of-(?P<total>\d+)\.parquet")


def find_table(folder: Path, stem: str) -> list[Path]:
    """The file or Parquet shards of `stem` in `folder`, in order; empty if there are none.

    Shards are `<stem>-00000-of-00003.parquet` or `<stem>/0000.parquet`, the Hub's two layouts.

    Raises:
        DataError: a shard is missing.
    """
    for suffix in SUFFIXES:
        path = folder / f"{stem}{suffix}"
        if path.is_file():
            return [path]
    # `train-*` also matches the shards of another table, `train-noisy`
    matches = sorted(folder.glob(f"{glob.escape(stem)}-*-of-*.parquet"))
    shards = [path for path in matches if table_stem(path) == stem]
    if shards:
        _check_complete(shards)
        return shards
    subfolder = folder / stem
    return sorted(subfolder.glob("*.parquet")) if subfolder.is_dir() else []


def table_stem(path: Path) -> str | None:
    """The stem of a table, a shard or a folder of shards at `path`; None if it is none of these."""
    if path.is_dir():
        return path.name if any(path.glob("*.parquet")) else None
    shard = _SHARD.fullmatch(path.name)
    if shard:
        return shard["stem"]
    ending = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), None)
    return path.name.removesuffix(ending) if ending else None


def _check_complete(shards: Sequence[Path]) -> None:
    matches = [match for path in shards if (match := _SHARD.fullmatch(path.name))]
    expected, totals = int(matches[0]["total"]), {match["total"] for match in matches}
    missing = sorted(set(range(expected)) - {int(match["number"]) for match in matches})
    if missing or len(totals) > 1 or len(shards) > expected:
        raise DataError(
            f"{shards[0].parent} has {len(shards)} Parquet shards like {shards[0].name}; "
            f"expected {expected}, missing numbers: {', '.join(map(str, missing)) or 'none'}"
        )


def table_pairs(paths: Sequence[Path], source: str, target: str) -> Iterator[tuple[str, str]]:
    """(source, target) sentences of all `paths`, in order.

    Raises:
        DataError: a language is missing, a value is not text, or the file is damaged or empty.
    """
    n_rows = 0
    for path in paths:
        read = next(read for suffix, read in _READERS.items() if path.name.endswith(suffix))
        for pair in read(path, source, target):
            n_rows += 1
            yield pair
    if n_rows == 0:
        raise DataError(f"{paths[0]} is empty; it must have at least one pair")


def row_pair(row: Mapping[str, Any], source: str, target: str, where: str) -> tuple[str, str]:
    """The pair of one record, flat or under `translation`.

    Raises:
        DataError: a language is missing or not text; `where` starts the message.
    """
    record = row.get("translation", row)
    by_code = record if isinstance(record, Mapping) else row
    texts = []
    for code in (source, target):
        text = by_code.get(code)
        if not isinstance(text, str):
            keys = ", ".join(map(str, by_code)) or "no column"
            raise DataError(f"{where}: no text for language {code!r}; got {keys}")
        check_text(text, where)
        if "\n" in text or "\r" in text:  # converted text has one sentence a line
            text = re.sub(r"[\r\n]+", " ", text).strip()
        texts.append(text)
    return texts[0], texts[1]


def _parquet_pairs(path: Path, source: str, target: str) -> Iterator[tuple[str, str]]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path, memory_map=True) as table:
            names = table.schema_arrow.names
            columns = ["translation"] if "translation" in names else [source, target]
            wrong = [name for name in columns if names.count(name) != 1]
            if wrong:
                raise DataError(
                    f"{path}: {names.count(wrong[0]) or 'no'} columns {wrong[0]!r}; got "
                    f"{', '.join(names)}. "
                    "Columns must be the two language codes, or `translation` with both."
                )
            for batch in table.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield row_pair(row, source, target, f"{path}, row {number}")
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} is truncated, not Parquet or not UTF-8 (after row {number}: {error})"
        ) from error


def _json_pairs(path: Path, source: str, target: str) -> Iterator[tuple[str, str]]:
    with open_bytes(path) as stream:
        for number, line in enumerate(decoded_lines(stream, str(path)), 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{where}: not JSON ({error})") from error
            if not isinstance(row, dict):
                raise DataError(f"{where}: not a JSON object")
            yield row_pair(row, source, target, where)


def _tab_pairs(path: Path, source: str, target: str) -> Iterator[tuple[str, str]]:
    """Cells are taken literally: a quotation mark in a sentence is text, not syntax."""
    with open_bytes(path) as stream:
        lines = decoded_lines(stream, str(path))
        header = next(lines).split("\t")
        for code in (source, target):
            if code not in header:
                raise DataError(
                    f"{path}: the first line must name the languages, separated by a tab; "
                    f"{code!r} is not in {header!r}"
                )
        first, second = header.index(source), header.index(target)
        for number, line in enumerate(lines, 2):
            cells = line.split("\t")
            if len(cells) != len(header):
                raise DataError(
                    f"{path}, line {number}: {len(cells)} cells, the header has {len(header)}"
                )
            yield cells[first], cells[second]


_READERS = {
    ".parquet": _parquet_pairs,
    ".jsonl": _json_pairs,
    ".jsonl.gz": _json_pairs,
    ".tsv": _tab_pairs,
    ".tsv.gz": _tab_pairs,
}
SUFFIXES = tuple(_READERS)
