"""A folder of text: for each split one table, or one file per language."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from headwise.data.sources.digest import FileHashes, combined_digest
from headwise.data.sources.lines import file_pairs
from headwise.data.sources.shares import SPLITS, share_range
from headwise.data.sources.tables import (
    SUFFIXES,
    Row,
    Select,
    find_table,
    table_pairs,
    table_rows,
    table_stem,
)
from headwise.errors import DataError, nearest
from headwise.file_names import nfc

CUT = "move a part of it, for example 5 %, to valid"


class TableFolder:
    """Splits in one folder.

    The files of a stem are `<stem>.parquet`, `.jsonl`, `.tsv`, `.csv`, the last three also with
    `.gz`, or Parquet shards. A stem may also be the name of a file.

    Args:
        folder: with the files.
        files: split name -> stems tried in order; each stem in the folder is also a split of its
            own name, unless it is one of these.
        cache_dir: caches hashes of files.
        columns: of text files without a header.

    Raises:
        DataError: the folder does not exist, or shards of a table are missing.
    """

    cut = "set data.valid_fraction=0.05 to validate on a part of it"

    def __init__(
        self,
        folder: Path,
        files: Mapping[str, Sequence[str]],
        cache_dir: Path,
        columns: Sequence[str] = (),
    ) -> None:
        self.folder, self.columns = Path(folder), columns
        self.files = {nfc(split): list(stems) for split, stems in files.items()}
        self._hashes = FileHashes(cache_dir)
        if not self.folder.is_dir():
            raise DataError(_missing_folder(self.folder))
        self._splits = self._find_splits()

    def splits(self) -> list[str]:
        """Names of the splits in the folder."""
        return sorted(self._splits)

    def path(self, split: str) -> Path:
        """The first file of a split."""
        self.require(split)
        return self._splits[split][0]

    def rows(self, split: str, select: Select) -> Iterator[Row]:
        """The split's rows, streamed; see `table_rows`."""
        self.require(split)
        return table_rows(self._splits[split], select, self.columns)

    def identity(self, split: str) -> str:
        """Hash of the split's files, and of their endings, which select the reader."""
        self.require(split)
        paths = self._splits[split]
        endings = [Path(path.name.removesuffix(".gz")).suffix for path in paths]
        return combined_digest([*self._hashes.of(paths), *endings])

    def require(self, split: str) -> None:
        """Raise a `DataError` that names the expected files unless `split` is in the folder."""
        if split in self._splits:
            return
        stems = self.files.get(split, [split])
        problem = self._missing_side(stems)
        if problem:
            raise DataError(problem)
        refuse_split_below(self.folder, split, stems)
        expected = self._expected(stems)
        names = sorted(path.name for path in self.folder.iterdir())
        closest = nearest(expected[0], names) or nearest(stems[0], names)
        hint = f"closest match: {closest}" if closest else f"{len(names)} other files there"
        raise DataError(
            f"{self.folder} has no split {split!r}: expected {', '.join(expected)} "
            f"(plain or .gz), or {stems[0]} with {', '.join(SUFFIXES)}; {hint}. "
            f"{splits_there(split, self.splits(), self.cut)}"
        )

    def _find_splits(self) -> dict[str, list[Path]]:
        named = {nfc(stem): [stem] for stem in self._stems()} | self.files
        lists = {split: list(map(self._find, stems)) for split, stems in named.items()}
        return {split: next(filter(None, paths)) for split, paths in lists.items() if any(paths)}

    def _find(self, stem: str) -> list[Path]:
        """The files of a stem, empty if there are none."""
        path = self.folder / stem
        return [path] if path.is_file() and table_stem(path) else find_table(self.folder, stem)

    def _stems(self) -> set[str]:
        """Stems of all files and folders here that could be a split."""
        return {stem for path in self.folder.glob("[!.]*") if (stem := table_stem(path))}

    def _expected(self, stems: Sequence[str]) -> list[str]:
        return [f"{stem}.tsv" for stem in stems]

    def _missing_side(self, stems: Sequence[str]) -> str | None:
        return None


