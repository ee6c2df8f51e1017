"""What a decoding step leaves for the next one."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

FIRST_LENGTH = 16  # positions that a growing buffer starts with


class AttentionCache(Protocol):
    """What every kind of cache can do; what it holds is between it and its attention."""

    @property
    def is_complete(self) -> bool:
        """Nothing is to be added any more (cross-attention after the first step)."""
        ...

    def reorder(self, rows_B: Tensor) -> None:
        """Make row i of the batch what row `rows_B[i]` was; the batch may shrink or grow."""
        ...


class KeyValueCache:
    """Keys and values (B, H, K, E) in buffers with room for more positions than there are.

    A step writes its position, and of earlier ones only the rows that change places are copied; on
    an accelerator all of them, since asking which costs more there.
    Rows that leave make no copy either: what lies behind the last row is not looked at.
    """

    def __init__(self, static: bool) -> None:
        self.static = static
        self.length = 0
        self._n_rows = 0
        self._buffers: list[Tensor] = []  # of keys and of values, once there are any

    @property
    def is_complete(self) -> bool:
        """True for a static cache once it was filled."""
        return self.static and bool(self._buffers)

    def update(self, key_BHKE: Tensor, value_BHKE: Tensor) -> tuple[Tensor, Tensor]:
        """Append along K and return views of everything so far."""
        before, self.length = self.length, self.length + key_BHKE.shape[2]
        self._n_rows = key_BHKE.shape[0]
        new = (key_BHKE, value_BHKE)
        self._buffers = [self._with_room(which, one, before) for which, one in enumerate(new)]
        for filled, one in zip(self.content(), new, strict=True):
            filled[:, :, before:] = one
        return self.content()

    def content(self) -> tuple[Tensor, Tensor]:
        """Views of the filled part."""
        key, value = (buffer[: self._n_rows, :, : self.length] for buffer in self._buffers)
        return key, value

    def reorder(self, rows_B: Tensor) -> None:
        """Select batch rows; only the filled part is copied, on a CPU only of those that move."""
        if not self._buffers:
            return
        n_rows = len(rows_B)
        if n_rows > self._n_rows:
            self._buffers = [buffer.index_select(0, rows_B) for buffer in self._buffers]
        elif not _can_be_looked_at(rows_B):
            for filled in self.content():
                filled[:n_rows] = filled.index_select(0, rows_B)
        else:
            moved_M = (rows_B != torch.arange(n_rows, device=rows_B.device)).nonzero()[:, 0]
            if len(moved_M) > 0:
                from_M = rows_B[moved_M]
                for filled in self.content():
                    filled.index_copy_(0, moved_M, filled.index_select(0, from_M))
        self._n_rows = n_rows

    def _with_room(self, which: int, new_BHKE: Tensor, before: int) -> Tensor:
        """The buffer, or a longer one with its first `before` positions."""
        if self._buffers and self.length <= self._buffers[which].shape[2]:
            return self._buffers[which]
        n_rows, heads, _, width = new_BHKE.shape
        n_positions = self.length if self.static else max(2 * before, self.length, FIRST_LENGTH)
        longer = new_BHKE.new_empty(n_rows, heads, n_positions, width)
        if self._buffers:
            longer[:, :, :before] = self._buffers[which][:n_rows, :, :before]
        return longer


def _can_be_looked_at(values: Tensor) -> bool:
    """Without waiting for what a device computes."""
    return values.device.type == "cpu"
