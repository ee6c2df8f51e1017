"""A decoder's cache for models that only look at what was read."""

from __future__ import annotations

from torch import Tensor


class PrefixCache:
    """Remembers what the rows of the batch have read."""

    def __init__(self) -> None:
        self.prefixes: Tensor | None = None

    def reorder(self, rows: Tensor) -> None:
        assert self.prefixes is not None
        self.prefixes = self.prefixes[rows]

    def reorder_sources(self, rows: Tensor) -> None:
        """Sources come with the memory."""
