"""Cache folders: locked while filled, renamed when complete, checked when opened."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwise.files import locked, machine_cache_dir, rename

MANIFEST = "manifest.json"
ENCODED = "encoded"  # folder of the cache

log = logging.getLogger(__name__)


def cache_of_training(saved: str) -> Path:
    """`paths.cache` of a run if it is a cache that can be written to here, else this machine's.

    The run may be another person's: a cache has encoded data of headwise in it.
    """
    encoded = Path(saved, ENCODED)
    # first, as `glob` raises for what is in a folder without access, such as another person's home
    can_write = all(os.access(folder, os.R_OK | os.W_OK | os.X_OK) for folder in (saved, encoded))
    is_cache = can_write and any(encoded.glob(f"*/{MANIFEST}"))
    return Path(saved) if is_cache else machine_cache_dir()


def make_once(folder: Path, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The manifest of `folder`, which `make` fills if it is missing or incomplete.

    `make` fills an empty temporary folder and returns the manifest (plain types). Concurrent
    processes wait for the first.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    manifest = read_manifest(folder)
    if manifest is not None:
        return manifest
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(folder.name + ".lock")):
        # another process may have filled it meanwhile
        return read_manifest(folder) or _make(folder, make)


def _make(folder: Path, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    if folder.exists():
        log.warning("%s is incomplete and is created again", folder)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a killed process
    try:
        partial.mkdir()
        manifest = make(partial)
        sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
        record = json.dumps({"sizes": sizes, "manifest": manifest}, indent=1)
        (partial / MANIFEST).write_text(record, encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        rename(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return manifest


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of `folder`; None if it is missing or the size of a file has changed."""
    try:
        record = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        sizes: dict[str, int] = record["sizes"]
        manifest: dict[str, Any] = record["manifest"]
        complete = all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if complete else None
