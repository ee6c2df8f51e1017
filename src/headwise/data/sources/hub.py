"""Hugging Face Hub corpora: a revision loaded by `datasets`, or local Parquet files.

For datasets with a loading script the yaml names the Hub's converted branch
(`revision: refs/convert/parquet`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from headwise.data.sources.digest import FileHashes, combined_digest
from headwise.data.sources.tables import Row, Select, find_table, table_rows
from headwise.errors import ConfigError, DataError, refuse, require
from headwise.files import check_relative_path

_SLICE = re.compile(r"(?P<split>\w+)(?:\[(?P<start>\d*):(?P<stop>\d*)\])?")


class Hub:
    """Splits of a dataset of the Hugging Face Hub.

    Args:
        repo: dataset on the Hub.
        splits: our split name -> Hub split or a slice of it: `test[0:1568]`.
        cache_dir: caches hashes of files.
        config_name: the configuration, a folder of Parquet files in the repository.
        revision: commit, tag or branch.
        folder: a local copy, with the files in `<config_name>/`, `data/` or the folder itself.
    """

    def __init__(
        self,
        repo: str,
        splits: dict[str, str],
        cache_dir: Path,
        config_name: str,
        revision: str = "main",
        folder: Path | None = None,
    ) -> None:
        check_relative_path("config_name", config_name)
        self.repo, self.config_name = repo, config_name
        self.revision, self.folder = revision, folder
        self._splits = {name: _parse(name, spec) for name, spec in splits.items()}
        self._hashes = FileHashes(cache_dir)
        self._tables: dict[str, Any] = {}

    def splits(self) -> list[str]:
        """Configured splits, or those in the local copy."""
        return [n for n in sorted(self._splits) if self.folder is None or self.is_local([n])]

    def is_local(self, splits: Sequence[str]) -> bool:
        """Whether a local copy holds `splits`; the cache of `datasets` is not checked."""
        return self.folder is not None and all(self._paths(self.folder, s) for s in splits)

    def identity(self, split: str) -> str:
        """Hash of the row range and local files or Hub data; downloads missing data.

        Raises:
            DataError: split not in the local copy, or Hub unreachable.
        """
        if self.folder is not None:
            parts = self._hashes.of(self._files(self.folder, split))
        else:
            parts = [self.repo, self.config_name, str(self._table(split)._fingerprint)]
        return combined_digest([str(self._rows(split)), *parts])

    def path(self, split: str) -> Path:
        """The first local file of a split, or the repository."""
        return Path(self.repo) if self.folder is None else self._files(self.folder, split)[0]

    def rows(self, split: str, select: Select) -> Iterator[Row]:
        """The split's rows, streamed from Parquet or from memory-mapped Arrow files.

        Raises:
            DataError: files missing or corrupt, or what `select` raises.
        """
        _, start, stop = self._rows(split)
        if self.folder is not None:
            return islice(table_rows(self._files(self.folder, split), select), start, stop)
        rows = enumerate(islice(self._table(split), start, stop), start)
        return ((f"{self.repo} {split}, row {number}", row) for number, row in rows)

    def _rows(self, split: str) -> tuple[str, int, int | None]:
        """Hub split, first row, and end row (exclusive)."""
        if split not in self._splits:
            raise DataError(str(refuse(f"a split of {self.repo}", split, self._splits)))
        return self._splits[split]

    def _files(self, folder: Path, split: str) -> list[Path]:
        paths = self._paths(folder, split)
        if not paths:
            name = self._rows(split)[0]
            raise DataError(
                f"{folder} has no Parquet files of {name!r}, such as "
                f"{self.config_name}/{name}-00000-of-00001.parquet"
            )
        return paths

    def _paths(self, folder: Path, split: str) -> list[Path]:
        """Parquet files of a split in a copy of the repository; empty if there are none."""
        for root in (folder / self.config_name, folder / "data", folder):
            paths = find_table(root, self._rows(split)[0]) if root.is_dir() else []
            if paths and paths[0].suffix == ".parquet":
                return paths
        return []

    def _table(self, split: str) -> Any:
        """The Hub split as a memory-mapped table, loaded once for all slices of it."""
        name = self._rows(split)[0]
        if name in self._tables:
            return self._tables[name]
        # `datasets` would read it
        allowed = "a dataset on the Hub, not a folder (data.dir= sets that of a copy)"
        require(not Path(self.repo).is_dir(), "repo", allowed, self.repo)
        try:
            import datasets

            table = datasets.load_dataset(
                self.repo, data_dir=self.config_name, revision=self.revision, split=name
            )
        except Exception as error:
            # `datasets` and its dependencies raise many error types; each means that the data is
            # unavailable. The cause is chained.
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(
                f"{self.repo} could not be loaded from the Hugging Face Hub ({reason}); if "
                f"offline, copy its Parquet files and set data.dir= to their folder"
            ) from error
        return self._tables.setdefault(name, table)


def _parse(name: str, spec: str) -> tuple[str, int, int | None]:
    match = _SLICE.fullmatch(spec)
    if not match:
        raise ConfigError(f"splits.{name} must be split or split[i:j], got {spec!r}")
    start, stop = match["start"], match["stop"]
    return match["split"], int(start or 0), int(stop) if stop else None
