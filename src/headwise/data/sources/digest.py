"""Hashes of files, which identify corpora.

Hashing gigabytes at each start is slow, so hashes are cached by the path and the status of a file:
its size, inode, and times of modification and of the last change, which no tool sets back.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from headwise.errors import DataError, HeadwiseError
from headwise.files import write_text
from headwise.progress import progress_bar


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Hexadecimal hash of a file's bytes."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, algorithm).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def content_digest(path: Path) -> str:
    """Short hash of the content of a file, independent of its path."""
    return file_digest(path)[:16]


TICK_NS = 20_000_000  # of the clock of a file system, at most


class FileHashes:
    """Hashes of files, cached in `cache_dir/hashes.json` until a file changes.

    If the cache is missing, unreadable or not writable, hashes are computed again. Two processes
    that write at the same time lose at most each other's newest hashes, since the file is replaced
    atomically.
    """

    def __init__(self, cache_dir: Path) -> None:
        self.path = Path(cache_dir) / "hashes.json"

    def __call__(self, path: Path, algorithm: str = "sha256") -> str:
        """Hash of the file's bytes with md5, sha1 or sha256."""
        return self.of([path], algorithm)[0]

    def of(self, paths: Sequence[Path], algorithm: str = "sha256") -> list[str]:
        """The hash of each file; the cache is read and written once, and a bar is shown."""
        hashes, cached = [], self._load()
        new: dict[str, Any] = {}
        try:
            with progress_bar("hashing", True, len(paths), " files", delay=1) as bar:
                for path in paths:
                    key, stat = f"{os.path.abspath(path)}|{algorithm}", path.stat()
                    status = [stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]
                    *known, value = cached.get(key) or [None]
                    if known != status:
                        value = file_digest(path, algorithm)
                        # of a change in the same tick of the clock, the status would be the same
                        if status[-1] < time.time_ns() - TICK_NS:
                            new[key] = [*status, value]
                    hashes.append(value)
                    bar.update()
        finally:
            if new:
                self._save(new)
        return hashes

    def _save(self, new: dict[str, Any]) -> None:
        # if the cache is read-only or full, the hashes are computed again next time
        with suppress(OSError, HeadwiseError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps(self._load() | new))

    def _load(self) -> dict[str, Any]:
        try:
            hashes = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return hashes if isinstance(hashes, dict) else {}


def values_digest(values: Iterable[Any]) -> str:
    """Short hash of values in order: of bytes as they are, of others as a line of JSON each."""
    digest = hashlib.sha256()
    for value in values:
        is_bytes = isinstance(value, bytes | memoryview)
        digest.update(value if is_bytes else f"{json.dumps(value)}\n".encode())
    return digest.hexdigest()[:16]


def combined_digest(parts: list[str]) -> str:
    """One hash of several identities, order included."""
    return hashlib.sha256("\n".join(parts).encode("utf-8")).hexdigest()
