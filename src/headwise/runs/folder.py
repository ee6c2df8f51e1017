"""The folder of a run: its identity and name, lock and files; `Record` reads them.

A key is in the fingerprint if another value may give other weights, choose other ones as the best,
or change their scores. It is out if it decides only where files are, how fast or with how much
memory the same is computed (results may differ by rounding and the random numbers of dropout), how
much is logged or kept, or how much besides the scores is computed. `docs/settings.md` lists them.
What a run reads counts by its content, not by its path, see `headwise.tasks.check.identity`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import time
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from headwise.errors import HeadwiseError, RunError
from headwise.files import lock, matching_paths, replacing, sync, write_json, write_text
from headwise.runs.environment import environment
from headwise.runs.record import SETTINGS, Floats, Record

# Time, memory, length and output of a run. A sweep that varies one of them measures it, so each of
# its values is a run of its own.
COST = (
    "data.test", "decode.max_tokens", "decode.n_best",  # the best one is the same
    "model.recompute", "trainer.max_updates", "trainer.device", "trainer.threads",
    "trainer.compile", "trainer.keep", "trainer.n_workers",
    "trainer.log_every", "trainer.progress", "trainer.valid_samples", "trainer.head_sentences",
    "attention.chunk_size", "sites.*.chunk_size",  # of linear attention
)  # fmt: skip
PATHS = (  # their content is in the fingerprint
    "data.dir", "data.folder", "data.files", "data.file", "data.downloads", "data.origins",
    "data.archives", "tokenizer.folder",
)  # fmt: skip
NOT_IN_FINGERPRINT = (
    *COST, *PATHS, "paths", "tracker", "experiment_name", "dry_run",
    "data.tasks", "data.licence", "data.notes",
    # suggestions; the keys that use them are in the fingerprint
    "data.vocab_size", "data.max_updates", "data.warmup_updates", "data.stride",
    "data.label_smoothing", "model.lr",
)  # fmt: skip
N_DIGITS = 16  # of hashes in names and records
MAX_SLUG_BYTES = 100


def comparable(container: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in the fingerprint, by dotted key.

    `trainer.save_every` is included only if the saved checkpoints are averaged.
    """
    excluded = set(NOT_IN_FINGERPRINT)
    if not container.get("trainer", {}).get("average"):
        excluded.add("trainer.save_every")
    return flat(container, excluded)


def costs(container: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Those of some dotted keys that are in `COST`, with their values."""
    varied = {key: value for key, value in flat(container).items() if key in keys}
    return {k: value for k, value in varied.items() if any(fnmatchcase(k, cost) for cost in COST)}


def flat(container: Mapping[str, Any], excluded: Collection[str] = ()) -> dict[str, Any]:
    """Settings by dotted key, without keys, groups and patterns of them."""
    settings: dict[str, Any] = {}
    patterns = [key for key in excluded if "*" in key]

    def walk(prefix: str, value: Any) -> None:
        if prefix in excluded or any(fnmatchcase(prefix, pattern) for pattern in patterns):
            return
        if isinstance(value, Mapping) and value:
            for name, child in value.items():
                walk(f"{prefix}.{name}" if prefix else str(name), child)
        else:
            settings[prefix] = value

    walk("", container)
    return settings


def canonical(content: Any) -> str:
    """Plain types as a text that is the same for equal content."""
    return json.dumps(content, sort_keys=True, ensure_ascii=False)


def digest(content: Any) -> str:
    """Hash of plain types, as `N_DIGITS` hexadecimal digits."""
    return hashlib.sha256(canonical(content).encode()).hexdigest()[:N_DIGITS]


def recipe(container: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in the fingerprint of a run: `comparable` without the path of `init_from`."""
    return {key: value for key, value in comparable(container).items() if key != "init_from"}


def fingerprint(container: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """Hash of what determines results: the settings, and the content of what a run reads.

    Args:
        container: the resolved configuration.
        content: hashes of texts, tokenizers and weights, see `headwise.tasks.check`.
    """
    return digest({**recipe(container), **content})


def last_typed(overrides: Iterable[str]) -> list[str]:
    """The overrides that apply: of several for one key, Hydra uses the last."""
    return list({o.lstrip("+").partition("=")[:2]: o for o in overrides}.values())


def slug(overrides: Iterable[str]) -> str:
    """Short name of the overrides that are in the fingerprint, without `=`, `,`, `+`, `/` etc."""
    keys = "|".join(re.escape(key) for key in (*NOT_IN_FINGERPRINT, "experiment", "hydra"))
    excluded = re.compile(rf"[+~]*({keys})[.=/@]".replace(r"\*", r"\w+"))
    included = (o for o in sorted(last_typed(overrides)) if not excluded.match(o))
    words = [re.sub(r"[^\w.-]+", "-", override).strip("-.") for override in included]
    name = "_".join(word for word in words if word)
    # file systems allow 255 bytes, and the fingerprint is appended
    short = name.encode()[:MAX_SLUG_BYTES].decode(errors="ignore").rstrip("-._")
    return short or "run"


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
            identity: hash of the run, see `headwise.tasks.check`.
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
