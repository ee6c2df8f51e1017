"""Hashes of files, which identify corpora.

Hashing gigabytes at each start is slow, so hashes are cached by the path, size and modification
time of the file.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from headwise.errors import DataError, HeadwiseError
from headwise.files import write_text


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
        status = path.stat()
        key = f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}|{algorithm}"
        known = self._load().get(key)
        if known is not None:
            return known
        value = file_digest(path, algorithm)
        hashes = self._load() | {key: value}
        # if the cache is read-only or full, the hash is computed again next time
        with suppress(OSError, HeadwiseError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps(hashes, indent=1, sort_keys=True))
        return value

    def _load(self) -> dict[str, str]:
        try:
            hashes = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return hashes if isinstance(hashes, dict) else {}


def combined_digest(parts: list[str]) -> str:
    """One hash of several identities, order included."""
    return hashlib.sha256("\n".join(parts).encode("utf-8")).hexdigest()
