"""Batches: columns of ids, which models read, and the scored positions and their targets.

Axes: B rows, N positions of a column, R scored positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

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
