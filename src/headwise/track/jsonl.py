"""The record of a run: JSON lines files.

A line is complete once its newline is written. Anything after the last newline is an incomplete
write, after a kill or on a full disk, and is ignored.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.errors import RunError
from headwise.files import sync


class JsonlWriter:
    """Appends records to a file, and truncates it on resume.

    A checkpoint stores `n_lines` after `sync()`; resuming calls `rewind(n_lines)`, so that the
    file holds every record up to the checkpoint once and none after it.

    Args:
        path: created, with its folder, if it does not exist; an incomplete last line is removed.

    Raises:
        RunError: the file cannot be opened or written (methods raise it too).
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: otherwise closing would flush a buffer, which fails a second time on a
            # full disk.
            self._file = open(self.path, "r+b" if self.path.exists() else "x+b", buffering=0)  # noqa: SIM115
            sync(self.path.parent)  # the name of a new file
        except OSError as error:
            raise _cannot("open", self.path, error) from error
        self._n_lines, self._n_bytes = self._measure(limit=None)
        self._cut()

    @property
    def n_lines(self) -> int:
        """Number of complete lines in the file."""
        return self._n_lines

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record.

        Numbers of numpy and torch become Python's. A non-finite float is omitted (null in a list,
        so that others keep their positions) and its path is added to the record's list
        `nonfinite`.
        """
        line = encode_record(record)
        try:
            written = self._file.write(line)
        except OSError as error:
            self._cut()
            raise _cannot("write", self.path, error) from error
        if written != len(line):  # disk full
            self._cut()
            raise RunError(f"cannot write {self.path}: no space left. {_ADVICE}")
        self._n_lines += 1
        self._n_bytes += len(line)

    def sync(self) -> None:
        """Flush every record to the disk (fsync); called before a checkpoint is saved."""
        try:
            sync(self.path)
        except OSError as error:
            raise _cannot("write", self.path, error) from error

    def rewind(self, n_lines: int) -> None:
        """Truncate the file to its first `n_lines` complete lines, atomically.

        Raises:
            RunError: the file has fewer lines.
        """
        if n_lines < 0 or n_lines > self._n_lines:
            raise RunError(
                f"cannot resume: {self.path} has {self._n_lines} complete lines, the checkpoint "
                f"was saved after {n_lines}. Restore the file, or start in a new folder"
            )
        self._n_lines, self._n_bytes = self._measure(limit=n_lines)
        self._cut()
        self.sync()

    def close(self) -> None:
        """Close the file; no method may be called afterwards."""
        self._file.close()

    def _measure(self, limit: int | None) -> tuple[int, int]:
        """Return number and total bytes of the complete lines, up to `limit` of them."""
        self._file.seek(0)
        ends = [match.end() for match in re.finditer(b"\n", self._file.readall())][:limit]
        return len(ends), ends[-1] if ends else 0

    def _cut(self) -> None:
        """Truncate the file after its last complete line."""
        try:
            self._file.truncate(self._n_bytes)
            self._file.seek(self._n_bytes)
        except OSError as error:
            raise _cannot("shorten", self.path, error) from error


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read all records of a file; an incomplete last line is ignored.

    Raises:
        RunError: the file is missing, or a complete line is not a JSON object.
    """
    try:
        with open(path, "rb") as file:
            lines = [line for line in file if line.endswith(b"\n")]
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from error
    return [_decode(line, path, number) for number, line in enumerate(lines, start=1)]


def read_if_exists(path: Path) -> list[dict[str, Any]]:
    """Like `read_jsonl`; empty if the file does not exist."""
    return read_jsonl(path) if path.is_file() else []


def last_record(path: Path, text: bytes = b"", n_bytes: int = 1 << 14) -> dict[str, Any]:
    """The last record that contains `text`, of the last `n_bytes`; empty without one.

    Another process may be writing the file.
    """
    with open(path, "rb") as handle:
        start = max(handle.seek(0, os.SEEK_END) - n_bytes, 0)
        handle.seek(start)
        lines = handle.read().split(b"\n")[bool(start) : -1]
    number, line = next(((i, s) for i, s in enumerate(reversed(lines)) if text in s), (0, b"{}"))
    return _decode(line, path, len(lines) - number)


def encode_record(record: Mapping[str, Any]) -> bytes:
    """Encode a record as a line with its newline; see `JsonlWriter.write`."""
    nonfinite: list[str] = []
    plain = _plain(record, "", nonfinite)
    if nonfinite:
        plain["nonfinite"] = nonfinite
    return json.dumps(plain, ensure_ascii=False, allow_nan=False).encode() + b"\n"


_ADVICE = "Free some space and run the same command again to resume from the checkpoint"


def _cannot(action: str, path: Path, error: OSError) -> RunError:
    return RunError(f"cannot {action} {path}: {error.strerror or error}. {_ADVICE}")


def _decode(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}, line {number}: not JSON ({error})") from error
    if not isinstance(record, dict):
        raise RunError(f"{path}, line {number}: must be a JSON object, got {line[:40]!r}")
    wrong = [key for key, value in record.items() if not _is_valid(key, value)]
    if wrong:
        raise RunError(f"{path}, line {number}: {wrong[0]} has a value of a wrong type")
    return record


def _is_valid(key: str, value: Any) -> bool:
    """Whether a metric is a number; a statistic: site -> layers -> one number or null per head."""
    if isinstance(value, dict):
        return all(_are_numbers(layers, 2) for layers in value.values())
    return isinstance(value, int | float) or not (key == "update" or "/" in key)


def _are_numbers(value: Any, depth: int) -> bool:
    if depth:
        return isinstance(value, list) and all(_are_numbers(item, depth - 1) for item in value)
    return value is None or isinstance(value, int | float)


def _plain(value: Any, path: str, nonfinite: list[str]) -> Any:
    """Convert `value` to JSON types; a non-finite float becomes None, its path goes to the list."""
    if hasattr(value, "tolist"):  # numpy and torch, scalars included
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        nonfinite.append(path)
        return None
    prefix = f"{path}." if path else ""
    if isinstance(value, Mapping):
        plain = {str(key): _plain(item, f"{prefix}{key}", nonfinite) for key, item in value.items()}
        return {key: item for key, item in plain.items() if f"{prefix}{key}" not in nonfinite}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{prefix}{i}", nonfinite) for i, item in enumerate(value, start=1)]
    return value
