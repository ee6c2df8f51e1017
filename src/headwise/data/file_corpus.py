"""Splits whose files are located: what corpora of all tasks have in common."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from headwise.config.data import DensityDataConfig
from headwise.data.sources.digest import FileHashes, combined_digest
from headwise.data.sources.folder import splits_there
from headwise.data.sources.origins import local_folder
from headwise.errors import DataError
from headwise.files import check_file_name, nfc


class Corpus(Protocol):
    """Named splits whose files are located but not read yet.

    Attributes:
        config: the data config.
    """

    config: Any

    @property
    def test_sets(self) -> Sequence[str]:
        """Names of the splits that are evaluated at the end of a run."""
        tests: list[str] = self.config.test
        return tests

    def hashes(self) -> list[str]:
        """Hashes of the training and validation data; part of the run folder's name."""
        return [self.identity(split) for split in (self.config.train, self.config.valid)]

    def identity(self, split: str) -> str:
        """Hash of the content of a split, and of the settings of reading."""
        ...

    def packages(self, splits: Sequence[str]) -> Sequence[str]:
        """Packages that convert the files of splits; another version may give other values."""
        return ()


@dataclass(frozen=True)
class FileCorpus(Corpus):
    """Splits of files, each with one or many documents that yield bytes.

    Attributes:
        config: where the files are; a subclass names its own dataclass.
        cache_dir: folder of encoded data, downloads and file hashes.
        samples: path of the class of samples of a density model.
    """

    samples: ClassVar[str] = "headwise.tasks.stream.samples.TextSamples"

    config: DensityDataConfig
    cache_dir: Path

    @property
    def folder(self) -> Path | None:
        """The user's folder: `data.dir` or, if it exists, `$HEADWISE_DATA/<data.folder>`."""
        return local_folder(self.config)

    def identity(self, split: str) -> str:
        """Hash of the files of a split, their paths in its folder, and the settings of reading."""
        files, folder = self.files(split), f"{(self.folder or Path()) / split}{os.sep}"
        # paths name classes; elsewhere, a file is the same under another name
        inside = [name for name in map(str, files) if name.startswith(folder)]
        names = [nfc(name.removeprefix(folder)) for name in inside]
        settings = json.dumps([names, self.settings(split)], sort_keys=True)
        return combined_digest([*FileHashes(self.cache_dir).of(files), settings])

    def settings(self, split: str) -> Any:
        """Settings that determine the values which are read from the files of a split."""
        raise NotImplementedError

    def path(self, split: str) -> Path:
        """The first file of a split, or its folder."""
        return self.files(split)[0]

    def files(self, split: str) -> list[Path]:
        """The files of a split, in the order of their names.

        Raises:
            DataError: there are none.
        """
        raise NotImplementedError

    def chunks(self, split: str) -> Iterator[bytes]:
        """The documents of a split as bytes."""
        raise NotImplementedError

    def starts_document(self, before: bytes, chunk: bytes) -> bool:
        """Whether a chunk starts a document, given the chunk before it (empty for the first)."""
        return True

    def files_of_folder(self, split: str, content: str) -> list[Path]:
        """The files in the folder of a split and below; `content` describes them."""
        check_file_name("data", split)
        if self.folder is None:
            splits = ", ".join(dict.fromkeys((self.config.train, self.config.valid, "test")))
            raise DataError(f"set data.dir=FOLDER, with {splits}: {content}")
        if not (self.folder / split).is_dir():
            folders = [path.name for path in self.folder.glob("[!.]*/")]
            raise DataError(
                f"{self.folder} has no {split}: {content}. {splits_there(split, folders)}"
            )
        return files_below(self.folder / split, content)


def files_below(folder: Path, content: str) -> list[Path]:
    """The files in a folder and below, in the order of their names, without hidden ones.

    Links are followed, but not into a folder that they are in.

    Raises:
        DataError: there are none, or a link or folder cannot be read; `content` describes them.
    """
    try:
        files = list(_walk(folder, ()))
    except OSError as error:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error
    if not files:
        raise DataError(f"{folder} is empty; it must have {content}")
    return files


def _walk(folder: Path, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for entry in sorted(os.scandir(folder), key=lambda entry: nfc(entry.name)):
        if not entry.name.startswith("."):
            if entry.is_dir():
                yield from _walk(Path(entry.path), (*above, here))
            elif entry.is_file():
                yield Path(entry.path)
            else:
                entry.stat()  # raises for a link to nothing
