"""Text in one language: a file or a folder of files per split, or one file with all splits.

Files are in `data.dir`, else in `$HEADWISE_DATA/<data.folder>`; each is plain, `.gz` or `.zip`, or
a table, one column of which is the text.
Without a folder, the published archive of a text is downloaded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from headwise.config.data import TextDataConfig
from headwise.data.file_corpus import FileCorpus, files_below
from headwise.data.sources.archive import Archives, Located, open_file
from headwise.data.sources.folder import (
    CUT,
    SPLITS,
    Folder,
    check_shares,
    share_range,
    splits_there,
)
from headwise.data.sources.lines import READ_ERRORS, open_bytes
from headwise.data.sources.tables import check_columns, one_line
from headwise.errors import ConfigError, DataError, refuse, require
from headwise.files import check_file_name
from headwise.tasks.stream.stream import MAX_CHUNK

ENDINGS = ("", ".gz", ".zip")  # of a file; a zip holds a file of the name before its ending
HEADING = re.compile(rb" ?= [^=]+ = *\r?$")  # " = Title = ", after a blank line, as in WikiText
# `data.documents` -> whether a line starts a document, given the line before
STARTS: dict[str, Callable[[bytes, bytes], bool]] = {
    "line": lambda before, line: True,
    "blank_line": lambda before, line: bool(line.strip()) and not before.strip(),
    "heading": lambda before, line: not before.strip() and bool(HEADING.match(line)),
}


def check_text_config(config: TextDataConfig) -> None:
    """Check the names and the shares of splits.

    Raises:
        ConfigError: names the key, the value and the allowed values.
    """
    shares, splits = config.split, (config.train, config.valid, *config.test)
    for split in splits:
        check_file_name("data", split)
    if config.documents is not None and config.documents not in STARTS:
        raise refuse("data.documents", config.documents, STARTS)
    if config.document_mask and config.documents is None:
        raise ConfigError(
            f"data.document_mask=true needs data.documents={'|'.join(STARTS)}: without it, a split "
            f"of data={config.name} is one document"
        )
    files = config.files or {}
    require(isinstance(files, dict), "data.files", "a mapping from split to path", files)
    for split, names in files.items():
        is_path = isinstance(names, str) or (
            isinstance(names, list) and all(isinstance(name, str) for name in names)
        )
        require(is_path, f"data.files.{split}", "a path, or a list of alternatives", names)
    if config.column is not None and (config.file or files):
        raise ConfigError(
            f"data.column={config.column} needs data.dir=FOLDER with tables, and neither data.file "
            "nor data.files"
        )
    if bool(shares) != (config.file is not None) or (config.file and files):
        raise ConfigError(
            "data.file=FILE needs data.split=[0.9,0.05,0.05], its shares for train, valid and "
            "test, and no data.files"
        )
    if not shares:
        return
    check_shares(shares)
    for split in splits:
        _require_share(split, shares)


def _require_share(split: str, shares: list[float]) -> None:
    if split not in SPLITS[: len(shares)]:
        raise refuse(f"a split with data.split={shares}", split, SPLITS[: len(shares)])


@dataclass(frozen=True)
class TextCorpus(FileCorpus):
    """The lines of files, or with `data.column` the cells of a column of tables."""

    config: TextDataConfig

    def __post_init__(self) -> None:
        check_text_config(self.config)

    def settings(self, split: str) -> Any:
        """See `FileCorpus.settings`: the part of the file; or the column, and the reader."""
        config = self.config
        if config.column is not None:
            ending = self.files(split)[0].name.partition(".")[2]
            settings = {"column": config.column, "documents": config.documents}
            return settings | {"split": split, "ending": ending}
        members = [] if self._parts(split) else self._located(split)[1]
        documents = {"documents": config.documents} if config.documents else {}
        return {"members": members, "shares": config.split, "split": split, **documents}

    def files(self, split: str) -> list[Path]:
        """The file or archive with a split, which is downloaded if missing, or those of its folder.

        Raises:
            DataError: it does not exist; the message names the folder and the files.
        """
        if self.config.column is not None:
            return self._tables.paths(split)
        return self._parts(split) or [self._located(split)[0]]

    def _parts(self, split: str) -> list[Path]:
        """The files of a split that is a folder, in the order of their names; else none."""
        check_file_name("data", split)
        files, folder = self.config.files, self.folder
        if self.config.file or self.config.downloads or not (files or folder):
            return []
        names = self._names(split) if files else [split]
        folders = [path for name in names if (path := (folder or Path()) / name).is_dir()]
        return files_below(folders[0], "files of text") if folders else []

    def chunks(self, split: str) -> Iterator[bytes]:
        """Lines of a split as bytes, with line feeds; longer ones than MAX_CHUNK in parts.

        Of a folder, each file starts on a line of its own.

        Raises:
            DataError: the file is missing or damaged.
        """
        if self.config.column is not None:
            yield from self._cells(split, self.config.column)
            return
        try:
            if parts := self._parts(split):
                yield from _joined(parts)
                return
            with open_file(*self._located(split)) as (stream, _):
                first, end = self._range(split, stream)
                stream.seek(first)
                while line := stream.readline(min(MAX_CHUNK, end - first)):
                    first += len(line)
                    yield line
        except READ_ERRORS as error:
            raise DataError(f"{self.path(split)} is truncated or damaged: {error}") from error

    def starts_document(self, before: bytes, chunk: bytes) -> bool:
        documents = self.config.documents
        if documents is None or not before:
            return not before
        return before.endswith(b"\n") and STARTS[documents](before, chunk)

    def _range(self, split: str, stream: IO[bytes]) -> tuple[int, int]:
        """The bytes [first, end) of a split in its file."""
        size = stream.seek(0, os.SEEK_END)
        return share_range(split, self.config.split, size) if self.config.split else (0, size)

    def _located(self, split: str) -> Located:
        """The file with a split; of an archive, alternative names of its member."""
        names, folder = self._names(split), self.folder
        if folder is None and not (self.config.file or self.config.files):
            raise DataError(
                f"set data.dir=FOLDER, with {self.config.train}.txt and {self.config.valid}.txt"
            )
        if folder is not None or not self.config.downloads:
            base = folder or Path()
            files = ([base / f"{name}{ending}" for ending in ENDINGS] for name in names)
            existing = [path for paths in files for path in list(filter(Path.is_file, paths))[:1]]
            if len(existing) > 1 and not self.config.downloads:
                raise DataError(
                    f"{existing[0]} and {existing[1]} are alternatives: name one in data.files, or "
                    "a folder with all files of the split"
                )
            if existing:
                path = existing[0]
                return path, [path.name.removesuffix(".zip")] if path.suffix == ".zip" else []
        if not self.config.downloads:
            places = f" in {folder}" if folder else ""
            message = (
                f"{' or '.join(names)} (plain, .gz or .zip) not found{places}, nor a folder {split}"
            )
            if folder and names == [f"{split}.txt"]:
                stems = {path.name.partition(".txt")[0] for path in folder.glob("[!.]*.txt*")}
                shares = f"data.file={self.config.train}.txt data.split=[0.9,0.05,0.05]"
                message = f"{message}. {splits_there(split, stems, f'set {shares}, or {CUT}')}"
            raise DataError(message)
        entries = self.config.downloads
        archive = {"files": [entry["file"] for entry in entries], "downloads": entries}
        advice = f" or {' or '.join(names)}" if folder else ""
        try:
            archives = Archives(self.config.name, {"text": archive}, self.cache_dir, folder)
            path = archives.path("text")
        except DataError as error:
            raise DataError(f"{error}{advice}") from error
        return path, [] if path.name in names else names

    def _names(self, split: str) -> list[str]:
        """Alternative paths of the file with a split, without endings."""
        if self.config.file is not None:
            _require_share(split, self.config.split)
            return [self.config.file]
        if not self.config.files:
            return [f"{split}.txt"]
        if split not in self.config.files:
            raise refuse("a split of data.files", split, self.config.files)
        names = self.config.files[split]
        return [names] if isinstance(names, str) else names

    @property
    def _tables(self) -> Folder:
        """The folder with tables."""
        if self.folder is None:
            raise DataError(
                f"set data.dir=FOLDER, with {self.config.train}.tsv and {self.config.valid}.tsv "
                "(or .csv, .jsonl, .parquet)"
            )
        return Folder(self.folder, {}, self.cache_dir, cut=CUT)

    def _cells(self, split: str, column: str) -> Iterator[bytes]:
        """The texts of a column, with line feeds."""

        def select(name: str, columns: Sequence[str]) -> list[str]:
            check_columns(name, columns, [column], "Set data.column")
            return [column]

        for where, row in self._tables.rows(split, select):
            if not isinstance(row.get(column), str):
                raise DataError(f"{where}: no text in the column {column!r}")
            yield f"{one_line(row[column], where)}\n".encode()


def _joined(paths: Sequence[Path]) -> Iterator[bytes]:
    """Lines of several files, each of which ends with a line feed."""
    for path in paths:
        line = b"\n"
        with open_bytes(path) as stream:
            while chunk := stream.readline(MAX_CHUNK):
                yield (line := chunk)
        if not line.endswith(b"\n"):
            yield b"\n"
