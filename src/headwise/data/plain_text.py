"""Files of text in one language: `train.txt`, `valid.txt` and test sets, each plain or `.gz`.

They are in `data.dir`, or in `$HEADWISE_DATA/<data.folder>`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headwise.config.density_data import TextDataConfig
from headwise.data.corpora.text import open_bytes
from headwise.data.digest import FileHashes
from headwise.data.token_stream import MAX_CHUNK
from headwise.errors import DataError
from headwise.file_names import check_file_name


@dataclass(frozen=True)
class TextCorpus:
    """The files of a text, one per split."""

    config: TextDataConfig
    cache_dir: Path

    def path(self, split: str) -> Path:
        """The file of a split.

        Raises:
            DataError: it does not exist; the message names the folder.
        """
        check_file_name("data", split)
        root, folder = os.environ.get("HEADWISE_DATA"), self.config.dir
        if folder is None and root and self.config.folder:
            folder = str(Path(root) / self.config.folder)
        if folder is None:
            raise DataError(
                f"set data.dir=FOLDER, with {self.config.train}.txt and {self.config.valid}.txt"
            )
        for name in (f"{split}.txt", f"{split}.txt.gz"):
            if (Path(folder).expanduser() / name).is_file():
                return Path(folder).expanduser() / name
        raise DataError(f"{split}.txt or {split}.txt.gz not found in {folder}")

    def identity(self, split: str) -> str:
        """Hash of the file of a split."""
        return FileHashes(self.cache_dir)(self.path(split))

    @property
    def test_sets(self) -> list[str]:
        """Splits that are scored at the end of a run."""
        return self.config.test

    def hashes(self) -> list[str]:
        """Hashes of the training and the validation text."""
        return [self.identity(split) for split in (self.config.train, self.config.valid)]

    def chunks(self, split: str) -> Iterator[bytes]:
        """Lines of a split as bytes, with line feeds."""
        with open_bytes(self.path(split)) as stream:
            while line := stream.readline(MAX_CHUNK):
                yield line
