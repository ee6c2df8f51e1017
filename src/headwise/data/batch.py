"""Batches: columns of ids, which models read, and the scored positions and their targets.

Axes: B rows, N positions of a column, R scored positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Column:
    """One sequence per row.

    Attributes:
        ids_BN: of text, pixels or audio samples, int64; padded with zeros, which are masked. Of
            patches of images the P values of each, (B, N, P) uint8.
        lengths_B: int64, positions before the padding.
        n_begin: number of special tokens at the start of each row, such as bos.
        n_end: number of special tokens at the end of each row, such as eos.
        segments_BN: document of each position, int64, in order from 0; positions of different
            documents do not attend to each other. None: a row is one document.
    """

    ids_BN: Tensor
    lengths_B: Tensor
    n_begin: int = 0
    n_end: int = 0
    segments_BN: Tensor | None = None

    def each(self, change: Callable[[Tensor], Tensor]) -> Column:
        """The same column with changed tensors."""
        segments_BN = None if self.segments_BN is None else change(self.segments_BN)
        tensors = change(self.ids_BN), change(self.lengths_B)
        return replace(self, ids_BN=tensors[0], lengths_B=tensors[1], segments_BN=segments_BN)

    @property
    def is_real_BN(self) -> Tensor:
        """True at positions that are not padding."""
        positions_N = torch.arange(self.ids_BN.shape[1], device=self.ids_BN.device)
        return positions_N < self.lengths_B[:, None]

    def items(self) -> list[list[int]]:
        """The ids of each row, without padding and special tokens at its ends."""
        ends = (self.lengths_B - self.n_end).tolist()
        rows = zip(self.ids_BN.tolist(), ends, strict=True)
        return [ids[self.n_begin : end] for ids, end in rows]

    @property
    def is_end_BN(self) -> Tensor:
        """True at special tokens at the end of a row."""
        positions_N = torch.arange(self.ids_BN.shape[1], device=self.ids_BN.device)
        return self.is_real_BN & (positions_N >= self.lengths_B[:, None] - self.n_end)


@dataclass(frozen=True)
class Batch:
    """Some rows of a split; the part of a rank may be empty.

    Attributes:
        columns: by name, such as source and target.
        scored_R: scored positions of the model's states, as row · N + position, int64.
        targets_R: the correct class of each, int64; no class is ignored, not even 0.
        rows: their numbers in the split.
        global_targets: scored positions of this batch over all ranks, without communication.
    """

    columns: Mapping[str, Column]
    scored_R: Tensor
    targets_R: Tensor
    rows: list[int]
    global_targets: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_targets(self) -> int:
        """Scored positions of this rank."""
        return len(self.targets_R)

    def scored(self, states_BND: Tensor) -> Tensor:
        """States (R, D) of the scored positions."""
        return states_BND.flatten(0, 1).index_select(0, self.scored_R)

    def items(self) -> Iterator[tuple[int, list[Any]]]:
        """The number of each row and what the model reads and predicts there, whatever the padding.

        That is the ids of each column, the documents of its positions, the scored positions, and
        their targets. A model with one state per row scores the states 0 to B - 1.
        """
        places = self.scored_R.tolist()
        n = 1 if places == list(range(len(self))) else [*self.columns.values()][-1].ids_BN.shape[1]
        scored: list[list[Any]] = [[] for _ in self.rows]
        for place, target in zip(places, self.targets_R.tolist(), strict=True):
            scored[place // n].append([place % n, target])
        for row, (number, targets) in enumerate(zip(self.rows, scored, strict=True)):
            item: list[Any] = [targets]
            for column in self.columns.values():
                end, segments = int(column.lengths_B[row]), column.segments_BN
                documents = None if segments is None else segments[row, :end].tolist()
                item.append([column.ids_BN[row, :end].tolist(), documents])
            yield number, item

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its tensors on `device`."""
        return self._each(lambda values: values.to(device, non_blocking=True))

    def pinned(self) -> Batch:
        """The same batch in pinned memory, for asynchronous copies to a GPU."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        changed = {name: column.each(change) for name, column in self.columns.items()}
        scored, targets = change(self.scored_R), change(self.targets_R)
        return replace(self, columns=changed, scored_R=scored, targets_R=targets)
