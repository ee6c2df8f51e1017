"""The strided pattern (Child et al. 2019, section 4): a window, and every stride-th position.

Axes: B batch, H heads, Q and K numbers of queries and keys, N positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.attention.sparse_pattern import SparsePattern, head_mask, is_real, per_head
from headwise.ops.attention.layout import Columns, Neighbours, Part
from headwise.ops.attention.rule import NO_WINDOW, Rule

# Positions that are neighbours in the order of `Strided.rule`, as (rows, columns) of a matrix with
# rows of `stride`, for heads with far keys. A block of 64 has few columns and, if it has near keys
# too, few rows.
FAR_CELL, MERGED_CELL = (64, 1), (4, 16)


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

    def parts(self, n_positions: int, causal: bool, lengths_B: Tensor) -> list[Part]:
        """See `SparsePattern.parts`.

        A window of 2 · stride + 1 extends into the blocks before and after the query's. Far keys
        in these blocks belong to that part, not to the columns.
        """
        parts: list[Part] = []
        if any(self.near_H):
            parts.append(Neighbours(self.stride, 1, 0 if causal else 1))
        if any(self.far_H):
            parts.append(Columns(self.stride))
        return parts

    def rule(self, n_positions: int, causal: bool, lengths_B: Tensor) -> Rule:
        """See `SparsePattern.rule`. The label of a query with far keys is its column."""
        positions = torch.arange(n_positions, device=lengths_B.device)
        rows, columns = positions // self.stride, positions % self.stride
        far_H1 = per_head(self.far_H, torch.bool, positions.device)[:, None]
        labels_HN = torch.where(far_H1, columns, positions)
        windows = tuple(self.stride if near else NO_WINDOW for near in self.near_H)
        windows_H = per_head(windows, torch.int32, positions.device)
        cells = [
            (1, self.stride) if not far else MERGED_CELL if near else FAR_CELL
            for near, far in zip(self.near_H, self.far_H, strict=True)
        ]
        height, width = (
            per_head(sizes, torch.int64, positions.device)[:, None]
            for sizes in zip(*cells, strict=True)
        )
        in_row = (self.stride + width - 1) // width
        cell_HN = rows // height * in_row + columns // width
        order_HN = ((cell_HN * height + rows % height) * width + columns % width).argsort(1)
        return Rule(windows_H, labels_HN, labels_HN[None], order_HN, order_HN)

    def masks(self, causal: bool, blocks: Tensor, n_blocks: int, lengths_B: Tensor) -> list[Tensor]:
        """See `BlockLayout.masks`."""
        masks = []
        if any(self.near_H):
            masks.append(self._around(blocks, causal, lengths_B))
        if any(self.far_H):
            masks.append(self._columns(blocks, n_blocks, causal, lengths_B))
        return masks

    def _around(self, blocks: Tensor, causal: bool, lengths_B: Tensor) -> Tensor:
        """Return the mask of the query's block and its neighbours (B, H, M, L, slots)."""
        queries = torch.arange(self.stride, device=blocks.device)[:, None]
        keys = torch.arange((2 if causal else 3) * self.stride, device=blocks.device) - self.stride
        allowed = head_mask(self.near(queries, keys)[None, None], self.near_H)
        if any(self.far_H):
            allowed = allowed | head_mask(self.far(queries, keys, None), self.far_H)
        if causal:
            allowed = allowed & (keys <= queries)
        positions = blocks[:, None, None] * self.stride + keys
        return allowed[:, :, None] & is_real(positions, lengths_B)

    def _columns(self, blocks: Tensor, n_blocks: int, causal: bool, lengths_B: Tensor) -> Tensor:
        """Return the mask of the query's column (B, H, M, L, blocks of keys)."""
        of_keys = torch.arange(n_blocks, device=blocks.device)
        blocks_ahead = of_keys - blocks[:, None, None]
        allowed = blocks_ahead <= 0 if causal else torch.ones_like(blocks_ahead, dtype=torch.bool)
        if any(self.near_H):
            allowed = allowed & (blocks_ahead.abs() > 1)
        residues = torch.arange(self.stride, device=blocks.device)[:, None]
        positions = of_keys * self.stride + residues
        return head_mask(allowed & is_real(positions, lengths_B)[:, :, None], self.far_H)
