"""Rows of variable length in two flat files: the values, and the start of each row.

Single rows can be read, and a memory-mapped store uses the page cache only: 4.5 million sentences
of 30 tokens are 270 MB of uint16. This module does not import torch, so that encoding processes
start quickly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK_ROWS = 2000  # of text in memory

Rows = npt.NDArray[np.integer[Any]]


def id_dtype(vocab_size: int) -> type[np.uint16] | type[np.int32]:
    """The smaller dtype for ids that fits a vocabulary."""
    return np.uint16 if vocab_size <= 1 << 16 else np.int32


def with_ending(path: Path, end: str) -> Path:
    """`path` with `end` appended to its name; dots in these names are not suffixes."""
    return path.with_name(path.name + end)


class FlatWriter:
    """Streams rows to `PATH` and their starts to `PATH.offsets` (int64, one more than rows)."""

    def __init__(self, path: Path) -> None:
        self._flat = open(path, "wb")  # noqa: SIM115
        self._offsets = open(with_ending(path, ".offsets"), "wb")  # noqa: SIM115
        self._offsets.write(np.int64(0).tobytes())
        self.n_rows = self.n_values = 0

    def append(self, values: npt.NDArray[Any] | bytes, lengths: Rows) -> None:
        """Append rows: their concatenated values, and the number of values of each."""
        self._flat.write(values if isinstance(values, bytes) else values.tobytes())
        ends = self.n_values + np.cumsum(lengths, dtype=np.int64)
        self._offsets.write(ends.tobytes())
        self.n_values += int(lengths.sum())
        self.n_rows += len(lengths)

    def __enter__(self) -> FlatWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._flat.close()
        self._offsets.close()


def _map(path: Path, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    # An empty file cannot be mapped.
    if path.stat().st_size == 0:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r")


class TextStore:
    """The lines of a text file by number; `PATH.offsets` has their starts in bytes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets = _map(with_ending(path, ".offsets"), np.int64)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), BLOCK_ROWS):
            yield from self.read(np.arange(start, min(start + BLOCK_ROWS, len(self))))

    def read(self, rows: Rows) -> list[str]:
        """The sentences of `rows`, which must be sorted; reads from the first to the last of them.

        Not memory-mapped, so that the text does not count as memory of the process.
        """
        if not len(rows):
            return []
        starts, ends = self._offsets[rows], self._offsets[rows + 1]
        first = int(starts[0])
        with open(self._path, "rb") as file:
            file.seek(first)
            block = file.read(int(ends[-1]) - first)
        spans = zip((starts - first).tolist(), (ends - first - 1).tolist(), strict=True)
        return [block[start:end].decode() for start, end in spans]


class IdStore:
    """Token ids of many sentences: `flat` values and int64 `offsets`, one more than rows."""

    def __init__(self, flat: npt.NDArray[Any], offsets: npt.NDArray[np.int64]) -> None:
        self.flat = flat
        self.offsets = offsets

    @classmethod
    def open(cls, path: Path, dtype: npt.DTypeLike) -> IdStore:
        """Memory-map the files that a `FlatWriter` wrote at `path`."""
        return cls(_map(path, dtype), _map(with_ending(path, ".offsets"), np.int64))

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[int]]) -> IdStore:
        """A store in memory."""
        flat = np.fromiter(chain.from_iterable(rows), np.int32)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return cls(flat, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> npt.NDArray[Any]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of a store of {len(self)}")
        row %= len(self)
        return np.asarray(self.flat[self.offsets[row] : self.offsets[row + 1]])

    @cached_property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Number of tokens of each row, int32."""
        return np.diff(self.offsets).astype(np.int32)

    @cached_property
    def longest(self) -> int:
        """Number of tokens of the longest row."""
        return int(self.lengths.max(initial=0))

    def gather(
        self, rows: Rows, prefix: int | None = None, suffix: int | None = None, width: int = 0
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """`rows` as one (B, L) array padded with 0, and their lengths (B,), both int64.

        `prefix` and `suffix` are ids added before and after each row; lengths include them. L is
        at least `width`.
        """
        starts = self.offsets[rows]
        n_ids = self.offsets[rows + 1] - starts
        longest = int(n_ids.max(initial=0))
        before, after = int(prefix is not None), int(suffix is not None)
        ids_BL = np.zeros((len(rows), max(before + longest + after, width)), np.int64)
        columns = np.arange(longest)
        valid = columns < n_ids[:, None]
        ids_BL[:, before : before + longest][valid] = self.flat[(starts[:, None] + columns)[valid]]
        if prefix is not None:
            ids_BL[:, 0] = prefix
        if suffix is not None:
            ids_BL[np.arange(len(rows)), before + n_ids] = suffix
        return ids_BL, n_ids + (before + after)
