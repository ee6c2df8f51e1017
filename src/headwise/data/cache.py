"""Folders that are made once: locked while made, renamed when whole, checked when opened."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headwise.errors import HeadwiseError
from headwise.files import FORBIDDEN, FULL, locked

MANIFEST = "manifest.json"

log = logging.getLogger(__name__)


def make_once(
    folder: Path, make: Callable[[Path], dict[str, Any]], key: str = "paths.cache"
) -> dict[str, Any]:
    """The manifest of `folder`, which `make` fills if it is not there or not whole.

    `make` is given an empty temporary folder beside `folder` and returns what the manifest
    shall hold (plain types). Processes that ask at the same time wait for the first. What was
    begun and not finished, by an error or a kill, is never taken for whole.

    Args:
        key: the setting that says where `folder` lies, for messages.

    Raises:
        HeadwiseError: the place cannot be written to, or the disk is full.
    """
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest
    with _explain_write_errors(folder, key):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_name(folder.name + ".lock")):
            # a process that we waited for may have made it
            return read_manifest(folder) or _make(folder, make)


def _make(folder: Path, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    if folder.exists():
        log.warning("%s is incomplete and is made again", folder)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        manifest = make(partial)
        sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
        record = json.dumps({"sizes": sizes, "manifest": manifest}, indent=1)
        (partial / MANIFEST).write_text(record, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What was recorded about `folder`; None if it is missing or a file's size has changed."""
    try:
        record = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        sizes: dict[str, int] = record["sizes"]
        manifest: dict[str, Any] = record["manifest"]
        whole = all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if whole else None


@contextmanager
def _explain_write_errors(folder: Path, key: str) -> Iterator[None]:
    """Turn a full disk or a folder that cannot be written into a message; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            free = shutil.disk_usage(folder.parent).free
            raise HeadwiseError(
                f"the disk is full: {folder} could not be written ({free // 2**20} MiB free); "
                f"make room there or set {key}= to another disk"
            ) from error
        ours = error.filename is not None and str(folder.parent) in str(error.filename)
        if ours and error.errno in FORBIDDEN:
            raise HeadwiseError(
                f"cannot write {error.filename}: {error.strerror}; "
                f"set {key}= to a folder that can be written"
            ) from error
        raise
