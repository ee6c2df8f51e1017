"""A folder of text: one file a language, or one table of both, for each split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headwise.data.corpora.tables import SUFFIXES, find_table, table_pairs, table_stem
from headwise.data.corpora.text import file_pairs
from headwise.data.digest import FileHashes, combined_digest
from headwise.errors import DataError, nearest


@dataclass(frozen=True)
class _Located:
    """Where a split was found: two aligned files, or the shards of a table."""

    paths: tuple[Path, ...]
    is_table: bool


class FolderSource:
    """Splits in one folder.

    A stem is found as `<stem>.<language>` or `<stem>.<language>.gz` for both languages (one
    sentence a line, aligned by line number), else as `<stem>.parquet`, `.jsonl`, `.jsonl.gz`,
    `.tsv`, `.tsv.gz`, or as parquet shards.

    Args:
        folder: where to look.
        source: language code of the source side.
        target: language code of the target side.
        files: split name -> stems tried in order; other stems with both languages found in the
            folder are splits under their own names.
        cache_dir: remembers hashes of files.

    Raises:
        DataError: the folder does not exist, or shards of a table are missing.
    """

    def __init__(
        self,
        folder: Path,
        source: str,
        target: str,
        files: Mapping[str, Sequence[str]],
        cache_dir: Path,
    ) -> None:
        self.folder, self.source, self.target = Path(folder), source, target
        self.files = {split: list(stems) for split, stems in files.items()}
        self._hashes = FileHashes(cache_dir)
        if not self.folder.is_dir():
            raise DataError(_missing_folder(self.folder))
        self._located = self._locate_all()

    def splits(self) -> list[str]:
        """Names of the splits that are here."""
        return sorted(self._located)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """The split's sentences, streamed.

        Raises:
            DataError: not here, misaligned, empty, not UTF-8 or damaged.
        """
        self.require(split)
        located = self._located[split]
        if located.is_table:
            return table_pairs(located.paths, self.source, self.target)
        return file_pairs(located.paths[0], located.paths[1])

    def identity(self, split: str) -> str:
        """Hash of the split's files."""
        self.require(split)
        return combined_digest([self._hashes(p) for p in self._located[split].paths])

    def require(self, split: str) -> None:
        """Raise a `DataError` that says what was looked for unless `split` is here."""
        if split in self._located:
            return
        stems = self.files.get(split, [split])
        half = self._half_found(stems)
        if half:
            raise DataError(half)
        wanted = [f"{stem}.{code}" for stem in stems for code in (self.source, self.target)]
        names = sorted(path.name for path in self.folder.iterdir())
        closest = nearest(wanted[0], names) or nearest(stems[0], names)
        there = f"nearest file there: {closest}" if closest else f"{len(names)} other files there"
        raise DataError(
            f"{self.folder} has no split {split!r}: looked for {', '.join(wanted)} "
            f"(plain or .gz), or {stems[0]} with {', '.join(SUFFIXES)}; {there}. "
            f"Splits there: {', '.join(self.splits()) or 'none'}."
        )

    def _locate_all(self) -> dict[str, _Located]:
        located: dict[str, _Located] = {}
        for split, stems in self.files.items():
            for stem in stems:
                found = self._locate(stem)
                if found:
                    located[split] = found
                    break
        taken = {stem for stems in self.files.values() for stem in stems}
        for stem in self._stems() - taken - set(located):
            found = self._locate(stem)
            if found:
                located[stem] = found
        return located

    def _locate(self, stem: str) -> _Located | None:
        first, second = (self._side(stem, code) for code in (self.source, self.target))
        if first and second:
            return _Located((first, second), is_table=False)
        table = find_table(self.folder, stem)
        return _Located(tuple(table), is_table=True) if table else None

    def _side(self, stem: str, language: str) -> Path | None:
        for suffix in ("", ".gz"):
            path = self.folder / f"{stem}.{language}{suffix}"
            if path.is_file():
                return path
        return None

    def _stems(self) -> set[str]:
        """Stems of all that lies here and could be a split."""
        sides = (f".{self.source}", f".{self.source}.gz")
        stems: set[str] = set()
        for path in self.folder.iterdir():
            side = next((ending for ending in sides if path.name.endswith(ending)), None)
            stem = path.name.removesuffix(side) if side else table_stem(path)
            if stem:
                stems.add(stem)
        return stems

    def _half_found(self, stems: Sequence[str]) -> str | None:
        for stem in stems:
            sides = {code: self._side(stem, code) for code in (self.source, self.target)}
            present = [path for path in sides.values() if path]
            absent = [code for code, path in sides.items() if not path]
            if present and absent:
                others = [p.name for p in self.folder.iterdir() if p != present[0]]
                closest = nearest(f"{stem}.{absent[0]}", others)
                hint = f"; nearest file there: {closest}" if closest else ""
                return (
                    f"{present[0]} is there, but its other side {stem}.{absent[0]} "
                    f"(plain or .gz) is not{hint}"
                )
        return None


def _missing_folder(folder: Path) -> str:
    if folder.exists():
        return f"data.dir={folder} must be a folder; it is a file"
    parent = folder.parent
    beside = [path.name for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    closest = nearest(folder.name, beside)
    hint = f" Did you mean {parent / closest}?" if closest else ""
    return f"data.dir={folder} does not exist.{hint}"
