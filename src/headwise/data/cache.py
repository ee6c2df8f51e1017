"""Folders that are made once: locked while made, renamed when whole, checked when opened."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwise.files import locked

MANIFEST = "manifest.json"

log = logging.getLogger(__name__)


def make_once(folder: Path, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The manifest of `folder`, which `make` fills if it is not there or not whole.

    `make` is given an empty temporary folder beside `folder` and returns what the manifest
    shall hold (plain types). Processes that ask at the same time wait for the first. What was
    begun and not finished, by an error or a kill, is never taken for whole.

    Raises:
        OSError: the place cannot be written to, or the disk is full.
    """
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest
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
