"""The record of a run: files with one JSON object a line.

A line is complete once its newline is written; whatever stands after the last newline is the
rest of a write that a kill or a full disk cut off, and is never read.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headwise.errors import RunError


class JsonlWriter:
    """Appends records to a file, and can go back to an earlier length.

    A checkpoint stores `n_lines` after `sync()`; resuming calls `rewind(n_lines)`, so that the
    file holds every record up to the checkpoint once and none after it.

    Args:
        path: created, with its folder, when it does not exist; a torn last line is cut off.

    Raises:
        RunError: when the file cannot be opened or written (also from the methods).
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what is written stands in the file, and nothing is left in a buffer
            # that a full disk would make fail a second time on closing.
            self._file = open(self.path, "r+b" if self.path.exists() else "x+b", buffering=0)  # noqa: SIM115
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

        Numbers of numpy and torch become plain ones. A float that is not finite is a measurement
        that failed: it is left out (null inside a list, where leaving it out would shift the
        others) and its place is named in the record's list `nonfinite`.
        """
        line = encode_record(record)
        try:
            written = self._file.write(line)
        except OSError as error:
            self._cut()
            raise _cannot("write", self.path, error) from error
        if written != len(line):  # the last bytes of a full disk
            self._cut()
            raise RunError(f"cannot write {self.path}: no space left. {_ADVICE}")
        self._n_lines += 1
        self._n_bytes += len(line)

    def sync(self) -> None:
        """Return when every record is on the disk; called before a checkpoint counts on them."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _cannot("write", self.path, error) from error

    def rewind(self, n_lines: int) -> None:
        """Keep the first `n_lines` complete lines only, in one step that cannot stop halfway.

        Raises:
            RunError: when the file has fewer lines.
        """
        if n_lines < 0 or n_lines > self._n_lines:
            raise RunError(
                f"{self.path} has {self._n_lines} complete lines, the checkpoint was written "
                f"after {n_lines}: the file was changed or lost since. Restore it, or start "
                "again in a new folder"
            )
        self._n_lines, self._n_bytes = self._measure(limit=n_lines)
        self._cut()
        self.sync()

    def close(self) -> None:
        """Close the file; no method may be called afterwards."""
        self._file.close()

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _measure(self, limit: int | None) -> tuple[int, int]:
        """Number and total bytes of the complete lines, up to `limit` of them."""
        self._file.seek(0)
        ends = [found.end() for found in re.finditer(b"\n", self._file.readall())][:limit]
        return len(ends), ends[-1] if ends else 0

    def _cut(self) -> None:
        """Make the file end with its last complete line."""
        try:
            self._file.truncate(self._n_bytes)
            self._file.seek(self._n_bytes)
        except OSError as error:
            raise _cannot("shorten", self.path, error) from error


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All records of a file, without a torn last line.

    Raises:
        RunError: when the file is missing or a complete line is not a JSON object.
    """
    return list(_records(Path(path)))


def read_if_there(path: Path) -> list[dict[str, Any]]:
    """As `read_jsonl`; nothing of a file that is not there."""
    return read_jsonl(path) if path.is_file() else []


def encode_record(record: Mapping[str, Any]) -> bytes:
    """The line of a record, newline included; see `JsonlWriter.write`."""
    nonfinite: list[str] = []
    plain = _plain(record, "", nonfinite)
    if nonfinite:
        plain["nonfinite"] = nonfinite
    return json.dumps(plain, ensure_ascii=False, allow_nan=False).encode() + b"\n"


_ADVICE = "Free some space and give the same command again: the run goes on from its checkpoint"


def _cannot(action: str, path: Path, error: OSError) -> RunError:
    return RunError(f"cannot {action} {path}: {error.strerror or error}. {_ADVICE}")


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    return
                yield _decode(line, path, number)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from error


def _decode(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise RunError(f"{path}, line {number}: not JSON ({error})") from error
    if not isinstance(record, dict):
        raise RunError(f"{path}, line {number}: must be a JSON object, got {line[:40]!r}")
    return record


def _plain(value: Any, path: str, nonfinite: list[str]) -> Any:
    """`value` in the types of JSON; None for a float that is not finite, whose path is noted."""
    if hasattr(value, "tolist"):  # numpy and torch, scalars included
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        nonfinite.append(path)
        return None
    within = f"{path}." if path else ""
    if isinstance(value, Mapping):
        plain = {str(key): _plain(one, f"{within}{key}", nonfinite) for key, one in value.items()}
        return {key: one for key, one in plain.items() if f"{within}{key}" not in nonfinite}
    if isinstance(value, list | tuple):
        return [_plain(one, f"{within}{i}", nonfinite) for i, one in enumerate(value, start=1)]
    return value
