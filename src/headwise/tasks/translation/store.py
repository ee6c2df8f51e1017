"""Encoded pairs of sentences, memory-mapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy.typing as npt

from headwise.data.store import IdStore, with_ending


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
