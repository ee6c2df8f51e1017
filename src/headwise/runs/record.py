"""The record of a run: its settings, scores and statistics, without weights and pictures.

It is read from the folder of a run, or from an archive of many runs: a folder with
`records.jsonl.xz`, one run per line, and `sums.npz`, the statistics of their test items.
"""

from __future__ import annotations

import io
import json
import lzma
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from headwise.config.saved import current, named
from headwise.config.schema import Config
from headwise.errors import RunError, counted, meant
from headwise.file_names import check_file_name
from headwise.files import is_locked, matching_paths, read_json, replacing
from headwise.runs.fingerprint import canonical, comparable
from headwise.runs.folder import (
    ARCHIVE,
    SETTINGS,
    Floats,
    RunFolder,
    checked_settings,
    list_folders,
    read_yaml,
    saved_by_this_version,
    typed_config,
)
from headwise.runs.results import FORMAT, Results, check_format
from headwise.track.jsonl import last_record, read_jsonl

if TYPE_CHECKING:
    import pandas as pd

R = TypeVar("R", bound="Record")
SUMS = "sums.npz"
PARTS = {  # of a record -> file of a run
    "overrides": "overrides.yaml",
    "config": "config.yaml",
    "results": "results.json",
    "data": "data.json",
    "environment": "environment.json",
    "error": "error.json",
    "summary": "summary.json",
    "metrics": "metrics.jsonl",
    "heads": "heads.jsonl",
}
READERS = {".yaml": read_yaml, ".json": read_json, ".jsonl": read_jsonl}
TEXTS = ("*.json", "*/*.csv", "*/*.json", "*/*.md", "*/**/*.sha256", "*/**/*.txt")
OF_CORPUS = (".src.txt", ".ref.txt")  # others own them
CONTENTS = ("text", "vocabulary", "init_weights")  # hashes in data.json, in a frame
COSTS = ("updates", "tokens_per_second", "wall_seconds")  # of results, in a frame
DATE = (1980, 1, 1, 0, 0, 0)  # of the files in an archive, so that its bytes are the same


