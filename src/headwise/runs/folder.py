"""The folder of a run, which holds all that the other commands read."""

from __future__ import annotations

import os
import re
import shlex
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headwise.config.saved import current, read_back
from headwise.config.schema import Config
from headwise.errors import ConfigError, RunError
from headwise.files import (
    lock,
    matching_paths,
    read_json,
    replacing,
    sync,
    write_json,
    write_text,
)
from headwise.runs.environment import environment
from headwise.runs.fingerprint import digest, recipe, slug
from headwise.runs.results import Results

Floats = npt.NDArray[np.float64]
MAX_YAML_DEPTH = 50
SETTINGS = "config.yaml"  # in the folder of every run
ARCHIVE = "records.jsonl.xz"  # in a folder with the records of many runs; see `Record`
N_LOCK_ATTEMPTS = 3  # `is_locked` of another process holds a lock for an instant
IN_ARCHIVE = "in an archive of records, without weights: give the folder of a run"
# <name>.json in a run folder that an evaluation must not overwrite.
RESERVED_NAMES = ("data", "environment", "error", "pruned", "results", "summary")


class RunFolder:
    """Paths and small files of one run.

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
        data = read_json(self.path / "data.json", missing_ok=True)
        ours = recipe(container) | {"identity": identity}
        saved = recipe(self.read_config()) | {"identity": data.get("identity", identity)}
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

    def read_results(self) -> Results | None:
        """Content of results.json; None for an unfinished run."""
        return Results.read(self.results)

    def read_last(self) -> dict[str, Any]:
        """Update and costs of the last checkpoint; empty without a checkpoint."""
        path = self.checkpoints / "last.json"
        saved = read_json(path, missing_ok=True)
        numbers = [saved.get(key) for key in ("update", "train_seconds")]
        if saved and not all(isinstance(number, int | float) for number in numbers):
            raise RunError(f"{path} is broken: no update or train_seconds. Restore it from a copy")
        return saved

    def results_at(self, update: int) -> Results | None:
        """Content of results.json if the run was finished at this update, else None."""
        results = self.read_results()
        return results if results is not None and results.updates == update else None

    def read_config(self) -> dict[str, Any]:
        """The resolved configuration.

        Raises:
            RunError: it is broken, or has interpolations `${…}`, which could read the environment.
        """
        return checked_settings(read_yaml(self.path / SETTINGS), self.path)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a small json file atomically."""
        write_json(self.path / name, content)

    def write_sums(self, name: str | Path, unit: str, items: Floats) -> None:
        """Write the statistics (items, statistics) of a split atomically, compressed."""
        path = self.sums / f"{name}.{unit}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "wb") as handle:
            np.savez_compressed(handle, items=items)

    def read_sums(self, name: str, unit: str) -> Floats | None:
        """Statistics written by `write_sums`; None if the file does not exist.

        Raises:
            RunError: the file is broken.
        """
        path = self.sums / f"{name}.{unit}.npz"
        try:
            with open(path, "rb") as handle, np.load(handle) as arrays:
                items: Floats = arrays["items"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, OSError, BadZipFile, zlib.error) as error:
            raise RunError(f"{path} is broken: {error}") from error
        return items

    def describe(self, container: Mapping[str, Any], overrides: list[str], **more: object) -> None:
        """Write config.yaml, overrides.yaml and environment.json, with `more`."""
        write_text(self.path / SETTINGS, OmegaConf.to_yaml(OmegaConf.create(dict(container))))
        write_text(self.path / "overrides.yaml", OmegaConf.to_yaml(OmegaConf.create(overrides)))
        self.write_json("environment.json", environment() | more)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Reads 1e-3 as a number, as OmegaConf does, which takes twenty times as long."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789")
)


def read_yaml(path: Path) -> Any:
    """Content of a small yaml of a run as plain types.

    Raises:
        RunError: it is not yaml, or has aliases or deep nesting, which a malicious file may have.
    """
    depth = 0
    try:
        text = path.read_text(encoding="utf-8")
        for event in yaml.parse(text, _Loader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > MAX_YAML_DEPTH:
                raise RunError(f"{path} is broken: aliases and deep nesting are not allowed")
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"{path} is broken: {reason}. Restore it from a copy") from error


def checked_settings(content: Any, folder: Path) -> dict[str, Any]:
    """The saved settings of a run, if they are resolved; else raise RunError."""
    if not isinstance(content, dict) or "${" in str(content):
        raise RunError(f"{folder / SETTINGS} is not a resolved configuration of a run")
    return {str(key): value for key, value in content.items()}


def read_config(folder: RunFolder) -> Config:
    """The typed configuration of a run.

    Raises:
        RunError: it is broken, or was written by a version with other keys.
    """
    with saved_by_this_version(folder.path):
        return read_back(current(folder.read_config()))


def typed_config(settings: Mapping[str, Any], folder: Path) -> Config:
    """Settings of this version as dataclasses.

    Raises:
        RunError: a value of a wrong type; names the folder.
    """
    with saved_by_this_version(folder):
        return read_back(settings)


@contextmanager
def saved_by_this_version(folder: Path) -> Iterator[None]:
    """Raise RunError, with the path, for settings that cannot be read in the block."""
    try:
        yield
    except (ConfigError, OmegaConfBaseException) as error:
        reason = str(error).splitlines()[0]
        raise RunError(
            f"{folder / SETTINGS} is broken, or of another version of headwise: {reason}"
        ) from error


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
