"""Downloads, compared with the published checksum or, without one, with what was got first."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pooch

from headwise.data.digest import FileHashes, file_digest
from headwise.errors import DataError
from headwise.files import write_text

Entry = Mapping[str, str]

CHECKSUMS = ("sha256", "sha1", "md5")
TIMEOUT_SECONDS = 20
# A server that packs once more what is packed already would change the checksum.
HEADERS = {"User-Agent": "headwise", "Accept-Encoding": "identity"}

log = logging.getLogger(__name__)


def published_checksum(entry: Entry) -> tuple[str, str] | None:
    """(algorithm, hexadecimal value) of a download entry, or None when none was published."""
    found = ((name, str(entry[name]).lower()) for name in CHECKSUMS if entry.get(name))
    return next(found, None)


def download(entries: Sequence[Entry], folder: Path) -> Path:
    """The first of `entries` that can be had, as `folder/<file>`, whole or not at all.

    The hash of a file without a published checksum is noted beside it, in `<file>.sha256`.

    Args:
        entries: alternatives, each with `url`, `file`, and at most one of md5, sha1, sha256.
        folder: where to put it.

    Raises:
        DataError: no entry could be had, or a checksum differs.
    """
    problems = []
    for entry in entries:
        try:
            return _fetch(entry, folder)
        except OSError as error:  # those of `requests` are of this class
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
            f"{url} is not the published file: {error} Try again, or get it elsewhere."
        ) from error
    if published is None:
        note, sha256 = _note(path), file_digest(path)
        write_text(note, f"{sha256}  {path.name}\n")
        log.warning("%s: no checksum was published; its sha256 is noted in %s", path.name, note)
    return path


def verify(path: Path, entry: Entry | None, hashes: FileHashes) -> None:
    """Compare a download with its published checksum or, without one, with the noted hash.

    Raises:
        DataError: it differs. A file without either, put there by hand, is taken.
    """
    expected = published_checksum(entry or {})
    what = "the published file"
    if expected is None and (noted := _noted(path)):
        expected, what = ("sha256", noted), f"what {_note(path)} recorded"
    if expected is None:
        return
    actual = hashes(path, expected[0])
    if actual != expected[1]:
        raise DataError(
            f"{path} is not {what}: {expected[0]} {actual}, expected {expected[1]}. Delete it to "
            "have it fetched again, or, if it is your own version, name a folder that holds it "
            "with data.dir="
        )


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _noted(path: Path) -> str | None:
    try:
        found = re.match(r"[0-9a-f]{64}\b", _note(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found[0] if found else None
