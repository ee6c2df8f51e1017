"""A folder of text: one file a language, or one table of both, for each split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from headwise.data.corpora.tables import SUFFIXES, find_table, table_pairs, table_stem
from headwise.data.corpora.text import file_pairs
from headwise.data.digest import FileHashes, combined_digest
from headwise.errors import DataError, nearest

# The files of a split, and what reads their pairs.
_Found = tuple[tuple[Path, ...], Callable[[], Iterator[tuple[str, str]]]]


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
        self._found = self._find_all()

    def splits(self) -> list[str]:
        """Names of the splits that are here."""
        return sorted(self._found)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """The split's sentences, streamed.

        Raises:
            DataError: not here, misaligned, empty, not UTF-8 or damaged.
        """
        self.require(split)
        return self._found[split][1]()

    def identity(self, split: str) -> str:
        """Hash of the split's files."""
        self.require(split)
        return combined_digest([self._hashes(path) for path in self._found[split][0]])

    def require(self, split: str) -> None:
        """Raise a `DataError` that says what was looked for unless `split` is here."""
        if split in self._found:
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

    def require_both_sides(self, prefix: str) -> None:
        """Raise a `DataError` where a split whose name begins so has one side alone."""
        for stem in sorted(self._stems()):
            half = self._half_found([stem]) if stem.startswith(prefix) else None
            if half and stem not in self._found:
                raise DataError(half)

    def _find_all(self) -> dict[str, _Found]:
        named = {stem for stems in self.files.values() for stem in stems}
        others = {stem: [stem] for stem in self._stems() - named}
        found: dict[str, _Found] = {}
        for split, stems in (*others.items(), *self.files.items()):
            one = next(filter(None, map(self._find, stems)), None)
            if one is not None:
                found[split] = one
        return found

    def _find(self, stem: str) -> _Found | None:
        first, second = (self._side(stem, code) for code in (self.source, self.target))
        if first and second:
            return (first, second), partial(file_pairs, first, second)
        table = tuple(find_table(self.folder, stem))
        return (table, partial(table_pairs, table, self.source, self.target)) if table else None

    def _side(self, stem: str, language: str) -> Path | None:
        paths = (self.folder / f"{stem}.{language}{suffix}" for suffix in ("", ".gz"))
        return next((path for path in paths if path.is_file()), None)

    def _stems(self) -> set[str]:
        """Stems of all that lies here and could be a split."""
        sides = [
            f".{code}{suffix}" for code in (self.source, self.target) for suffix in ("", ".gz")
        ]
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
