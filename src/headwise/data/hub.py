"""Corpora of the Hugging Face hub, or a local copy of their parquet files.

Two of the four corpora are published with a loading script, which `datasets` no longer runs;
for those the hub's own converted branch is read (`revision: refs/convert/parquet`, the
configuration as `data_dir`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from headwise.data.digest import FileMemo, combined_digest
from headwise.data.tables import find_table, row_pair, table_pairs
from headwise.errors import ConfigError, DataError, refuse

_SLICE = re.compile(r"(?P<split>\w+)(?:\[(?P<first>\d*):(?P<last>\d*)\])?")
_BATCH_ROWS = 1000


class HubSource:
    """Splits of a data set with one `translation` column.

    Args:
        repo: data set on the hub.
        splits: our split name -> the hub's, or a slice of rows of one: `test[0:1568]`.
        source: language code of the source side; which side comes first on the hub is of no
            importance, the columns are read by name.
        target: language code of the target side.
        cache_dir: remembers hashes of local files.
        config_name: the data set's configuration, where it is published as parquet.
        data_dir: the folder of the configuration, on the converted branch.
        revision: commit, tag or branch.
        folder: a local copy, with the files below `<config_name or data_dir>/` or in itself.
    """

    def __init__(
        self,
        repo: str,
        splits: dict[str, str],
        source: str,
        target: str,
        cache_dir: Path,
        config_name: str | None = None,
        data_dir: str | None = None,
        revision: str = "main",
        folder: Path | None = None,
    ) -> None:
        self.repo, self.source, self.target = repo, source, target
        self.config_name, self.data_dir, self.revision = config_name, data_dir, revision
        self.folder = folder
        self._splits = {name: _parse(name, where) for name, where in splits.items()}
        self._memo = FileMemo(Path(cache_dir))
        self._loaded: dict[str, Any] = {}

    def splits(self) -> list[str]:
        """Splits on the hub, or those of them whose files are in the local copy."""
        names = sorted(self._splits)
        return names if self.folder is None else [n for n in names if self._files(n)]

    def is_local(self, splits: Sequence[str]) -> bool:
        """Whether a local copy holds `splits`; the hub's own cache is not looked into."""
        return self.folder is not None and all(self._files(s) for s in splits)

    def prepare(self, splits: Sequence[str]) -> None:
        """Find or download what `splits` need.

        Raises:
            DataError: not in the local copy, or the hub cannot be reached.
        """
        for split in splits:
            base = self._base(split)[0]
            if self.folder is None:
                self._load(base)
            elif not self._files(split):
                raise DataError(
                    f"{self.folder} has no parquet files of {base!r}, such as "
                    f"{self.config_name or self.data_dir}/{base}-00000-of-00001.parquet"
                )

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """The split's sentences, streamed from parquet or from memory-mapped arrow files.

        Raises:
            DataError: missing, damaged, or without one of the languages.
        """
        self.prepare([split])
        base, first, last = self._base(split)
        if self.folder is not None:
            rows = table_pairs(self._files(split), self.source, self.target)
            return islice(rows, first, last)
        return self._hub_pairs(self._load(base), split, first, last)

    def identity(self, split: str) -> str:
        """Hash of the local files, or the revision and fingerprint of the hub's data."""
        self.prepare([split])
        base, first, last = self._base(split)
        rows = f"{base}[{first}:{last}]"
        if self.folder is not None:
            return combined_digest([rows, *(self._memo.sha256(p) for p in self._files(split))])
        parts = [self.repo, str(self.config_name or self.data_dir), self.revision, rows]
        return combined_digest([*parts, str(self._load(base)._fingerprint)])

    def _base(self, split: str) -> tuple[str, int, int | None]:
        if split not in self._splits:
            raise DataError(str(refuse(f"a split of {self.repo}", split, self._splits)))
        return self._splits[split]

    def _files(self, split: str) -> list[Path]:
        """Parquet files of a split in the local copy."""
        if self.folder is None:
            return []
        base = self._base(split)[0]
        for below in (self.config_name or self.data_dir, "data", None):
            folder = self.folder / below if below else self.folder
            found = find_table(folder, base) if folder.is_dir() else []
            if found:
                return found
        return []

    def _load(self, base: str) -> Any:
        """The hub's split as a memory-mapped table, downloaded once."""
        if base not in self._loaded:
            try:
                import datasets

                self._loaded[base] = datasets.load_dataset(
                    self.repo,
                    self.config_name,
                    data_dir=self.data_dir,
                    revision=self.revision,
                    split=base,
                )
            except Exception as error:
                # Half a dozen libraries below `datasets` raise classes of their own; each one
                # means that this origin cannot be had, and the cause is kept.
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise DataError(
                    f"needs a network for {self.repo} on the Hugging Face hub ({reason}); without "
                    f"one, copy its parquet files and name their folder with data.dir="
                ) from error
        return self._loaded[base]

    def _hub_pairs(
        self, table: Any, split: str, first: int, last: int | None
    ) -> Iterator[tuple[str, str]]:
        stop = len(table) if last is None else min(last, len(table))
        for start in range(first, stop, _BATCH_ROWS):
            columns: Mapping[str, list[Any]] = table[start : min(start + _BATCH_ROWS, stop)]
            rows = zip(*columns.values(), strict=True)
            for number, values in enumerate(rows, start):
                row = dict(zip(columns, values, strict=True))
                where = f"{self.repo} {split}, row {number}"
                yield row_pair(row, self.source, self.target, where)


def _parse(name: str, where: str) -> tuple[str, int, int | None]:
    match = _SLICE.fullmatch(where)
    if not match:
        raise ConfigError(f"splits.{name} must be a split or rows of one, got {where!r}")
    first, last = match["first"], match["last"]
    return match["split"], int(first or 0), int(last) if last else None
