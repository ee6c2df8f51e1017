"""The fixed pattern (Child et al. 2019, section 4): a block, and the summaries of all blocks.

Axes: B batch, H heads, N positions.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from headwise.attention.factorised import FactorisedPattern
from headwise.attention.place import Place
from headwise.errors import require
from headwise.ops.attention.pattern_rule import BLOCK, NO_WINDOW, POSITION, Rule, per_head


class Fixed(FactorisedPattern):
    """Keys of the query's block of `stride` positions, and the last cells of every block.

    A1_i = {j : floor(j/l) = floor(i/l)}, A2_i = {j : j mod l in {l-c, ..., l-1}}; in a causal
    decoder only j <= i of both sets. In an encoder the final block of a sentence may be too short
    to have these cells: then its last c real tokens are the summary cells.

    Args:
        place, stride, combine, heads, block_sparse_from: see `FactorisedPattern`; the far keys are
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
        return (super().key, self.summary_cells, self.cells_behind_H)

    def rule(self, n_positions: int, causal: bool, lengths_B: Tensor) -> Rule:
        """Return a query's block as its label, and the summary cells as keys for every query."""
        windows = (NO_WINDOW,) * len(self.near_H)
        labels = tuple(BLOCK if near else POSITION for near in self.near_H)
        if not any(self.far_H):
            return Rule(self.stride, windows, labels)
        positions = torch.arange(n_positions, device=lengths_B.device)
        first = self._first_cells(positions // self.stride, None if causal else lengths_B)
        is_cell_BHN = (positions >= first) & (positions < first + self.summary_cells)
        is_cell_BHN = is_cell_BHN & per_head(self.far_H, torch.bool, positions.device)[:, None]
        return Rule(self.stride, windows, labels, is_cell_BHN, self.summary_cells)

    def _first_cells(self, blocks_N: Tensor, lengths_B: Tensor | None) -> Tensor:
        """Return the position (B or 1, H or 1, N) of the first summary cell of `blocks_N`.

        With lengths (in an encoder), the cells of an incomplete final block are its last real ones.
        """
        behind = per_head(self.cells_behind_H, torch.int64, blocks_N.device)[:, None]
        first = blocks_N * self.stride + self.stride - self.summary_cells - behind
        if lengths_B is None:
            return first[None]
        lengths = lengths_B.view(-1, 1, 1)
        final = (lengths - 1) // self.stride
        first_in_final = torch.maximum(lengths - self.summary_cells - behind, final * self.stride)
        return torch.where(blocks_N == final, first_in_final, first)


def _quarter(stride: int) -> int:
    return max(1, stride // 4)
