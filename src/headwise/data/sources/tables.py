"""Tables, streamed: Parquet, JSON lines, tab- or comma-separated values.

A table of sentence pairs has one column (key) per language, or one column `translation` with both,
as on the Hugging Face Hub; a table of labelled text has columns for texts and labels. Text files
start with a header of column names, unless `columns` has the names.

Quotation marks in tab-separated values are text. Only a cell in quotation marks with doubled ones
inside, and no others, is unquoted as in RFC 4180: so pandas and Python's csv write a cell with `"`.
"""

from __future__ import annotations

import csv
import glob
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from headwise.data.sources.lines import check_text, decoded_lines, open_bytes
from headwise.errors import DataError
from headwise.files import nfc

_BATCH_ROWS = 2048
MAX_ROW = 2**31 - 2  # bytes, about what a cell of Parquet has at most: a row may be a book
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d+)-of-(?P<total>\d+)(-[0-9a-f]{16})?\.parquet")

# File and line, for messages, or "" for aligned lines, which are checked; column -> value.
Row = tuple[str, Mapping[str, Any]]
Select = Callable[[str, Sequence[str]], Sequence[str]]  # name of a file, columns -> those to read


def find_table(folder: Path, stem: str) -> list[Path]:
    """The file or Parquet shards of `stem` in `folder`, in order; empty if there are none.

    Shards are `<stem>-00000-of-00003.parquet` or `<stem>/0000.parquet`, the Hub's two layouts.

    Raises:
        DataError: a shard is missing, or the shards in a folder are of several tables.
    """
    subfolder = folder / stem  # a stem may be a path
    folder, stem = subfolder.parent, subfolder.name
    for suffix in SUFFIXES:
        path = folder / f"{stem}{suffix}"
        if path.is_file():
            return [path]
    # `train-*` also matches the shards of another table, `train-noisy`
    matches = sorted(folder.glob(f"{glob.escape(stem)}-*-of-*.parquet"))
    shards = [path for path in matches if table_stem(path) == stem]
    if not shards and subfolder.is_dir():
        shards = sorted(subfolder.glob("[!.]*.parquet"))
    _check_complete(shards)
    return shards


def table_stem(path: Path) -> str | None:
    """The stem of a table, a shard or a folder of shards at `path`; None if it is none of these."""
    if path.is_dir():
        return path.name if len(set(map(_shard_stem, path.glob("[!.]*.parquet")))) == 1 else None
    shard = _SHARD.fullmatch(path.name)
    if shard:
        return shard["stem"]
    ending = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), None)
    return path.name.removesuffix(ending) if ending else None


def _shard_stem(path: Path) -> str:
    """The part of a name that is the same for the shards of a table."""
    shard = _SHARD.fullmatch(path.name)
    return shard["stem"] if shard else re.sub(r"\d+", "", path.stem)


def _check_complete(shards: Sequence[Path]) -> None:
    """Raise a `DataError` unless all are shards of one table, and none is missing."""
    by_stem = {_shard_stem(path): path.name for path in shards}
    if len(by_stem) > 1:
        folder, names = shards[0].parent, " and ".join(sorted(by_stem.values())[:2])
        raise DataError(
            f"{folder} has several tables, as {names} differ not only in numbers: set "
            f"data.dir={folder} if they are splits, else rename them or give each a folder"
        )
    matches = [match for path in shards if (match := _SHARD.fullmatch(path.name))]
    if not matches:
        return
    expected, totals = int(matches[0]["total"]), {match["total"] for match in matches}
    missing = sorted(set(range(expected)) - {int(match["number"]) for match in matches})
    if missing or len(totals) > 1 or len(shards) > expected:
        raise DataError(
            f"{shards[0].parent} has {len(shards)} Parquet shards like {shards[0].name}; "
            f"expected {expected}, missing numbers: {', '.join(map(str, missing)) or 'none'}"
        )


def class_names(path: Path, column: str) -> dict[str, str]:
    """Number -> name of the classes in a column of a Parquet file of `datasets`; else empty."""
    if path.suffix != ".parquet":
        return {}
    import pyarrow.parquet

    # damaged (reading its rows raises), not of `datasets`, or another type of column
    with suppress(pyarrow.ArrowException, OSError, ValueError, LookupError, TypeError):
        stored = json.loads(pyarrow.parquet.read_schema(path).metadata[b"huggingface"])
        features = {nfc(key): value for key, value in dict(stored["info"]["features"]).items()}
        return {str(i): nfc(name) for i, name in enumerate(features[nfc(column)]["names"])}
    return {}


