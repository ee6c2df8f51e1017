"""The record of a run: its settings, scores and statistics, without weights and pictures.

It is read from the folder of a run, or from an archive of many runs: a folder with
`records.jsonl.xz`, one run per line, and `sums.npz`, the statistics of their test items.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import yaml
from omegaconf.errors import OmegaConfBaseException

from headwise.config.saved import current, named, read_back
from headwise.config.schema import Config
from headwise.errors import ConfigError, RunError, UntrustedError
from headwise.files import is_locked, read_json
from headwise.runs.results import SUMMARY, Results
from headwise.track.jsonl import last_record, read_jsonl

Floats = npt.NDArray[np.float64]
MAX_YAML_DEPTH = 50
SETTINGS = "config.yaml"  # in the folder of every run
LAST = "checkpoints/last.json"  # update and costs of the last checkpoint
SUMS = "sums.npz"  # of an archive
PARTS = {  # of a record -> file of a run
    "overrides": "overrides.yaml",
    "config": SETTINGS,
    "results": "results.json",
    "data": "data.json",
    "environment": "environment.json",
    "error": "error.json",
    "summary": SUMMARY,
    "metrics": "metrics.jsonl",
    "heads": "heads.jsonl",
}
TEXTS = ("*.json", "*/*.csv", "*/*.json", "*/*.md", "*/**/*.sha256", "*/**/*.txt")
OF_CORPUS = (".src.txt", ".ref.txt")  # others own them


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


READERS = {".yaml": read_yaml, ".json": read_json, ".jsonl": read_jsonl}


class Record:
    """The record of a run; its parts are read when they are used.

    Args:
        folder: of the run; of an archived run ARCHIVE/NAME.
        content: of an archived run: its line.
        present: names of the files in the folder, if they were listed; see `list_folders`.
    """

    def __init__(
        self,
        folder: Path,
        content: Mapping[str, Any] | None = None,
        present: frozenset[str] | None = None,
    ) -> None:
        self.folder, self.content = folder, content
        self._present = present

    def has(self, name: str) -> bool:
        """Whether the folder has a file of this name."""
        if self._present is None:
            return (self.folder / name).is_file()
        return name in self._present

    def part(self, name: str) -> Any:
        """One of PARTS as plain types; None if the run has none.

        Raises:
            RunError: the file is broken.
        """
        if self.content is not None:
            return self.content.get(name)
        path = self.folder / PARTS[name]
        return READERS[path.suffix](path) if path.is_file() else None

    def names(self, pattern: str) -> list[str]:
        """Names of the texts, such as `analysis/heads.csv`, that match a pattern."""
        if self.content is not None:
            names = self.content.get("files", {})
            return sorted(name for name in names if fnmatchcase(name, pattern))
        paths = sorted(self.folder.glob(pattern))
        return [str(path.relative_to(self.folder)) for path in paths]

    def text(self, name: str) -> str | None:
        """A text by its name; None if the run has none."""
        if self.content is not None:
            text: str | None = self.content.get("files", {}).get(name)
            return text
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def json(self, name: str) -> dict[str, Any]:
        """The content of a JSON text; empty if the run has none.

        Raises:
            RunError: it is broken.
        """
        if self.content is None:
            return read_json(self.folder / name, missing_ok=True)
        content: dict[str, Any] = json.loads(self.text(name) or "{}")
        return content

    @property
    def saved(self) -> dict[str, Any]:
        """The resolved settings, with the keys of the version that wrote them.

        Raises:
            RunError: they are broken, or have interpolations `${…}`, which could read the
                environment.
        """
        content = self.part("config")
        if not isinstance(content, dict) or "${" in str(content):
            raise RunError(f"{self.folder / SETTINGS} is not a resolved configuration of a run")
        return {str(key): value for key, value in content.items()}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings as plain types, with the keys of this version.

        Raises:
            RunError: they are broken, or a key is not known; names the run and the key.
            UntrustedError: the class of its data is of another package.
        """
        with self._of_this_version():
            return current(self.saved)

    @cached_property
    def config(self) -> Config:
        """The typed settings.

        Raises:
            RunError: also for a value of a wrong type; see `settings`.
        """
        settings = self.settings
        with self._of_this_version():
            return read_back(settings)

    @contextmanager
    def _of_this_version(self) -> Iterator[None]:
        """Raise RunError, with the path, for settings that cannot be read in the block."""
        try:
            yield
        except UntrustedError:
            raise
        except (ConfigError, OmegaConfBaseException) as error:
            path, reason = self.folder / SETTINGS, str(error).splitlines()[0]
            raise RunError(
                f"{path} is broken, or of another version of headwise: {reason}"
            ) from error

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.settings["seed"])

    @property
    def length(self) -> int:
        """Number of updates that it reached; before its end, or if it stopped early, at most."""
        results, limit = self.results, int(self.settings["trainer"]["max_updates"])
        return limit if results is None or results.stopped_early else results.updates

    @cached_property
    def data(self) -> Mapping[str, Any]:
        """The content of data.json, such as hashes of text and vocabulary; empty without one."""
        return self.part("data") or {}

    @cached_property
    def results(self) -> Results | None:
        """The results; None for an unfinished run.

        Raises:
            RunError: they are broken, or hold keys of another version.
        """
        return Results.of(self.part("results") or {}, self.folder / PARTS["results"])

    def results_at(self, update: int) -> Results | None:
        """The results if the run was finished at this update, else None."""
        return self.results if self.results and self.results.updates == update else None

    @property
    def updates(self) -> int:
        """Number of updates done: those saved, or logged if no checkpoint is there."""
        if self.results is not None:
            return self.results.updates
        last = self.json(LAST) or self.last_logged()
        return int(last.get("update", 0))

    @property
    def is_running(self) -> bool:
        """Whether a process trains it now; of an archived run, when it was exported."""
        if self.content is not None:
            return bool(self.content.get("running"))
        return bool(is_locked(self.folder / ".lock"))

    def last_saved(self) -> dict[str, Any]:
        """Update and costs of the last checkpoint; empty without a checkpoint.

        Raises:
            RunError: the file is broken.
        """
        saved = self.json(LAST)
        numbers = [saved.get(key) for key in ("update", "train_seconds")]
        if saved and not all(isinstance(number, int | float) for number in numbers):
            path = self.folder / LAST
            raise RunError(f"{path} is broken: no update or train_seconds. Restore it from a copy")
        return saved

    def last_logged(self, prefix: str = "") -> Mapping[str, Any]:
        """The last line of metrics.jsonl with a key that begins with `prefix`; empty if none."""
        if self.content is not None:
            lines = reversed(self.content.get("metrics", ()))
            return next((line for line in lines if any(k.startswith(prefix) for k in line)), {})
        path = self.folder / PARTS["metrics"]
        return last_record(path, f'"{prefix}'.encode()) if path.is_file() else {}

    def sums(self, split: str, unit: str) -> Floats | None:
        """Statistics (items, statistics) of the items of a split; None if there are none.

        Raises:
            RunError: the file is broken.
        """
        if self.content is not None:
            key, arrays = f"{self.folder.name}/{split}.{unit}", archived_sums(self.folder.parent)
            return arrays[key].astype(np.float64) if key in arrays else None
        path = self.folder / "sums" / f"{split}.{unit}.npz"
        try:
            with open(path, "rb") as handle, np.load(handle) as arrays:
                items: Floats = arrays["items"]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, OSError, BadZipFile, zlib.error) as error:
            raise RunError(f"{path} is broken: {error}") from error
        return items

    def line(self) -> Mapping[str, Any]:
        """The record as a line of an archive."""
        if self.content is not None:
            return self.content
        parts = {name: part for name in PARTS if (part := self.part(name)) is not None}
        names = [name for pattern in TEXTS for name in self.names(pattern)]
        ours = [n for n in names if n not in PARTS.values() and not n.endswith(OF_CORPUS)]
        files = {name: self.text(name) for name in ours}
        about = {"run": self.folder.name, "running": self.is_running}
        return {**about, **named(parts), "files": files}

    def all_sums(self) -> Iterator[tuple[str, Floats]]:
        """Yield `<split>.<unit>` and the statistics of every split."""
        if self.content is None:
            folder = self.folder / "sums"
            paths = sorted(folder.rglob("*.npz"))
            names = [str(path.relative_to(folder).with_suffix("")) for path in paths]
        else:
            prefix = f"{self.folder.name}/"
            keys = archived_sums(self.folder.parent)
            names = [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
        for name in names:
            items = self.sums(*name.rsplit(".", 1))
            assert items is not None
            yield name, items


@cache
def archived_sums(archive: Path) -> Mapping[str, Floats]:
    """The arrays of an archive: `<run>/<split>.<unit>` -> statistics of the items."""
    path = archive / SUMS
    arrays: Mapping[str, Floats] = np.load(path) if path.is_file() else {}
    return arrays
