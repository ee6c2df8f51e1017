"""A folder of a user: for each split one table, or one file per language.

Splits may be shares of one file, in its order: `data.split=[0.9,0.05,0.05]`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from headwise.data.sources.digest import FileHashes, combined_digest
from headwise.data.sources.lines import file_pairs
from headwise.data.sources.tables import (
    SUFFIXES,
    Row,
    Select,
    aligned_rows,
    find_table,
    table_rows,
    table_stem,
)
from headwise.errors import DataError, nearest, require
from headwise.files import nfc

SPLITS = ("train", "valid", "test")  # the order of `data.split`
# How to have a validation set in a folder with training data alone, for messages.
CUT = "move a part of it, for example 5 %, to valid"
CUT_ROWS = "set data.valid_fraction=0.05 to validate on a part of it"
CUT_PAIRS = "set data.split=[0.95,0.05] to validate on its last pairs, or [0.9,0.05,0.05]"


class Folder:
    """Splits in one folder of a user: tables, or parallel text.

    The files of a stem are, of parallel text, `<stem>.<language>` or `<stem>.<language>.gz` for
    both languages (one sentence per line, aligned by line number), else `<stem>.parquet`, `.jsonl`,
    `.tsv`, `.csv`, the last three also with `.gz`, or Parquet shards. A stem may also be the name
    of a file.

    Args:
        folder: with the files.
        files: split name -> stems tried in order; each stem in the folder is also a split of its
            own name, unless it is one of these.
        cache_dir: caches hashes of files.
        columns: of text files without a header.
        languages: codes of parallel text, source first.
        shares: of the rows of `train` for train, valid and test, in order; empty: all files.
        cut: how to have a part of `train` for validation, for messages.

    Raises:
        DataError: the folder does not exist, or shards of a table are missing.
    """

    def __init__(
        self,
        folder: Path,
        files: Mapping[str, Sequence[str]],
        cache_dir: Path,
        columns: Sequence[str] = (),
        languages: Sequence[str] = (),
        shares: Sequence[float] = (),
        cut: str = "",
    ) -> None:
        self.folder, self.columns = Path(folder), columns
        self.languages, self.shares = languages, shares
        self.cut = cut or (CUT_PAIRS if languages else CUT_ROWS)
        self.files = {nfc(split): list(stems) for split, stems in files.items()}
        self._hashes = FileHashes(cache_dir)
        if not self.folder.is_dir():
            raise DataError(_missing_folder(self.folder))
        named = {nfc(stem): [stem] for stem in self._stems()} | self.files
        lists = {split: list(map(self._find, stems)) for split, stems in named.items()}
        self._splits = {s: next(filter(None, paths)) for s, paths in lists.items() if any(paths)}
        for split in SPLITS[1 : len(shares)]:
            if split in self._splits:
                raise DataError(f"data.split={list(shares)}, but {folder} has its own {split}")
            if "train" in self._splits:
                self._splits[split] = self._splits["train"]

    def splits(self) -> list[str]:
        """Names of the splits in the folder."""
        return sorted(self._splits)

    def is_local(self, splits: Sequence[str]) -> bool:
        """Always: nothing is downloaded."""
        return True

    def path(self, split: str) -> Path:
        """The first file of a split."""
        return self.paths(split)[0]

    def identity(self, split: str) -> str:
        """Hash of the split's files, their endings, which select the reader, and the share."""
        paths = self.paths(split)
        endings = [Path(path.name.removesuffix(".gz")).suffix for path in paths]
        identity = combined_digest([*self._hashes.of(paths), *endings])
        if not self._is_share(split):
            return identity
        return combined_digest([identity, split, *map(str, self.shares)])

    def rows(self, split: str, select: Select) -> Iterator[Row]:
        """The split's rows, streamed; see `table_rows`.

        Raises:
            DataError: missing, misaligned, empty, not UTF-8 or damaged.
        """
        paths = self.paths(split)
        if not self._is_share(split):
            return self._rows(paths, select)
        size = sum(1 for _ in self._rows(paths, select))
        return islice(self._rows(paths, select), *share_range(split, self.shares, size))

    def _rows(self, paths: Sequence[Path], select: Select) -> Iterator[Row]:
        if table_stem(paths[0]) is None:
            return aligned_rows(file_pairs(*paths), self.languages)
        return table_rows(paths, select, self.columns)

    def _is_share(self, split: str) -> bool:
        return split in SPLITS[: len(self.shares)]

    def paths(self, split: str) -> list[Path]:
        """The files of a split; a `DataError` names the expected ones if it is not there."""
        if split in self._splits:
            return self._splits[split]
        stems = self.files.get(split, [split])
        problem = self._missing_side(stems)
        if problem:
            raise DataError(problem)
        refuse_split_below(self.folder, split, stems)
        endings = self.languages or ("tsv",)
        expected = [f"{stem}.{ending}" for stem in stems for ending in endings]
        names = sorted(path.name for path in self.folder.iterdir())
        closest = nearest(expected[0], names) or nearest(stems[0], names)
        hint = f"closest match: {closest}" if closest else f"{len(names)} other files there"
        raise DataError(
            f"{self.folder} has no split {split!r}: expected {', '.join(expected)} "
            f"(plain or .gz), or {stems[0]} with {', '.join(SUFFIXES)}; {hint}. "
            f"{splits_there(split, self.splits(), self.cut)}"
        )

    def require_both_sides(self, prefix: str) -> None:
        """Raise a `DataError` if a split named `prefix…` has one side only, or several tables."""
        for path in self.folder.glob(f"{prefix}*/"):
            find_table(self.folder, path.name)
        for stem in sorted(self._stems()):
            problem = self._missing_side([stem]) if stem.startswith(prefix) else None
            if problem and nfc(stem) not in self._splits:
                raise DataError(problem)

    def _find(self, stem: str) -> list[Path]:
        """The files of a stem, empty if there are none."""
        present = [side for code in self.languages if (side := self._side(stem, code))]
        if len(present) == 2:
            return present
        path = self.folder / stem
        is_table = not self.languages and path.is_file() and table_stem(path)
        return [path] if is_table else find_table(self.folder, stem)

    def _side(self, stem: str, language: str) -> Path | None:
        paths = (self.folder / f"{stem}.{language}{suffix}" for suffix in ("", ".gz"))
        return next((path for path in paths if path.is_file()), None)

    def _stems(self) -> set[str]:
        """Stems of all files and folders here that could be a split."""
        paths = list(self.folder.glob("[!.]*"))
        names = [path.name.removesuffix(".gz") for path in paths]
        endings = [f".{code}" for code in self.languages]
        sides = {name.removesuffix(end) for end in endings for name in names if name.endswith(end)}
        return {stem for path in paths if (stem := table_stem(path))} | sides - {""}

    def _missing_side(self, stems: Sequence[str]) -> str | None:
        """Error message for the first stem with one language only; None if there is none."""
        for stem in stems:
            sides = {code: self._side(stem, code) for code in self.languages}
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


def check_shares(shares: Sequence[float]) -> None:
    """Raise `ConfigError` unless these are no shares, or two or three with the sum 1."""
    fit = len(shares) in (2, 3) and min(shares) > 0 and math.isclose(math.fsum(shares), 1)
    require(fit or not shares, "data.split", "two or three shares with the sum 1", shares)


def share_range(split: str, shares: Sequence[float], size: int) -> tuple[int, int]:
    """Return the items [first, end) of a split, of `size` items of all splits."""
    number = SPLITS.index(split)
    parts = [math.fsum(shares[:n]) for n in (number, number + 1)]
    first, end = (math.floor(size * part + 1e-6) for part in parts)
    return first, size if number + 1 == len(shares) else end


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
