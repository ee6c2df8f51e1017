"""What a decoding step leaves for the next one."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


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
    """Keys and values (B, H, K, E), in a buffer that doubles, so that a step copies nothing old."""

    def __init__(self, static: bool) -> None:
        self.static = static
        self.length = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    @property
    def is_complete(self) -> bool:
        """True for a static cache once it was filled."""
        return self.static and self._key is not None

    def update(self, key_BHKE: Tensor, value_BHKE: Tensor) -> tuple[Tensor, Tensor]:
        """Append along K and return views of everything so far."""
        if self._key is None or self._value is None:
            self._key, self._value = key_BHKE, value_BHKE
            self.length = key_BHKE.shape[2]
            return key_BHKE, value_BHKE
        needed = self.length + key_BHKE.shape[2]
        if needed > self._key.shape[2]:
            self._key = self._grown(self._key, needed)
            self._value = self._grown(self._value, needed)
        self._key[:, :, self.length : needed] = key_BHKE
        self._value[:, :, self.length : needed] = value_BHKE
        self.length = needed
        return self.content()

    def content(self) -> tuple[Tensor, Tensor]:
        """Views of the filled part."""
        if self._key is None or self._value is None:
            raise RuntimeError("the cache is empty: update it first")
        return self._key[:, :, : self.length], self._value[:, :, : self.length]

    def reorder(self, rows_B: Tensor) -> None:
        """Select batch rows; only the filled part is copied."""
        if self._key is not None and self._value is not None:
            key, value = self.content()
            self._key = key.index_select(0, rows_B)
            self._value = value.index_select(0, rows_B)

    def _grown(self, buffer: Tensor, needed: int) -> Tensor:
        batch, heads, _, width = buffer.shape
        grown = buffer.new_empty(batch, heads, max(2 * self.length, needed, 16), width)
        grown[:, :, : self.length] = buffer[:, :, : self.length]
        return grown
