"""The fixed pattern (Child et al. 2019, section 4): a block, and the summaries of all blocks.

Axes: B batch, H heads, Q and K numbers of queries and keys, N positions, C summary cells.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from headwise.attention.place import Place
from headwise.attention.sparse_pattern import SparsePattern, head_mask, is_real, per_head
from headwise.errors import require
from headwise.ops.attention.layout import Gathered, Neighbours, Part
from headwise.ops.attention.rule import EVERY_QUERY, NO_WINDOW, Rule


class Fixed(SparsePattern):
    """Keys of the query's block of `stride` positions, and the last cells of every block.

    A1_i = {j : floor(j/l) = floor(i/l)}, A2_i = {j : j mod l in {l-c, ..., l-1}}; in a causal
    decoder only j <= i of both sets. In an encoder the final block of a sentence may be too short
    to have these cells: then its last c real tokens are the summary cells.

    Args:
        place, stride, combine, heads, block_sparse_from: see `SparsePattern`; the far keys are
            called "summary".
        summary_cells: c of the paper; None: a quarter of the stride.
        own_cells: head m (from 0, by its number in the unpruned model) attends to cells
            l-(m+1)c to l-mc-1 of each block instead of the last c. In two layers a causal head
            does not reach positions after its cells in a block; together with head 0 it does.
    """

    far_name = "summary"

    def __init__(
        self,
        place: Place,
        stride: int = 8,
        summary_cells: int | None = None,
        own_cells: bool = False,
        combine: str = "merged",
        heads: list[str] | None = None,
        block_sparse_from: int = 256,
    ) -> None:
        super().__init__(place, stride, combine, heads, block_sparse_from)
        summary_cells = _quarter(stride) if summary_cells is None else summary_cells
        is_inside = 1 <= summary_cells <= stride
        require(is_inside, "summary_cells", f"between 1 and stride={stride}", summary_cells)
        n_heads = max(place.head_numbers, default=1) if own_cells else 1
        require(
            n_heads * summary_cells <= stride,
            "stride",
            f"at least {n_heads * summary_cells}: own_cells=true needs "
            f"summary_cells={summary_cells} for each of {n_heads} heads in a block",
            stride,
        )
        self.summary_cells = summary_cells
        self.cells_behind_H = tuple(
            (number - 1) * summary_cells if own_cells else 0 for number in place.head_numbers
        )

    @classmethod
    def completed(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with the number of summary cells."""
        if settings.get("summary_cells") is not None or "stride" not in settings:
            return dict(settings)
        return {**settings, "summary_cells": _quarter(settings["stride"])}

    @property
    def key(self) -> Hashable:
        """See `SparsePattern.key`."""
        return (super().key, self.summary_cells, self.cells_behind_H)

    def near(self, queries: Tensor, keys: Tensor) -> Tensor:
        """See `SparsePattern.near`."""
        return queries // self.stride == keys // self.stride

    def far(self, queries: Tensor, keys: Tensor, key_lengths_B: Tensor | None) -> Tensor:
        """See `SparsePattern.far`; equal for all queries."""
        first = self._first_cells(keys // self.stride, key_lengths_B)
        return ((keys >= first) & (keys < first + self.summary_cells))[:, :, None]

    def _first_cells(self, blocks: Tensor, key_lengths_B: Tensor | None) -> Tensor:
        """Return the position (B or 1, H or 1, ...) of the first summary cell of `blocks` (...).

        With lengths (in an encoder), the cells of an incomplete final block are its last real ones.
        """
        behind = self._cells_behind(blocks)
        first = blocks * self.stride + self.stride - self.summary_cells - behind
        if key_lengths_B is None:
            return first
        lengths = key_lengths_B.view(-1, 1, 1)
        final = (lengths - 1) // self.stride
        first_in_final = torch.maximum(lengths - self.summary_cells - behind, final * self.stride)
        return torch.where(blocks == final, first_in_final, first)

    def _cells_behind(self, blocks: Tensor) -> Tensor:
        """Return the number of positions after the summary cells in a block (1, H or 1, 1)."""
        if len(set(self.cells_behind_H)) == 1:
            return per_head(self.cells_behind_H[:1], torch.int64, blocks.device).view(1, 1, 1)
        return per_head(self.cells_behind_H, torch.int64, blocks.device).view(1, -1, 1)

    def n_slots(self, n_positions: int, causal: bool) -> int:
        """See `SparsePattern.n_slots`."""
        n_blocks = -(-n_positions // self.stride)
        return self.stride + any(self.far_H) * n_blocks * self.summary_cells

    def parts(self, n_positions: int, causal: bool, lengths_B: Tensor) -> list[Part]:
        """See `SparsePattern.parts`.

        Summary cells of the query's own block belong to the part for that block. Heads with only
        far keys have that part too, for the position of the query.
        """
        parts: list[Part] = [Neighbours(self.stride, 0, 0)]
        if any(self.far_H):
            cells = self._cells(-(-n_positions // self.stride), causal, lengths_B).flatten(2)
            parts.append(Gathered(cells.clamp(0, n_positions - 1), self.summary_cells))
        return parts

    def rule(self, n_positions: int, causal: bool, lengths_B: Tensor) -> Rule:
        """See `SparsePattern.rule`. Summary cells come first in the order of the keys."""
        positions = torch.arange(n_positions, device=lengths_B.device)
        near_H1 = per_head(self.near_H, torch.bool, positions.device)[:, None]
        labels_HN = torch.where(near_H1, positions // self.stride, positions)
        is_cell_BHN, is_complete_BHN = (
            head_mask(self.far(positions, positions, lengths), self.far_H)[:, :, 0]
            for lengths in (None if causal else lengths_B, None)
        )
        key_labels_BHN = labels_HN.masked_fill(is_cell_BHN, EVERY_QUERY)
        last_HN = ~is_complete_BHN[0].expand_as(labels_HN)
        key_order_HN = last_HN.int().argsort(dim=1, stable=True)
        order_HN = positions.expand_as(labels_HN)
        windows_H = torch.full_like(labels_HN[:, 0], NO_WINDOW, dtype=torch.int32)
        return Rule(windows_H, labels_HN, key_labels_BHN, order_HN, key_order_HN)

    def masks(self, causal: bool, blocks: Tensor, n_blocks: int, lengths_B: Tensor) -> list[Tensor]:
        """See `BlockLayout.masks`."""
        own = self._own_block(blocks, causal, lengths_B)
        if not any(self.far_H):
            return [own]
        return [own, self._summaries(blocks, n_blocks, causal, lengths_B)]

    def _cells(self, n_blocks: int, causal: bool, lengths_B: Tensor) -> Tensor:
        """Return the positions of the summary cells (B or 1, H or 1, blocks, C)."""
        blocks = torch.arange(n_blocks, device=lengths_B.device)
        first = self._first_cells(blocks, None if causal else lengths_B)
        return first[..., None] + torch.arange(self.summary_cells, device=blocks.device)

    def _summaries(self, blocks: Tensor, n_blocks: int, causal: bool, lengths_B: Tensor) -> Tensor:
        """Return the mask of the cells of other blocks (B, H, M, L, blocks of keys * C)."""
        of_keys = torch.arange(n_blocks, device=blocks.device)
        is_other_block = of_keys < blocks[:, None] if causal else of_keys != blocks[:, None]
        is_cell = self._cells(n_blocks, causal, lengths_B) < lengths_B.view(-1, 1, 1, 1)
        allowed = head_mask(is_other_block[:, :, None] & is_cell[:, :, None], self.far_H).flatten(3)
        return allowed[:, :, :, None].expand(-1, -1, -1, self.stride, -1)

    def _own_block(self, blocks: Tensor, causal: bool, lengths_B: Tensor) -> Tensor:
        """Return the mask of the query's own block (B, H, M, L, L)."""
        offsets = torch.arange(self.stride, device=lengths_B.device)
        positions = blocks[:, None] * self.stride + offsets
        allowed = (offsets[:, None] == offsets)[None, None, None]
        if any(self.near_H):
            allowed = allowed | head_mask(torch.ones_like(allowed), self.near_H)
        if any(self.far_H):
            flat = positions.flatten()
            cells = self.far(flat, flat, None if causal else lengths_B)
            in_block = cells.reshape(*cells.shape[:2], len(blocks), 1, self.stride)
            allowed = allowed | head_mask(in_block, self.far_H)
        if causal:
            allowed = allowed & (offsets <= offsets[:, None])
        return allowed & is_real(positions[:, None], lengths_B)


def _quarter(stride: int) -> int:
    return max(1, stride // 4)
