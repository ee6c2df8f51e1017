"""Cache folders: locked while filled, renamed when complete, checked when opened."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from headwise.data.sources.digest import combined_digest
from headwise.file_names import check_file_name
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


def prepared(
    cache_dir: Path,
    name: str,
    identity: Mapping[str, Any],
    make: Callable[[Path], dict[str, Any]],
    training: Collection[str] | None = None,
) -> tuple[Path, str, dict[str, Any]]:
    """Encoded data: its folder, a hash of what a run is trained on, and the manifest.

    See `make_once`.

    Args:
        cache_dir: of all data.
        name: the beginning of the folder's name.
        identity: all that the files depend on, as plain types; "splits" names files.
        make: fills the folder.
        training: the splits in the hash, as test sets may be added and replaced; None: all.

    Raises:
        ConfigError: a name that is a path.
    """
    splits = identity.get("splits", {})
    for file in (name, *splits):
        check_file_name("data.name or a split", file)
    hashed = splits if training is None else {s: splits[s] for s in splits if s in training}
    trained = {**identity, "splits": hashed}
    every, digest = (combined_digest([json.dumps(i, sort_keys=True)]) for i in (identity, trained))
    folder = cache_dir / ENCODED / f"{name}-{every[:16]}"
    return folder, digest, make_once(folder, make)


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
