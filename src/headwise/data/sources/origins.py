"""Where the files of a corpus are. Tried in this order:

1. the folder `data.dir` (text, the original archives, or a copy of the Hub's Parquet files);
2. `$HEADWISE_DATA/<data.folder>`, if it exists;
3. an origin of the yaml whose files are on disk;
4. the origins of the yaml in their order, by download.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

from headwise.config.data import DataConfig, FilesConfig, LabelledDataConfig
from headwise.config.fields import changed_texts
from headwise.data.sources.folder import Folder
from headwise.data.sources.tables import Row, Select
from headwise.errors import DataError, refuse
from headwise.files import check_relative_path, machine_cache_dir, nfc

DataWithOrigins = DataConfig | LabelledDataConfig

log = logging.getLogger(__name__)
_log_once = cache(partial(log.info, "reading %s of the run: %s"))


class Origin(Protocol):
    """One place with splits of rows: labelled texts, or sentence pairs (a column per language)."""

    def splits(self) -> list[str]:
        """Names of the splits that can be read."""

    def is_local(self, splits: Sequence[str]) -> bool:
        """Whether the files of `splits` are on disk, or generated."""

    def identity(self, split: str) -> str:
        """Hash of the content (or version of the generator); downloads missing files.

        Raises:
            DataError: the files are not available.
        """

    def path(self, split: str) -> Path:
        """The first file of a split, or its name, for messages."""

    def rows(self, split: str, select: Select) -> Iterator[Row]:
        """The rows of a split with the selected columns, streamed in bounded memory.

        Raises:
            DataError: files missing or damaged, or what `select` raises.
        """


def joined_splits(split: str, known: Collection[str]) -> list[str]:
    """The splits of a name: `a+b` is a, then b, unless `a+b` is one of `known`."""
    split = nfc(split)
    return [split] if split in known else split.split("+")


def known_parts(config: DataWithOrigins, split: str, known: Collection[str]) -> list[str]:
    """The splits of a name, see `joined_splits`; a `DataError` for one that is not known."""
    parts = joined_splits(split, known)
    for part in parts:
        if part not in known:
            raise DataError(str(refuse(f"a split of data={config.name}", part, known)))
    return parts


def local_folder(config: FilesConfig) -> Path | None:
    """The user's folder: `data.dir` or, if it exists, `$HEADWISE_DATA/<data.folder>`."""
    if config.dir is not None:
        return Path(config.dir)
    root = os.environ.get("HEADWISE_DATA")
    if config.folder:
        check_relative_path("data.folder", config.folder)
    folder = Path(root or "").expanduser() / (config.folder or "")
    return folder if root and config.folder and folder.is_dir() else None


def log_paths(config: Any, cache_dir: Path, of_user: str | None = None) -> None:
    """Log once each path that the data of a run are read from: the cache, and what is outside.

    The run may be another person's: its paths are read as they are written. Those in a folder that
    is logged are not logged.

    Args:
        config: of the data.
        cache_dir: logged if it is not that of this machine.
        of_user: a folder that the user named, in place of that of the run; it is not logged.
    """
    if cache_dir != machine_cache_dir():
        _log_once("paths.cache", str(cache_dir))
    folder = local_folder(config) if isinstance(config, FilesConfig) else None
    if folder is not None and of_user is None:
        _log_once("data.dir" if config.dir else "data.folder", str(folder))
    elif folder is None and (isinstance(config, DataConfig) or getattr(config, "downloads", False)):
        return  # names in published archives

    def placed(path: str) -> str:
        if folder is None or os.path.isabs(path) or ".." in Path(path).parts:
            _log_once("data.files", str((folder or Path()) / path))
        return path

    changed_texts(placed, [getattr(config, "file", None), getattr(config, "files", None)])


def find_origin(
    config: DataWithOrigins, cache_dir: Path, text: Folder | None, expected: str, **runtime: Any
) -> Origin:
    """The origin of all splits of a config, whose files are then on disk; see above.

    Args:
        config: with `origins`.
        cache_dir: folder of downloads and file hashes.
        text: in the folder of the user; else what is there is downloaded.
        expected: that a folder of the user must have, for the message.
        runtime: further arguments of constructors, which are used if they have them.

    Raises:
        DataError: there is none; the message says which files are needed in which folder.
    """
    runtime |= {"cache_dir": cache_dir, "folder": text and text.folder}
    if text is None:
        return _downloaded(config, _origins(config, **runtime), expected)
    origins = () if text.shares else _origins(config, **runtime)
    # text of pairs has names of its own, while tables may be archives without a header
    for origin in [text, *origins] if text.languages else [*origins, text]:
        known = set(origin.splits())
        required = _required(config, known)
        needed = {split for split, key in required.items() if key != "test"}
        # A folder with archives of some splits is used too; `identity` reports the missing ones.
        if needed <= known or (origin is not text and needed & known):
            return _checked(origin, required)
    return _checked(text, _required(config, text.splits()))


def _origins(config: DataWithOrigins, **runtime: Any) -> Iterator[Origin]:
    """The origins of the yaml; with a `folder`, those that can read from one."""
    from headwise.config.instantiate import instantiate, target_class

    for number, node in enumerate(config.origins):
        key = f"data.origins[{number}]"
        accepted = inspect.signature(target_class(node, key)).parameters
        if runtime["folder"] is None or "folder" in accepted:
            arguments = {name: value for name, value in runtime.items() if name in accepted}
            yield instantiate(node, key, **arguments)


def _downloaded(config: DataWithOrigins, origins: Iterable[Origin], expected: str) -> Origin:
    """The first origin with the splits of the config, on disk or by download."""
    reasons: list[str] = []
    complete: list[tuple[Origin, list[str]]] = []  # origin, required splits
    for origin in origins:
        known = origin.splits()
        required = _required(config, known)
        absent = [split for split in required if split not in known]
        if absent:
            reasons.append(str(refuse(f"data.{required[absent[0]]}", absent[0], known)))
        else:
            complete.append((origin, list(required)))
    # Origins on disk come first, otherwise in the order of the list.
    complete.sort(key=lambda c: not c[0].is_local(c[1]))
    for origin, splits in complete:
        try:
            return _checked(origin, splits)
        except DataError as error:
            reasons.append(str(error))
    raise DataError(_advice(config, expected, reasons))


def _required(config: DataWithOrigins, known: Collection[str]) -> dict[str, str]:
    """Each split that the config names -> the first key that names it."""
    required: dict[str, str] = {}
    named = [("train", config.train), ("valid", config.valid), *(("test", t) for t in config.test)]
    for key, split in named:
        for part in joined_splits(split, known):
            required.setdefault(part, key)
    return required


def _checked(origin: Origin, splits: Iterable[str]) -> Origin:
    """`origin`, with the files of `splits` on disk; a `DataError` names a missing one."""
    for split in splits:
        origin.identity(split)
    return origin


def _advice(config: DataWithOrigins, expected: str, reasons: Sequence[str]) -> str:
    """The message for a missing corpus: which files are needed in which folder."""
    lines = [f"data={config.name} is not on this machine. Either of these helps:"]
    lines.append(f"- data.dir=FOLDER with {expected}")
    if config.folder:
        lines.append(f"- HEADWISE_DATA=FOLDER with such a folder named {config.folder}")
    lines.extend(f"- {reason}" for reason in reasons)
    return "\n".join(lines)
