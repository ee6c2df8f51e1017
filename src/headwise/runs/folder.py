"""The folder of a run: its name, lock and files; `Record` reads them."""

from __future__ import annotations

import os
import shlex
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from headwise.errors import HeadwiseError, RunError
from headwise.files import lock, matching_paths, replacing, sync, write_json, write_text
from headwise.runs.environment import environment
from headwise.runs.fingerprint import digest, recipe, slug
from headwise.runs.record import SETTINGS, Floats, Record

ARCHIVE = "records.jsonl.xz"  # in a folder with the records of many runs; see `Record`
N_LOCK_ATTEMPTS = 3  # `is_locked` of another process holds a lock for an instant
IN_ARCHIVE = "in an archive of records, without weights: give the folder of a run"
# <name>.json in a run folder that an evaluation must not overwrite.
RESERVED_NAMES = ("data", "environment", "error", "pruned", "results", "summary")


class RunFolder:
    """Finds, locks and writes the folder of a run.

    Attributes:
        path: the folder.
        metrics: the record of scalars, one json object per line.
        heads: the record of head statistics.
        checkpoints: folder of the checkpoints.
        last: the last checkpoint, from which training resumes.
        figures: folder of the figures.
        sums: folder of the statistics of test items, `<split>.<unit>.npz`.
        results: the file of the final scores.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.heads = path / "heads.jsonl"
        self.checkpoints = path / "checkpoints"
        self.last = self.checkpoints / "last.pt"
        self.figures = path / "figures"
        self.sums = path / "sums"
        self.results = path / "results.json"

    @classmethod
    def locate(
        cls, parent: Path, overrides: list[str], identity: str, container: Mapping[str, Any]
    ) -> RunFolder:
        """The folder of a run: of its exact name, else the only one that ends with its hash.

        Args:
            parent: folder of the runs.
            overrides: the command line, for the name of a new folder.
            identity: hash of the run, see `headwise.tasks.identity`.
            container: its resolved configuration.

        Raises:
            RunError: several folders end with the hash, or the run in the folder is another one.
        """
        exact = parent / f"{slug(overrides)}-{identity}"
        others = [] if exact.is_dir() else sorted(parent.glob(f"*-{identity}/{SETTINGS}"))
        if len(others) > 1:
            folders = ", ".join(str(path.parent) for path in others)
            raise RunError(f"{folders} are copies of one run: move all but one out of {parent}")
        folder = cls(others[0].parent if others else exact)
        if (folder.path / SETTINGS).is_file():
            folder._check_identity(identity, container)
        return folder

    def _check_identity(self, identity: str, container: Mapping[str, Any]) -> None:
        """Raise RunError unless the run has these settings and this hash."""
        record = Record(self.path)
        ours = recipe(container) | {"identity": identity}
        saved = recipe(record.saved) | {"identity": record.data.get("identity", identity)}
        other = [k for k in ours | saved if digest(ours.get(k)) != digest(saved.get(k))]
        if other:
            raise RunError(
                f"{self.path} has the name of this run, but another {', '.join(other)}: its files "
                "were changed. Restore or move it, or set experiment_name=… for a new folder"
            )

    @classmethod
    def existing(cls, path: str | Path, key: str = "run") -> RunFolder:
        """The run in an existing folder.

        Args:
            path: given by the user.
            key: name of the option.

        Raises:
            RunError: the folder holds no run.
        """
        folder = Path(path)
        if (folder / SETTINGS).is_file():
            return cls(folder)
        if any((path / ARCHIVE).is_file() for path in (folder, folder.parent)):
            raise RunError(f"{key}={folder} is {IN_ARCHIVE}")
        raise RunError(f"{key}={folder} holds no run: no config.yaml there")

    def make(self) -> None:
        """Create the folder with its checkpoints/ and its lock file."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            (self.path / ".lock").touch()
            sync(self.path.parent)  # the name of a new one
        except OSError as error:
            raise RunError(
                f"cannot write the run folder {self.path}: {error.strerror}. Set paths.outputs to "
                "a writable folder"
            ) from error

    def check_writable(self, others: str = "") -> None:
        """Raise RunError if no file can be written to the folder; `others`: keys that help."""
        if not os.access(self.path, os.W_OK):
            raise RunError(
                f"{self.path} cannot be written; {others}copy the run: "
                f"{shlex.join(['cp', '-rL', str(self.path), 'FOLDER'])}"
            )

    @contextmanager
    def claimed(self, wait: bool = False) -> Iterator[None]:
        """Lock the folder for this process during the block.

        Args:
            wait: for another process to release it.

        Raises:
            RunError: another process holds the lock.
        """
        with open(self.path / ".lock", "a+") as handle:
            for _ in range(N_LOCK_ATTEMPTS):
                if lock(handle, wait) is not False:
                    break
                time.sleep(0.05)
            else:
                raise RunError(
                    f"another process is training in {self.path}; wait for it or stop it"
                )
            yield

    @contextmanager
    def error_recorded(self, overrides: list[str]) -> Iterator[None]:
        """Write an exception of the block, except for a requested stop, to error.json.

        Args:
            overrides: the command line.
        """
        try:
            yield
        except Exception as error:
            is_expected = isinstance(error, HeadwiseError)
            content = {
                "error": type(error).__name__,
                "message": str(error),
                "overrides": overrides,
                "traceback": None if is_expected else "".join(traceback.format_exception(error)),
            }
            with suppress(OSError, HeadwiseError):  # `error` is raised, not these
                self.write_json("error.json", content)
            raise

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a small json file atomically."""
        write_json(self.path / name, content)

    def write_sums(self, name: str | Path, unit: str, items: Floats) -> None:
        """Write the statistics (items, statistics) of a split atomically, compressed."""
        path = self.sums / f"{name}.{unit}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "wb") as handle:
            np.savez_compressed(handle, items=items)

    def describe(self, container: Mapping[str, Any], overrides: list[str], **more: object) -> None:
        """Write config.yaml, overrides.yaml and environment.json, with `more`."""
        write_text(self.path / SETTINGS, OmegaConf.to_yaml(OmegaConf.create(dict(container))))
        write_text(self.path / "overrides.yaml", OmegaConf.to_yaml(OmegaConf.create(overrides)))
        self.write_json("environment.json", environment() | more)


def find_folders(patterns: Sequence[str]) -> list[Path]:
    """Folders of runs that match `patterns` (folders or globs), or up to two levels below.

    Raises:
        RunError: a folder does not exist, or there are only archived runs, without weights.
    """
    folders = list_folders(patterns)
    runs = [run for run, names in folders if SETTINGS in names]
    if folders and not runs:
        raise RunError(f"{folders[0][0]} is {IN_ARCHIVE}")
    return runs


def list_folders(
    patterns: Sequence[str], missing_ok: bool = False
) -> list[tuple[Path, frozenset[str]]]:
    """Like `find_folders`, with the names in each folder.

    Includes archives, and the patterns ARCHIVE/NAME, without names, unless that folder is a run.

    Args:
        patterns: folders or globs.
        missing_ok: ignore folders that do not exist.
    """
    folders: dict[Any, tuple[Path, frozenset[str]]] = {}
    for pattern in patterns:
        path = Path(pattern).expanduser()
        paths, is_of_archive = matching_paths(path), (path.parent / ARCHIVE).is_file()
        if not (paths or is_of_archive or missing_ok):
            raise RunError(f"{pattern}: folder not found")
        for run, names in chain.from_iterable(_scan(one, 2) for one in paths):
            if not run.name.startswith("."):  # unfinished pruned runs
                about = os.stat(run)  # the same for all paths of a folder
                folders.setdefault((about.st_dev, about.st_ino), (run, names))
        if is_of_archive and not (path / SETTINGS).is_file():
            folders[path] = path, frozenset()
    return list(folders.values())


def _scan(folder: Path, depth: int) -> Iterator[tuple[Path, frozenset[str]]]:
    """Yield the runs and archives in `folder` or up to `depth` levels below, with their files.

    No run is in another; runs may be below an archive.
    """
    try:
        with os.scandir(folder) as entries:
            below = {entry.name: entry for entry in entries}
    except OSError:  # not a folder, or not readable
        return
    if below.keys() & {SETTINGS, ARCHIVE}:
        yield folder, frozenset(below)
    if depth and SETTINGS not in below:
        for name in sorted(below):
            if below[name].is_dir():
                yield from _scan(folder / name, depth - 1)
