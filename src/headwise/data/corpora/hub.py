"""Corpora of the Hugging Face hub: loaded by `datasets` at a revision, or local parquet files.

For data sets with a loading script the yaml names the hub's converted branch
(`revision: refs/convert/parquet`).
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
        source: language code of the source side; columns are read by name, in any order.
        target: language code of the target side.
        cache_dir: caches hashes of files.
        config_name: the configuration, a folder of parquet files in the repository.
        revision: commit, tag or branch.
        folder: a local copy, with the files in `<config_name>/`, `data/` or the folder itself.
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
        """Splits on the hub, or those of the local copy."""
        return [n for n in sorted(self._splits) if self.folder is None or self.is_local([n])]

    def is_local(self, splits: Sequence[str]) -> bool:
        """Whether a local copy holds `splits`; the cache of `datasets` is not checked."""
        return self.folder is not None and all(self._paths(self.folder, s) for s in splits)

    def identity(self, split: str) -> str:
        """Hash of the rows and of the local files, or of the hub's data; downloads what is missing.

        Raises:
            DataError: not in the local copy, or the hub is unreachable.
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
        paths = self._paths(folder, split)
        if not paths:
            base = self._rows(split)[0]
            raise DataError(
                f"{folder} has no parquet files of {base!r}, such as "
                f"{self.config_name}/{base}-00000-of-00001.parquet"
            )
        return paths

    def _paths(self, folder: Path, split: str) -> list[Path]:
        """Parquet files of a split in a copy of the repository; empty if there are none."""
        for below in (folder / self.config_name, folder / "data", folder):
            paths = find_table(below, self._rows(split)[0]) if below.is_dir() else []
            if paths:
                return paths
        return []

    def _table(self, split: str) -> Any:
        """The hub's split as a memory-mapped table, loaded once for all slices of it."""
        base = self._rows(split)[0]
        if base in self._tables:
            return self._tables[base]
        try:
            import datasets

            table = datasets.load_dataset(
                self.repo, data_dir=self.config_name, revision=self.revision, split=base
            )
        except Exception as error:
            # The libraries that `datasets` uses raise errors of many classes; each means that
            # this origin is not available. The cause is kept.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(
                f"{self.repo} could not be loaded from the Hugging Face hub ({reason}); without a "
                f"network, copy its parquet files and set data.dir= to their folder"
            ) from error
        return self._tables.setdefault(base, table)


def _parse(name: str, where: str) -> tuple[str, int, int | None]:
    match = _SLICE.fullmatch(where)
    if not match:
        raise ConfigError(f"splits.{name} must be a split or rows of one, got {where!r}")
    first, last = match["first"], match["last"]
    return match["split"], int(first or 0), int(last) if last else None
