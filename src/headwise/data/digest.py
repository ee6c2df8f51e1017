"""What was once worked out about a file's content, remembered until the file changes.

Corpora are identified by the hash of their bytes. Hashing gigabytes at each start would take
longer than the start itself, so results are kept under the file's path, size and time stamp.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from headwise.errors import DataError, HeadwiseError
from headwise.files import write_text


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Hexadecimal hash of a file's bytes."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, algorithm).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


class FileMemo:
    """Facts about files, kept in `cache_dir/files.json`.

    A memo that is lost, unreadable or cannot be written only costs the work again; two processes
    that write at once lose at most each other's newest facts, since the file is replaced as a
    whole.
    """

    def __init__(self, cache_dir: Path) -> None:
        self.path = Path(cache_dir) / "files.json"

    def recall(self, path: Path, fact: str, compute: Callable[[Path], Any]) -> Any:
        """`compute(path)` (of JSON types), or what it gave when the file was last the same."""
        status = path.stat()
        key = f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}"
        known = self._load().get(key, {})
        if fact in known:
            return known[fact]
        value = compute(path)
        facts = self._load()
        facts.setdefault(key, {})[fact] = value
        self._save(facts)
        return value

    def sha256(self, path: Path) -> str:
        """Hash of the file's bytes."""
        return str(self.recall(path, "sha256", file_digest))

    def checksum(self, path: Path, algorithm: str) -> str:
        """Hash of the file's bytes with md5, sha1 or sha256."""
        return str(self.recall(path, algorithm, lambda p: file_digest(p, algorithm)))

    def _load(self) -> dict[str, dict[str, Any]]:
        try:
            facts = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def _save(self, facts: dict[str, dict[str, Any]]) -> None:
        # nothing is lost but time where the cache is read-only or full
        with suppress(OSError, HeadwiseError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps(facts, indent=1, sort_keys=True))


def combined_digest(parts: list[str]) -> str:
    """One hash of several identities, order included."""
    return hashlib.sha256("\n".join(parts).encode("utf-8")).hexdigest()