class FolderSource(TableFolder):
    """Splits of parallel text in one folder.

    The files of a stem are `<stem>.<language>` or `<stem>.<language>.gz` for both languages
    (one sentence per line, aligned by line number), else a table with both, see `TableFolder`.

    Args:
        folder, files, cache_dir: see `TableFolder`.
        source: language code of the source side.
        target: language code of the target side.
        shares: of the pairs of `train` for train, valid and test, in order; empty: all files.
    """

    cut = "set data.split=[0.95,0.05] to validate on its last pairs, or [0.9,0.05,0.05]"

    def __init__(
        self,
        folder: Path,
        source: str,
        target: str,
        files: Mapping[str, Sequence[str]],
        cache_dir: Path,
        shares: Sequence[float] = (),
    ) -> None:
        self.source, self.target, self.shares = source, target, shares
        super().__init__(folder, files, cache_dir)
        for split in SPLITS[1 : len(shares)]:
            if split in self._splits:
                raise DataError(f"data.split={list(shares)}, but {folder} has its own {split}")
            if "train" in self._splits:
                self._splits[split] = self._splits["train"]

    def identity(self, split: str) -> str:
        """Hash of the split's files, their endings and the share."""
        identity = super().identity(split)
        if not self._is_share(split):
            return identity
        return combined_digest([identity, split, *map(str, self.shares)])

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """The split's sentences, streamed.

        Raises:
            DataError: missing, misaligned, empty, not UTF-8 or damaged.
        """
        self.require(split)
        if not self._is_share(split):
            return self._pairs(split)
        size = sum(1 for _ in self._pairs(split))
        return islice(self._pairs(split), *share_range(split, self.shares, size))

    def _pairs(self, split: str) -> Iterator[tuple[str, str]]:
        paths = self._splits[split]
        if table_stem(paths[0]) is None:
            return file_pairs(*paths)
        return table_pairs(paths, self.source, self.target)

    def _is_share(self, split: str) -> bool:
        return split in SPLITS[: len(self.shares)]

    def require_both_sides(self, prefix: str) -> None:
        """Raise a `DataError` if a split named `prefix…` has one side only, or several tables."""
        for path in self.folder.glob(f"{prefix}*/"):
            find_table(self.folder, path.name)
        for stem in sorted(self._stems()):
            problem = self._missing_side([stem]) if stem.startswith(prefix) else None
            if problem and nfc(stem) not in self._splits:
                raise DataError(problem)

    def _find(self, stem: str) -> list[Path]:
        sides = [self._side(stem, code) for code in (self.source, self.target)]
        present = [side for side in sides if side]
        return present if len(present) == 2 else find_table(self.folder, stem)

    def _side(self, stem: str, language: str) -> Path | None:
        paths = (self.folder / f"{stem}.{language}{suffix}" for suffix in ("", ".gz"))
        return next((path for path in paths if path.is_file()), None)

    def _stems(self) -> set[str]:
        endings = f".{self.source}", f".{self.target}"
        names = [path.name.removesuffix(".gz") for path in self.folder.glob("[!.]*")]
        sides = {name.removesuffix(end) for end in endings for name in names if name.endswith(end)}
        return super()._stems() | sides - {""}

    def _expected(self, stems: Sequence[str]) -> list[str]:
        return [f"{stem}.{code}" for stem in stems for code in (self.source, self.target)]

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


def refuse_split_below(folder: Path, split: str, stems: Sequence[str]) -> None:
    """Raise a `DataError` if tables of a split are in a folder of `folder`, or are mixed."""
    below = (folder, *sorted(folder.glob("[!.]*/")))
    if places := [str(place) for place in below if any(find_table(place, s) for s in stems)]:
        set_to = " or data.dir=".join(places[:5])
        raise DataError(f"{folder} has no {split}, but {places[0]} has: set data.dir={set_to}")


def splits_there(split: str, known: Collection[str], cut: str = CUT) -> str:
    """The end of the message for a missing split: other splits, and the key that names one.

    Args:
        split: that is missing.
        known: the splits there; a single one, test sets aside, is for training alone.
        cut: how to have a part of it for validation.
    """
    value = {"train": "SPLIT", "valid": "SPLIT", "test": "[SPLIT]"}.get(split)
    advice = f"; name one with data.{split}={value}" if known and value else ""
    if sum(not name.startswith("test") for name in known) == 1:
        advice = {"valid": f"; {cut}", "test": "; data.test=[] for no test set"}.get(split, advice)
    return f"Splits there: {', '.join(sorted(known)) or 'none'}{advice}"


def _missing_folder(folder: Path) -> str:
    if folder.exists():
        return f"data.dir={folder} must be a folder, got a file"
    parent = folder.parent
    siblings = [path.name for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    closest = nearest(folder.name, siblings)
    hint = f" Did you mean {parent / closest}?" if closest else ""
    return f"data.dir={folder} does not exist.{hint}"
