"""A sparse pattern as one rule, from which masks, block layouts and lists of blocks follow.

Axes: B batch, H heads, N positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headwise.ops.attention.triton_blocks import PatternTiles, _marks

EVERY_QUERY = -1  # label of keys


NO_WINDOW = -1


@dataclass(frozen=True)
class Rule:
    """Which keys a query may attend to, besides causality and padding.

    These are keys at most a window away, keys of the query's label, and keys of the label
    `EVERY_QUERY`. All tensors are int64, but for the windows.

    Attributes:
        windows_H: largest distance, int32; `NO_WINDOW`: none is near.
        labels_HN: of queries, at least 0.
        key_labels_BHN: of keys, (B or 1, H, N).
        query_order_HN: positions of queries by slot.
        key_order_HN: the same of keys.
    """

    windows_H: Tensor
    labels_HN: Tensor
    key_labels_BHN: Tensor
    query_order_HN: Tensor
    key_order_HN: Tensor

    def places(self, n_batch: int) -> Tensor:
        """Return (n_batch, H, 4, N): by slot, positions and labels of queries, and of keys."""
        labels_BHN = self.key_labels_BHN.expand(n_batch, -1, -1)
        key_order_BHN = self.key_order_HN.expand_as(labels_BHN)
        labels_HN = self.labels_HN.gather(1, self.query_order_HN)
        parts = (self.query_order_HN, labels_HN, key_order_BHN, labels_BHN.gather(2, key_order_BHN))
        return torch.stack([part.expand_as(labels_BHN).int() for part in parts], 2)

    def tiles(self, causal: bool, lengths_B: Tensor, block: int) -> PatternTiles:
        """Return the arguments of the kernels, for square blocks of this size."""
        from headwise.ops.attention.triton_launch import block_lists

        places = self.places(len(lengths_B))
        marks = _marks(places, self.windows_H, causal, lengths_B, block)
        return PatternTiles(places, self.windows_H, block_lists(marks, by_keys=False))
