"""Caches of incremental decoding."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

INITIAL_CAPACITY = 16  # initial capacity of a growing buffer, in positions


class AttentionCache(Protocol):
    """The interface of all caches; the content depends on the attention."""

    @property
    def is_complete(self) -> bool:
        """Whether the cache is final (cross-attention after the first step)."""
        ...

    def reorder(self, rows_B: Tensor) -> None:
        """Move row `rows_B[i]` of the batch to row i; the batch may shrink or grow."""
        ...


class KeyValueCache:
    """Keys and values (B, H, K, E), or one tensor of both, in preallocated buffers.

    A step writes only its new position. `reorder` copies only the rows that move; on an
    accelerator it copies all, which is cheaper there than finding the rows that move.
    Dropping rows at the end copies nothing: rows after the last one are ignored.
    """

    def __init__(self, static: bool) -> None:
        self.static = static
        self.length = 0
        self._n_rows = 0
        self._buffers: list[Tensor] = []  # empty before the first update

    @property
    def is_complete(self) -> bool:
        """Whether this is a filled static cache."""
        return self.static and bool(self._buffers)

    def update(self, *new_BHKE: Tensor) -> list[Tensor]:
        """Append along K and return views of all keys and values."""
        before = self.length
        self.extend(*new_BHKE)
        for filled, states in zip(self.content(), new_BHKE, strict=True):
            filled[:, :, before:] = states
        return self.content()

    def extend(self, *like_BHKE: Tensor) -> None:
        """Append uninitialised positions, with the shapes and dtypes of these tensors."""
        before, self.length = self.length, self.length + like_BHKE[0].shape[2]
        self._n_rows = len(like_BHKE[0])
        self._buffers = [self._with_capacity(i, like, before) for i, like in enumerate(like_BHKE)]

    def content(self) -> list[Tensor]:
        """Return views of the filled part."""
        return [buffer[: self._n_rows, :, : self.length] for buffer in self._buffers]

    def reorder(self, rows_B: Tensor) -> None:
        """Select batch rows; copies only the filled part, on a CPU only of rows that move."""
        if not self._buffers:
            return
        n_rows = len(rows_B)
        if n_rows > self._n_rows:
            self._buffers = [buffer.index_select(0, rows_B) for buffer in self._buffers]
        else:
            move_rows(rows_B, *self.content())
        self._n_rows = n_rows

    def _with_capacity(self, index: int, new_BHKE: Tensor, before: int) -> Tensor:
        """Return the buffer, or a longer copy of its first `before` positions."""
        if self._buffers and self.length <= self._buffers[index].shape[2]:
            return self._buffers[index]
        n_rows, heads, _, width = new_BHKE.shape
        n_positions = self.length if self.static else max(2 * before, self.length, INITIAL_CAPACITY)
        longer = new_BHKE.new_empty(n_rows, heads, n_positions, width)
        if self._buffers:
            longer[:, :, :before] = self._buffers[index][:n_rows, :, :before]
        return longer


def move_rows(rows_B: Tensor, *buffers: Tensor) -> None:
    """Move row `rows_B[i]` of each buffer to row i, in place; at most as many rows as there are."""
    n_rows = len(rows_B)
    if not _is_on_cpu(rows_B):
        for buffer in buffers:
            buffer[:n_rows] = buffer.index_select(0, rows_B)
        return
    moved_M = (rows_B != torch.arange(n_rows, device=rows_B.device)).nonzero()[:, 0]
    if len(moved_M) > 0:
        from_M = rows_B[moved_M]
        for buffer in buffers:
            buffer.index_copy_(0, moved_M, buffer.index_select(0, from_M))


def _is_on_cpu(values: Tensor) -> bool:
    """Return whether values can be read without waiting for a device."""
    return values.device.type == "cpu"
