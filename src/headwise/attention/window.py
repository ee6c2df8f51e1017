"""A sliding window with a few keys for every query (Beltagy et al. 2020, Longformer).

Axes: B batch, H heads, N positions.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from headwise.attention.pattern import Pattern
from headwise.attention.place import Place
from headwise.errors import require
from headwise.ops.attention.pattern_rule import POSITION, Rule


class Window(Pattern):
    """Keys at most `radius` away, and the first `global_keys` of the sequence for every query.

    Time and memory are linear in the length. The global keys attend as all others do; a few layers
    pass what they read on to every position. Cross-attention is not restricted.

    Args:
        place: site, layer and sizes.
        radius: largest distance of a key; Longformer's window w is twice that.
        global_keys: number of positions at the start that every query attends to.
        block_sparse_from: see `Pattern`.
    """

    def __init__(
        self, place: Place, radius: int = 8, global_keys: int = 1, block_sparse_from: int = 256
    ) -> None:
        super().__init__(place)
        require(radius >= 1, "radius", "at least 1", radius)
        require(0 <= global_keys <= radius, "global_keys", f"in [0, radius={radius}]", global_keys)
        require(block_sparse_from >= 1, "block_sparse_from", "at least 1", block_sparse_from)
        self.restricts = place.kind != "cross"
        self.radius, self.global_keys = radius, global_keys
        self.block_sparse_from = block_sparse_from

    @property
    def key(self) -> Hashable:
        """Everything that determines the mask."""
        settings = (self.radius, self.global_keys, self.block_sparse_from)
        return (type(self), self.place.n_heads, *settings)

    def rule(self, n_positions: int, causal: bool, lengths_B: Tensor) -> Rule:
        """Return the window, and the keys for every query."""
        n_heads = self.place.n_heads
        positions_N = torch.arange(n_positions, device=lengths_B.device)
        every_11N = (positions_N < self.global_keys)[None, None]
        windows, labels = (self.radius,) * n_heads, (POSITION,) * n_heads
        return Rule(self.radius, windows, labels, every_11N, self.global_keys, every_blocks=1)
