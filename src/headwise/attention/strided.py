"""The strided pattern (Child et al. 2019, section 4): a window, and every stride-th position.

Axes: B batch, H heads, Q and K numbers of queries and keys, N positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.attention.block_sparse import BlockLayout, Columns, Neighbours, Part
from headwise.attention.sparse_pattern import SparsePattern, head_mask, is_real


class Strided(SparsePattern):
    """Keys at most `stride` away, and keys a multiple of `stride` away.

    Causal: A1_i = {max(0, i - l), ..., i}, A2_i = {j <= i : (i - j) mod l = 0}. Otherwise
    both are symmetric. It suits data with a period of about the stride; for text the paper uses
    `fixed`.

    Args:
        place, stride, combine, heads, block_sparse_from: see `SparsePattern`; the far keys are
            called "strided".
    """

    far_name = "strided"

    def near(self, queries: Tensor, keys: Tensor) -> Tensor:
        """See `SparsePattern.near`."""
        return (queries - keys).abs() <= self.stride

    def far(self, queries: Tensor, keys: Tensor, key_lengths_B: Tensor | None) -> Tensor:
        """See `SparsePattern.far`."""
        return (queries % self.stride == keys % self.stride)[None, None]

    def n_slots(self, n_positions: int, causal: bool) -> int:
        """See `SparsePattern.n_slots`."""
        n_blocks = -(-n_positions // self.stride)
        n_around = (2 if causal else 3) * self.stride
        return any(self.near_H) * n_around + any(self.far_H) * n_blocks

    def make_layout(self, n_positions: int, causal: bool, lengths_B: Tensor) -> BlockLayout:
        """See `SparsePattern.make_layout`.

        A window of 2 · stride + 1 extends into the blocks before and after the query's. Far keys
        in these blocks belong to that part, not to the columns.
        """
        blocks = torch.arange(-(-n_positions // self.stride), device=lengths_B.device)
        parts: list[tuple[Part, Tensor]] = []
        if any(self.near_H):
            allowed = self._around(blocks, causal, lengths_B).flatten(2, 3)[:, :, :n_positions]
            parts.append((Neighbours(self.stride, 1, 0 if causal else 1), allowed))
        if any(self.far_H):
            allowed = self._columns(blocks, causal, lengths_B).flatten(2, 3)[:, :, :n_positions]
            parts.append((Columns(self.stride), allowed))
        return BlockLayout.from_parts(parts)

    def _around(self, blocks: Tensor, causal: bool, lengths_B: Tensor) -> Tensor:
        """Return the mask of the query's block and its neighbours (B, H, blocks, stride, K)."""
        queries = torch.arange(self.stride, device=blocks.device)[:, None]
        keys = torch.arange((2 if causal else 3) * self.stride, device=blocks.device) - self.stride
        allowed = head_mask(self.near(queries, keys)[None, None], self.near_H)
        if any(self.far_H):
            allowed = allowed | head_mask(self.far(queries, keys, None), self.far_H)
        if causal:
            allowed = allowed & (keys <= queries)
        positions = blocks[:, None, None] * self.stride + keys
        return allowed[:, :, None] & is_real(positions, lengths_B)

    def _columns(self, blocks: Tensor, causal: bool, lengths_B: Tensor) -> Tensor:
        """Return the mask of the query's column (B, H, blocks, stride, blocks)."""
        blocks_ahead = blocks - blocks[:, None, None]
        allowed = blocks_ahead <= 0 if causal else torch.ones_like(blocks_ahead, dtype=torch.bool)
        if any(self.near_H):
            allowed = allowed & (blocks_ahead.abs() > 1)
        residues = torch.arange(self.stride, device=blocks.device)[:, None]
        positions = blocks * self.stride + residues
        return head_mask(allowed & is_real(positions, lengths_B)[:, :, None], self.far_H)