def table_rows(paths: Sequence[Path], select: Select, columns: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of all `paths`, in order.

    Args:
        select: returns the columns to read, or raises; JSON lines are not selected.
        columns: of a text file without a header; values of a repeated column are joined.

    Raises:
        DataError: a row with more or fewer cells than columns, or the file is damaged or empty.
    """
    n_rows = 0
    for path in paths:
        if path.suffix == ".parquet":
            rows = _parquet_rows(path, select)
        else:
            rows = _file_rows(path, select, columns)
        for row in rows:
            n_rows += 1
            yield row
    if n_rows == 0:
        raise DataError(f"{paths[0]} is empty; it must have at least one row")


def stored_rows(
    stream: IO[bytes], name: str, select: Select, columns: Sequence[str] = ()
) -> Iterator[Row]:
    """The rows of an open text file, whose `name` selects the format; see `table_rows`."""
    ending = next((key for key in READERS if name.removesuffix(".gz").endswith(key)), None)
    if ending is None:
        raise DataError(f"{name} must be a {', '.join(READERS)} file")
    return READERS[ending](stream, name, select, columns)


def _file_rows(path: Path, select: Select, columns: Sequence[str]) -> Iterator[Row]:
    with open_bytes(path) as stream:
        yield from stored_rows(stream, str(path), select, columns)


def aligned_rows(pairs: Iterable[tuple[str, str]], languages: Sequence[str]) -> Iterator[Row]:
    """Aligned lines as rows with a column for each language."""
    source, target = languages
    return (("", {source: first, target: second}) for first, second in pairs)


def row_pairs(rows: Iterable[Row], source: str, target: str) -> Iterator[tuple[str, str]]:
    """(source, target) sentences of rows, without line ends but those inside of aligned lines.

    Raises:
        DataError: a language is missing, or a value is not text.
    """
    for where, row in rows:
        yield _row_pair(row, source, target, where) if where else (row[source], row[target])


def language_columns(codes: Sequence[str], name: str, columns: Sequence[str]) -> Sequence[str]:
    """The columns of sentence pairs in these languages; a `Select` for `codes`."""
    wanted = ["translation"] if "translation" in columns else codes
    header = ",".join(codes) if ".csv" in name[-7:] else f"{'⇥'.join(codes)} (⇥: a tab)"
    advice = "Columns must be the two language codes, or `translation` with both: the first line "
    advice += f"of a .tsv or .csv file must be {header}, in the order of its columns"
    check_columns(name, columns, wanted, advice)
    return wanted


def check_columns(
    name: str, columns: Sequence[str], wanted: Sequence[str], advice: str = ""
) -> None:
    """Raise a `DataError` with `advice` unless each wanted column occurs once in a file."""
    for column in wanted:
        if columns.count(column) != 1:
            raise DataError(
                f"{name}: {columns.count(column) or 'no'} columns {column!r}; got "
                f"{', '.join(columns) or 'none'}. {advice}"
            )


def _row_pair(row: Mapping[str, Any], source: str, target: str, where: str) -> tuple[str, str]:
    """The pair of one record, flat or under `translation`.

    Raises:
        DataError: a language is missing or not text; `where` starts the message.
    """
    record = row.get("translation", row)
    if isinstance(record, list):  # a map of Parquet
        record = dict(item for item in record if isinstance(item, tuple))
    by_code = record if isinstance(record, Mapping) else row
    texts = []
    for code in (source, target):
        text = by_code.get(code)
        if not isinstance(text, str):
            keys = ", ".join(map(str, by_code)) or "no column"
            raise DataError(f"{where}: no text for language {code!r}; got {keys}")
        texts.append(one_line(text, where))
    return texts[0], texts[1]


def one_line(text: str, where: str) -> str:
    """A text with spaces instead of line ends; a `DataError` if it cannot be UTF-8."""
    check_text(text, where)
    return re.sub(r"[\r\n]+", " ", text).strip() if "\n" in text or "\r" in text else text


def _parquet_rows(path: Path, select: Select) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path, memory_map=True) as table:
            stored = table.schema_arrow.names
            chosen = set(select(str(path), list(map(nfc, stored))))
            columns = [name for name in stored if nfc(name) in chosen]
            for batch in table.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", {nfc(name): row[name] for name in columns}
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} is truncated, not Parquet or not UTF-8 (after row {number}: {error})"
        ) from error


def _json_rows(
    stream: IO[bytes], name: str, select: Select, columns: Sequence[str]
) -> Iterator[Row]:
    for number, line in enumerate(decoded_lines(stream, name, max_line=MAX_ROW), 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON ({error})") from error
        if not isinstance(row, dict):
            raise DataError(f"{where}: not a JSON object")
        yield where, {nfc(name): value for name, value in row.items()}


def _tab_rows(
    stream: IO[bytes], name: str, select: Select, columns: Sequence[str]
) -> Iterator[Row]:
    """Quotation marks are text, but in cells that are quoted for them: see the module."""
    lines = enumerate(decoded_lines(stream, name, max_line=MAX_ROW), 1)
    return _records(((n, _tab_cells(line)) for n, line in lines), name, select, columns)


def _tab_cells(line: str) -> list[str]:
    cells = line.split("\t")
    return list(map(_unquoted, cells)) if '""' in line else cells


def _unquoted(cell: str) -> str:
    inner = cell[1:-1]
    is_quoted = cell == f'"{inner}"' and '""' in inner and '"' not in inner.replace('""', "")
    return inner.replace('""', '"') if is_quoted else cell


def _comma_rows(
    stream: IO[bytes], name: str, select: Select, columns: Sequence[str]
) -> Iterator[Row]:
    """Cells may be in quotation marks, which are doubled inside (RFC 4180)."""
    csv.field_size_limit(MAX_ROW)
    lines = decoded_lines(stream, name, max_line=MAX_ROW)
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    cells = ((reader.line_num, row) for row in reader if row)
    try:
        yield from _records(cells, name, select, columns)
    except csv.Error as error:
        raise DataError(f"{name}, line {reader.line_num}: {error}") from error


def _records(
    rows: Iterable[tuple[int, list[str]]], name: str, select: Select, columns: Sequence[str]
) -> Iterator[Row]:
    """Numbered lines of cells as records."""
    rows = iter(rows)
    header = list(map(nfc, columns or next(rows, (1, []))[1]))
    names = list(dict.fromkeys(header)) if columns else header
    places = {
        chosen: [place for place, column in enumerate(header) if column == chosen]
        for chosen in select(name, names)
    }
    for number, cells in rows:
        if cells == [""] and len(header) > 1:  # an empty line, as in the other formats
            continue
        where = f"{name}, line {number}"
        if len(cells) != len(header):
            what = "columns are" if columns else "the header has"
            raise DataError(f"{where}: {len(cells)} cells, {what} {len(header)}")
        yield where, {c: " ".join(cells[i] for i in indices) for c, indices in places.items()}


def _question_rows(
    stream: IO[bytes], name: str, select: Select, columns: Sequence[str]
) -> Iterator[Row]:
    """TREC's questions in latin-1: `DESC:manner How did serfdom develop ?`."""
    for number, line in enumerate(decoded_lines(stream, name, encoding="latin-1"), 1):
        where, (label, _, text) = f"{name}, line {number}", line.partition(" ")
        coarse, colon, _ = label.partition(":")
        if not colon:
            raise DataError(f"{where} must start with CLASS:subclass, got {label!r}")
        # the Hub's copy has a space for the one byte that is not ASCII
        text = text.replace("\xf0", " ").strip()
        yield where, {"coarse_label": coarse, "fine_label": label, "text": text}


Reader = Callable[[IO[bytes], str, Select, Sequence[str]], Iterator[Row]]
TEXT_SUFFIXES = (".jsonl", ".tsv", ".csv")
SUFFIXES = (".parquet", *(f"{suffix}{gz}" for suffix in TEXT_SUFFIXES for gz in ("", ".gz")))
READERS: dict[str, Reader] = {
    ".jsonl": _json_rows,
    ".tsv": _tab_rows,
    ".csv": _comma_rows,
    ".label": _question_rows,
}
