"""The records of many runs, in folders and archives: find them, and write an archive."""

from __future__ import annotations

import io
import json
import lzma
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from headwise.errors import RunError, counted, meant
from headwise.files import check_file_name, matching_paths, replacing
from headwise.runs.folder import ARCHIVE, RunFolder, list_folders
from headwise.runs.record import PARTS, SETTINGS, SUMS, Floats, Record, archived_sums
from headwise.runs.results import FORMAT, check_format

R = TypeVar("R", bound=Record)
DATE = (1980, 1, 1, 0, 0, 0)  # of the files in an archive, so that its bytes are the same


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
        if place not in by_place or run.content is None:  # a folder, rather than an archive
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
                line = {**record.line(), "format": FORMAT}
                json.dump(line, file, ensure_ascii=False, separators=(",", ":"))
                file.write("\n")
    archived_sums.cache_clear()


def _smallest(items: Floats) -> bytes:
    """An array as a npy file, in float32 where that is exact; its columns compress best."""
    rounded = items.astype(np.float32)
    content = io.BytesIO()
    exact = rounded if np.array_equal(rounded, items) else items
    np.lib.format.write_array(content, np.asfortranarray(exact), allow_pickle=False)
    return content.getvalue()
