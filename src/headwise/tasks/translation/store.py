"""Pairs of sentences in the cache: converted text, and ids.

A folder of text has `SPLIT.xx` and `SPLIT.yy` (UTF-8, one normalised sentence per line, aligned),
for each side the byte offsets of its lines (`.offsets`, int64, one more than lines), so that single
lines can be read, and `manifest.json` with counts and hashes of the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headwise.data.store import FlatWriter, IdStore, TextStore, with_ending
from headwise.progress import progress_bar

Pair = tuple[str, str]

CHUNK_PAIRS = 10_000  # in memory while they are written


@dataclass(frozen=True)
class ParallelText:
    """The aligned lines of both sides, and their manifest."""

    paths: tuple[Path, Path]
    report: dict[str, Any]

    @cached_property
    def sides(self) -> tuple[TextStore, TextStore]:
        """Source and target."""
        return TextStore(self.paths[0]), TextStore(self.paths[1])

    def __len__(self) -> int:
        return len(self.sides[0])

    def __iter__(self) -> Iterator[Pair]:
        return zip(*self.sides, strict=True)


def write_pairs(pairs: Iterator[Pair], paths: Sequence[Path], progress: bool = False) -> int:
    """Write a stream of pairs in this layout; return their number."""
    with (
        progress_bar(f"reading {paths[0].stem}", progress) as bar,
        FlatWriter(paths[0]) as source,
        FlatWriter(paths[1]) as target,
    ):
        while chunk := list(islice(pairs, CHUNK_PAIRS)):
            for writer, side in zip((source, target), zip(*chunk, strict=True), strict=True):
                lines = [text.replace("\n", " ").encode() + b"\n" for text in side]
                writer.append(b"".join(lines), np.fromiter(map(len, lines), np.int64))
            bar.update(len(chunk))
    return source.n_rows


@dataclass
class EncodedSplit:
    """Aligned rows of both sides."""

    source: IdStore
    target: IdStore

    @classmethod
    def from_lists(
        cls, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]
    ) -> EncodedSplit:
        """A split in memory."""
        return cls(IdStore.from_lists(source), IdStore.from_lists(target))

    @classmethod
    def open(cls, path: Path, dtype: npt.DTypeLike) -> EncodedSplit:
        """Memory-map `PATH.source` and `PATH.target`."""
        source, target = (IdStore.open(with_ending(path, s), dtype) for s in (".source", ".target"))
        return cls(source, target)

    def __len__(self) -> int:
        return len(self.source)
