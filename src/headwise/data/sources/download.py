"""Downloads, verified by the published checksum or, without one, by that of the first download."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path

import pooch

from headwise.data.sources.digest import FileHashes, file_digest
from headwise.errors import DataError
from headwise.files import write_text

Entry = Mapping[str, str]

CHECKSUMS = ("sha256", "sha1", "md5")
TIMEOUT_SECONDS = 20
# A server that compresses the archive again would change the checksum.
HEADERS = {"User-Agent": "headwise", "Accept-Encoding": "identity"}
IS_OFFLINE = ContextVar("IS_OFFLINE", default=False)  # in dry runs

log = logging.getLogger(__name__)


def published_checksum(entry: Entry) -> tuple[str, str] | None:
    """(algorithm, hexadecimal value) of a download entry; None if none was published."""
    checksums = ((name, str(entry[name]).lower()) for name in CHECKSUMS if entry.get(name))
    return next(checksums, None)


def download(entries: Sequence[Entry], folder: Path) -> Path:
    """Download the first available entry to `folder/<file>`, atomically; return its path.

    The hash of a file without a published checksum is written to `<file>.sha256`.

    Args:
        entries: alternatives, each with `url`, `file`, and at most one of md5, sha1, sha256.
        folder: of the file.

    Raises:
        DataError: all entries failed, a checksum differs, or `IS_OFFLINE`.
    """
    if IS_OFFLINE.get():
        raise DataError("a dry run downloads nothing, `headwise prepare` does")
    problems = []
    for entry in entries:
        try:
            return _fetch(entry, folder)
        except OSError as error:  # base class of the errors of `requests`
            problems.append(f"{entry['url']}: {error}")
    raise DataError("; ".join(problems))


def _fetch(entry: Entry, folder: Path) -> Path:
    url, path = entry["url"], folder / entry["file"]
    published = published_checksum(entry)
    bar = sys.stderr.isatty()
    getter = pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT_SECONDS, headers=HEADERS)
    try:
        pooch.retrieve(
            url, ":".join(published) if published else None, path.name, path.parent, None, getter
        )
    except ValueError as error:
        raise DataError(
            f"{url} is not the published file: {error} Try again, or download it from elsewhere."
        ) from error
    if published is None:
        record, sha256 = _record(path), file_digest(path)
        write_text(record, f"{sha256}  {path.name}\n")
        log.warning("%s: no published checksum; wrote its sha256 to %s", path.name, record)
    return path


def verify(path: Path, entry: Entry | None, hashes: FileHashes) -> None:
    """Compare a download with its published checksum or, without one, with the recorded hash.

    A file without either, copied by hand, is not checked.

    Raises:
        DataError: it differs.
    """
    expected = published_checksum(entry or {})
    original = "the published file"
    if expected is None and (recorded := _recorded(path)):
        expected, original = ("sha256", recorded), f"the file recorded in {_record(path)}"
    if expected is None:
        return
    actual = hashes(path, expected[0])
    if actual != expected[1]:
        raise DataError(
            f"{path} is not {original}: {expected[0]} {actual}, expected {expected[1]}. Delete it "
            "to download it again, or, to use another version, set data.dir= to its folder"
        )


def _record(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _recorded(path: Path) -> str | None:
    try:
        sha256 = re.match(r"[0-9a-f]{64}\b", _record(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return sha256[0] if sha256 else None
