"""Fetching an archive: progress, checksum, atomic rename, and a record of what was got."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headwise.errors import DataError
from headwise.files import write_text

CHECKSUMS = ("sha256", "sha1", "md5")
TIMEOUT_SECONDS = 20
MANIFEST = "manifest.json"
_CHUNK_BYTES = 1 << 18


def published_checksum(entry: Mapping[str, str]) -> tuple[str, str] | None:
    """(algorithm, hexadecimal value) of a download entry, or None when none was published."""
    for algorithm in CHECKSUMS:
        if entry.get(algorithm):
            return algorithm, str(entry[algorithm]).lower()
    return None


def download(entries: Sequence[Mapping[str, str]], folder: Path, progress: bool = True) -> Path:
    """The first of `entries` that can be had, as `folder/<file>`.

    The file appears under its name only when it is whole; `manifest.json` beside it records
    address, size, hash, and whether a published checksum was there to compare with.

    Args:
        entries: alternatives, each with `url`, `file`, and at most one of md5, sha1, sha256.
        folder: where to put it.
        progress: show a bar.

    Raises:
        DataError: no entry could be had, or a checksum differs.
    """
    problems = []
    for entry in entries:
        try:
            return _fetch(entry, folder, progress)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, OSError) as error:
            reason = getattr(error, "reason", None) or error
            problems.append(f"{entry['url']}: {reason}")
    raise DataError("; ".join(problems))


def _fetch(entry: Mapping[str, str], folder: Path, progress: bool) -> Path:
    from tqdm import tqdm

    url, path = entry["url"], folder / entry["file"]
    request = urllib.request.Request(url, headers={"User-Agent": "headwise"})
    published = published_checksum(entry)
    hashes = {"sha256": hashlib.sha256()}
    if published:
        hashes.setdefault(published[0], hashlib.new(published[0]))
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        # Only now: a try without network leaves no empty folders behind.
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
        n_expected = int(response.headers.get("Content-Length") or 0)
        try:
            with (
                temporary.open("wb") as stream,
                tqdm(
                    total=n_expected or None,
                    unit="B",
                    unit_scale=True,
                    desc=path.name,
                    disable=None if progress else True,
                ) as bar,
            ):
                while chunk := response.read(_CHUNK_BYTES):
                    stream.write(chunk)
                    for digest in hashes.values():
                        digest.update(chunk)
                    bar.update(len(chunk))
            n_bytes = temporary.stat().st_size
            if n_expected and n_bytes != n_expected:
                raise http.client.IncompleteRead(b"", n_expected - n_bytes)
            _verify(url, published, hashes)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    _record(path, folder, url, n_bytes, hashes["sha256"].hexdigest(), published)
    return path


def _verify(url: str, published: tuple[str, str] | None, hashes: Mapping[str, Any]) -> None:
    if published is None:
        return
    algorithm, expected = published
    actual = hashes[algorithm].hexdigest()
    if actual != expected:
        raise DataError(
            f"{url} is not the published file: {algorithm} {actual}, expected {expected}. "
            "Nothing was kept; try again, or get it elsewhere."
        )


def recorded_sha256(path: Path, folder: Path) -> str | None:
    """Hash that `path` below `folder` had when it was downloaded; None if it was not from here."""
    record = _records(folder).get(str(path.relative_to(folder)))
    return str(record["sha256"]) if isinstance(record, dict) and "sha256" in record else None


def _records(folder: Path) -> dict[str, Any]:
    try:
        records = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return records if isinstance(records, dict) else {}


def _record(
    path: Path,
    folder: Path,
    url: str,
    n_bytes: int,
    sha256: str,
    published: tuple[str, str] | None,
) -> None:
    manifest = folder / MANIFEST
    entries = _records(folder)
    entries[str(path.relative_to(folder))] = {
        "url": url,
        "bytes": n_bytes,
        "sha256": sha256,
        "verified_against": ":".join(published) if published else None,
        "fetched": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    write_text(manifest, json.dumps(entries, indent=1, sort_keys=True) + "\n")
    if published is None:
        print(f"{path.name}: no checksum was published; sha256 {sha256} noted in {manifest}")