class Record:
    """The record of a run; its parts are read when they are used.

    Args:
        folder: of the run; of an archived run ARCHIVE/NAME.
        content: of an archived run: its line.
        present: names of the files in the folder, as `list_folders` returns them.
    """

    def __init__(
        self,
        folder: Path,
        content: Mapping[str, Any] | None = None,
        present: frozenset[str] = frozenset(),
    ) -> None:
        self.folder, self._content = folder, content
        self.present = present

    def part(self, name: str) -> Any:
        """One of PARTS as plain types; None if the run has none.

        Raises:
            RunError: the file is broken.
        """
        if self._content is not None:
            return self._content.get(name)
        path = self.folder / PARTS[name]
        return READERS[path.suffix](path) if path.is_file() else None

    def names(self, pattern: str) -> list[str]:
        """Names of the texts, such as `analysis/heads.csv`, that match a pattern."""
        if self._content is not None:
            names = self._content.get("files", {})
            return sorted(name for name in names if fnmatchcase(name, pattern))
        paths = sorted(self.folder.glob(pattern))
        return [str(path.relative_to(self.folder)) for path in paths]

    def text(self, name: str) -> str | None:
        """A text by its name; None if the run has none."""
        if self._content is not None:
            text: str | None = self._content.get("files", {}).get(name)
            return text
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def json(self, name: str) -> dict[str, Any]:
        """The content of a JSON text; empty if the run has none.

        Raises:
            RunError: it is broken.
        """
        if self._content is None:
            return read_json(self.folder / name, missing_ok=True)
        content: dict[str, Any] = json.loads(self.text(name) or "{}")
        return content

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings as plain types, with the keys of this version.

        Raises:
            RunError: they are broken, or a key is not known; names the run and the key.
        """
        saved = checked_settings(self.part("config"), self.folder)
        with saved_by_this_version(self.folder):
            return current(saved)

    @cached_property
    def config(self) -> Config:
        """The typed settings."""
        return typed_config(self.settings, self.folder)

    @cached_property
    def results(self) -> Results | None:
        """The results; None for an unfinished run."""
        return Results.of(self.part("results") or {}, self.folder / PARTS["results"])

    @property
    def updates(self) -> int:
        """Number of updates done: those saved, or logged if no checkpoint is there."""
        if self.results is not None:
            return self.results.updates
        last = self.json("checkpoints/last.json") or self.last_logged()
        return int(last.get("update", 0))

    @property
    def is_running(self) -> bool:
        """Whether a process trains it now; of an archived run, when it was exported."""
        if self._content is not None:
            return bool(self._content.get("running"))
        return bool(is_locked(self.folder / ".lock"))

    def last_logged(self, prefix: str = "") -> Mapping[str, Any]:
        """The last line of metrics.jsonl with a key that begins with `prefix`; empty if none."""
        if self._content is not None:
            lines = reversed(self._content.get("metrics", ()))
            return next((line for line in lines if any(k.startswith(prefix) for k in line)), {})
        path = self.folder / PARTS["metrics"]
        return last_record(path, f'"{prefix}'.encode()) if path.is_file() else {}

    def sums(self, split: str, unit: str) -> Floats | None:
        """Statistics (items, statistics) of the items of a split; None if there are none."""
        if self._content is None:
            return RunFolder(self.folder).read_sums(split, unit)
        key, arrays = f"{self.folder.name}/{split}.{unit}", _arrays(self.folder.parent / SUMS)
        return arrays[key].astype(np.float64) if key in arrays else None

    def _line(self) -> Mapping[str, Any]:
        """The record as a line of an archive."""
        if self._content is not None:
            return self._content
        parts = {name: part for name in PARTS if (part := self.part(name)) is not None}
        names = [name for pattern in TEXTS for name in self.names(pattern)]
        ours = [n for n in names if n not in PARTS.values() and not n.endswith(OF_CORPUS)]
        files = {name: self.text(name) for name in ours}
        about = {"run": self.folder.name, "running": self.is_running}
        return {**about, **named(parts), "files": files}

    def all_sums(self) -> Iterator[tuple[str, Floats]]:
        """Yield `<split>.<unit>` and the statistics of every split."""
        if self._content is None:
            folder = RunFolder(self.folder).sums
            paths = sorted(folder.rglob("*.npz"))
            names = [str(path.relative_to(folder).with_suffix("")) for path in paths]
        else:
            prefix = f"{self.folder.name}/"
            keys = _arrays(self.folder.parent / SUMS)
            names = [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
        for name in names:
            items = self.sums(*name.rsplit(".", 1))
            assert items is not None
            yield name, items


@cache
def _arrays(path: Path) -> Mapping[str, Floats]:
    arrays: Mapping[str, Floats] = np.load(path) if path.is_file() else {}
    return arrays


def archived(folder: Path, kind: type[R]) -> Iterator[R]:
    """Yield the records of an archive.

    Raises:
        RunError: it is broken, or of another format.
    """
    try:
        with lzma.open(folder / ARCHIVE, "rt", encoding="utf-8") as lines:
            for content in map(json.loads, lines):
                check_format(content["format"], folder / ARCHIVE)
                check_file_name(f"{folder / ARCHIVE}: run", content["run"])
                present = frozenset(PARTS[name] for name in PARTS if name in content)
                yield kind(folder / content["run"], content, present)
    except (lzma.LZMAError, EOFError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder / ARCHIVE} is broken: {error!r}. Copy it again") from error


def find_records(patterns: Sequence[str], kind: type[R], missing_ok: bool = False) -> list[R]:
    """Records of the runs that match `patterns`, or are up to two levels below, or in archives.

    Args:
        patterns: folders or globs; ARCHIVE/NAME is one run of an archive, or several by a glob.
        kind: class of the records.
        missing_ok: ignore folders that do not exist.

    Raises:
        RunError: a folder or a run does not exist.
    """
    records: list[R] = []
    for folder, names in list_folders(patterns, missing_ok):
        if SETTINGS in names:  # also in or below an archive
            records.append(kind(folder, present=names))
        elif ARCHIVE in names:
            records += archived(folder, kind)
        else:
            runs = list(archived(folder.parent, kind))
            chosen = [run for run in runs if run.folder.match(folder.name)]
            if not (chosen or matching_paths(folder)):
                hint = meant(str(folder), (str(run.folder) for run in runs))
                raise RunError(f"{folder}: no such run in the archive.{hint}")
            records += chosen
    above = cache(Path.resolve)  # paths to one archive by links are one
    by_place: dict[Path, R] = {}
    for run in records:
        place = above(run.folder.parent) / run.folder.name
        if place not in by_place or run._content is None:  # a folder, rather than an archive
            by_place[place] = run
    return list(by_place.values())


def existing_record(path: str, kind: type[R], key: str = "run") -> R:
    """The record of one run: a folder, or ARCHIVE/NAME.

    Raises:
        RunError: there is none; names the option `key`.
    """
    if (Path(path).parent / ARCHIVE).is_file() and not (Path(path) / SETTINGS).is_file():
        records = find_records([path], kind)
        if len(records) != 1:
            raise RunError(f"{key}={path} matches {counted(len(records), 'run')}: name one")
        return records[0]
    return kind(RunFolder.existing(path, key).path)


def export_records(records: Sequence[Record], folder: Path, overwrite: bool = False) -> None:
    """Write an archive of runs, atomically; the same records give the same bytes.

    Args:
        records: of the runs.
        folder: of the archive.
        overwrite: replace an archive that is there.

    Raises:
        RunError: no runs, two with the same name, an archive that is there already, or a folder
            that is a run or has runs in it, which would be taken for the archive's.
    """
    if not records:
        raise RunError(f"export={folder}: no run to export, so nothing is written")
    if any(SETTINGS in names for _, names in list_folders([str(folder)], missing_ok=True)):
        raise RunError(f"export={folder} has runs in it: an archive needs a folder of its own")
    if (folder / ARCHIVE).is_file() and not overwrite:
        raise RunError(f"export={folder} is an archive already: overwrite=true replaces it")
    names = Counter(record.folder.name for record in records)
    if repeated := [name for name, n in names.items() if n > 1]:
        raise RunError(f"several runs are called {repeated[0]}: export them to several archives")
    folder.mkdir(parents=True, exist_ok=True)
    # both files are complete before the first is replaced
    with replacing(folder / SUMS) as sums, replacing(folder / ARCHIVE) as archive:
        with zipfile.ZipFile(sums, "w") as arrays:
            for record in records:
                for name, items in record.all_sums():
                    about = zipfile.ZipInfo(f"{record.folder.name}/{name}.npy", DATE)
                    arrays.writestr(about, _smallest(items), zipfile.ZIP_LZMA)
        with lzma.open(archive, "wt", preset=9) as file:
            for record in records:
                line = {**record._line(), "format": FORMAT}
                json.dump(line, file, ensure_ascii=False, separators=(",", ":"))
                file.write("\n")
    _arrays.cache_clear()


def _smallest(items: Floats) -> bytes:
    """An array as a npy file, in float32 where that is exact; its columns compress best."""
    rounded = items.astype(np.float32)
    content = io.BytesIO()
    exact = rounded if np.array_equal(rounded, items) else items
    np.lib.format.write_array(content, np.asfortranarray(exact), allow_pickle=False)
    return content.getvalue()


def frame(paths: Sequence[str | Path]) -> pd.DataFrame:
    """One row a run: the settings that determine its result, and its scores.

    See `headwise.records`.
    """
    import pandas as pd

    runs = find_records(list(map(str, paths)), Record)
    return pd.DataFrame([{"run": str(run.folder), **frame_row(run)} for run in runs])


def frame_row(run: Record) -> dict[str, Any]:
    """The row of a run in `frame`, without its folder; lists and mappings are JSON texts.

    Raises:
        RunError: a file of the run is broken, or a key of its settings is not known.
    """
    row, data = comparable(run.settings), run.part("data") or {}
    row |= {key: data.get(key) for key in CONTENTS} | data.get("swept", {})
    if (results := run.results) is not None:
        row |= {key: getattr(results, key) for key in COSTS}
        for split, scores in results.scores.items():
            row |= {f"{split}/{key}": e["score"] for key, e in scores.items() if "score" in e}
    # `groupby` needs values with a hash
    return {k: canonical(v) if isinstance(v, (list, dict)) else v for k, v in row.items()}
