"""Corpora of the Hugging Face hub: by `datasets` at a revision, or parquet files copied by hand.

Two of the four corpora are published with a loading script; for those the hub's own converted
branch is read (`revision: refs/convert/parquet`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from headwise.data.corpora.tables import find_table, row_pair, table_pairs
from headwise.data.digest import FileHashes, combined_digest
from headwise.errors import ConfigError, DataError, refuse

_SLICE = re.compile(r"(?P<split>\w+)(?:\[(?P<first>\d*):(?P<last>\d*)\])?")


class HubSource:
    """Splits of a data set with one `translation` column.

    Args:
        repo: data set on the hub.
        splits: our split name -> the hub's, or a slice of rows of one: `test[0:1568]`.
        source: language code of the source side; which side comes first on the hub is of no
            importance, the columns are read by name.
        target: language code of the target side.
        cache_dir: remembers hashes of files.
        config_name: the configuration, a folder of parquet files in the repository.
        revision: commit, tag or branch.
        folder: a local copy, with the files below `<config_name>/` or in itself.
    """

    def __init__(
        self,
        repo: str,
        splits: dict[str, str],
        source: str,
        target: str,
        cache_dir: Path,
        config_name: str,
        revision: str = "main",
        folder: Path | None = None,
    ) -> None:
        self.repo, self.source, self.target = repo, source, target
        self.config_name, self.revision, self.folder = config_name, revision, folder
        self._splits = {name: _parse(name, where) for name, where in splits.items()}
        self._hashes = FileHashes(cache_dir)
        self._tables: dict[str, Any] = {}

    def splits(self) -> list[str]:
        """Splits on the hub, or those of them whose files are in the local copy."""
        return [n for n in sorted(self._splits) if self.folder is None or self.is_local([n])]

    def is_local(self, splits: Sequence[str]) -> bool:
        """Whether a local copy holds `splits`; the hub's own cache is not looked into."""
        return self.folder is not None and all(self._found(self.folder, s) for s in splits)

    def identity(self, split: str) -> str:
        """Hash of the rows and of the local files, or of the hub's data; downloads what is missing.

        Raises:
            DataError: not in the local copy, or the hub cannot be reached.
        """
        if self.folder is not None:
            parts = [self._hashes(path) for path in self._files(self.folder, split)]
        else:
            parts = [self.repo, self.config_name, str(self._table(split)._fingerprint)]
        return combined_digest([str(self._rows(split)), *parts])

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """The split's sentences, streamed from parquet or from memory-mapped arrow files.

        Raises:
            DataError: missing, damaged, or without one of the languages.
        """
        _, first, last = self._rows(split)
        if self.folder is not None:
            files = self._files(self.folder, split)
            return islice(table_pairs(files, self.source, self.target), first, last)
        rows = enumerate(islice(self._table(split), first, last), first)
        return (
            row_pair(row, self.source, self.target, f"{self.repo} {split}, row {number}")
            for number, row in rows
        )

    def _rows(self, split: str) -> tuple[str, int, int | None]:
        """The hub's split, its first row and the one after its last."""
        if split not in self._splits:
            raise DataError(str(refuse(f"a split of {self.repo}", split, self._splits)))
        return self._splits[split]

    def _files(self, folder: Path, split: str) -> list[Path]:
        files = self._found(folder, split)
        if not files:
            base = self._rows(split)[0]
            raise DataError(
                f"{folder} has no parquet files of {base!r}, such as "
                f"{self.config_name}/{base}-00000-of-00001.parquet"
            )
        return files

    def _found(self, folder: Path, split: str) -> list[Path]:
        """Parquet files of a split in a copy of the repository."""
        for below in (folder / self.config_name, folder / "data", folder):
            found = find_table(below, self._rows(split)[0]) if below.is_dir() else []
            if found:
                return found
        return []

    def _table(self, split: str) -> Any:
        """The hub's split as a memory-mapped table; the hub is asked once for all slices of it."""
        base = self._rows(split)[0]
        if base in self._tables:
            return self._tables[base]
        try:
            import datasets

            table = datasets.load_dataset(
                self.repo, data_dir=self.config_name, revision=self.revision, split=base
            )
        except Exception as error:
            # Half a dozen libraries below `datasets` raise classes of their own; each one means
            # that this origin cannot be had, and the cause is kept.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(
                f"needs a network for {self.repo} on the Hugging Face hub ({reason}); without "
                f"one, copy its parquet files and name their folder with data.dir="
            ) from error
        return self._tables.setdefault(base, table)


def _parse(name: str, where: str) -> tuple[str, int, int | None]:
    match = _SLICE.fullmatch(where)
    if not match:
        raise ConfigError(f"splits.{name} must be a split or rows of one, got {where!r}")
    first, last = match["first"], match["last"]
    return match["split"], int(first or 0), int(last) if last else None
