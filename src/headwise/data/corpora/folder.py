"""A folder of text: for each split one file per language, or one table of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from headwise.data.corpora.tables import SUFFIXES, find_table, table_pairs, table_stem
from headwise.data.corpora.text import file_pairs
from headwise.data.digest import FileHashes, combined_digest
from headwise.errors import DataError, nearest

# The files of a split, and a reader of their pairs.
_Split = tuple[tuple[Path, ...], Callable[[], Iterator[tuple[str, str]]]]


class FolderSource:
    """Splits in one folder.

    The files of a stem are `<stem>.<language>` or `<stem>.<language>.gz` for both languages
    (one sentence per line, aligned by line number), else `<stem>.parquet`, `.jsonl`, `.jsonl.gz`,
    `.tsv`, `.tsv.gz`, or Parquet shards.

    Args:
        folder: with the files.
        source: language code of the source side.
        target: language code of the target side.
        files: split name -> stems tried in order; other stems in the folder that have both
            languages are splits named by their stems.
        cache_dir: caches hashes of files.

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
        self._splits = self._find_splits()

    def splits(self) -> list[str]:
        """Names of the splits in the folder."""
        return sorted(self._splits)

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """The split's sentences, streamed.

        Raises:
            DataError: missing, misaligned, empty, not UTF-8 or damaged.
        """
        self.require(split)
        return self._splits[split][1]()

    def identity(self, split: str) -> str:
        """Hash of the split's files."""
        self.require(split)
        return combined_digest([self._hashes(path) for path in self._splits[split][0]])

    def require(self, split: str) -> None:
        """Raise a `DataError` that names the expected files unless `split` is in the folder."""
        if split in self._splits:
            return
        stems = self.files.get(split, [split])
        problem = self._missing_side(stems)
        if problem:
            raise DataError(problem)
        expected = [f"{stem}.{code}" for stem in stems for code in (self.source, self.target)]
        names = sorted(path.name for path in self.folder.iterdir())
        closest = nearest(expected[0], names) or nearest(stems[0], names)
        hint = f"closest match: {closest}" if closest else f"{len(names)} other files there"
        raise DataError(
            f"{self.folder} has no split {split!r}: expected {', '.join(expected)} "
            f"(plain or .gz), or {stems[0]} with {', '.join(SUFFIXES)}; {hint}. "
            f"Splits there: {', '.join(self.splits()) or 'none'}."
        )

    def require_both_sides(self, prefix: str) -> None:
        """Raise a `DataError` if a split whose name starts with `prefix` has one side only."""
        for stem in sorted(self._stems()):
            problem = self._missing_side([stem]) if stem.startswith(prefix) else None
            if problem and stem not in self._splits:
                raise DataError(problem)

    def _find_splits(self) -> dict[str, _Split]:
        named = {stem for stems in self.files.values() for stem in stems}
        others = {stem: [stem] for stem in self._stems() - named}
        splits: dict[str, _Split] = {}
        for split, stems in (*others.items(), *self.files.items()):
            files = next(filter(None, map(self._find, stems)), None)
            if files is not None:
                splits[split] = files
        return splits

    def _find(self, stem: str) -> _Split | None:
        first, second = (self._side(stem, code) for code in (self.source, self.target))
        if first and second:
            return (first, second), partial(file_pairs, first, second)
        table = tuple(find_table(self.folder, stem))
        return (table, partial(table_pairs, table, self.source, self.target)) if table else None

    def _side(self, stem: str, language: str) -> Path | None:
        paths = (self.folder / f"{stem}.{language}{suffix}" for suffix in ("", ".gz"))
        return next((path for path in paths if path.is_file()), None)

    def _stems(self) -> set[str]:
        """Stems of all files and folders here that could be a split."""
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

    def _missing_side(self, stems: Sequence[str]) -> str | None:
        """Error message for the first stem with one language only; None if there is none."""
        for stem in stems:
            sides = {code: self._side(stem, code) for code in (self.source, self.target)}
            present = [path for path in sides.values() if path]
            absent = [code for code, path in sides.items() if not path]
            if present and absent:
                others = [p.name for p in self.folder.iterdir() if p != present[0]]
                closest = nearest(f"{stem}.{absent[0]}", others)
                hint = f"; closest match: {closest}" if closest else ""
                return (
                    f"{present[0]} exists, but its other side {stem}.{absent[0]} "
                    f"(plain or .gz) is missing{hint}"
                )
        return None


def _missing_folder(folder: Path) -> str:
    if folder.exists():
        return f"data.dir={folder} must be a folder, got a file"
    parent = folder.parent
    siblings = [path.name for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    closest = nearest(folder.name, siblings)
    hint = f" Did you mean {parent / closest}?" if closest else ""
    return f"data.dir={folder} does not exist.{hint}"
