"""Sparsemax in every head (Martins and Astudillo 2016): α-entmax at α = 2."""

from __future__ import annotations

from torch import Tensor

from headwise import entmax
from headwise.attention.base import Normaliser, ScoreContext
from headwise.attention.fused import fused_attention
from headwise.entmax.native import Power


class Sparsemax(Normaliser):
    """The Euclidean projection of the scores onto the simplex."""

    is_fused = True

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Weights (B, H, Q, K) with exact zeros."""
        return entmax.sparsemax(scores_BHQK, dim=-1, mask=context.dense_mask(scores_BHQK))

    def attend(
        self,
        query_BHQE: Tensor,
        key_BHKE: Tensor,
        value_BHKE: Tensor,
        context: ScoreContext,
        dropout: float,
    ) -> Tensor | None:
        """Context (B, H, Q, E)."""
        return fused_attention(query_BHQE, key_BHKE, value_BHKE, context, dropout, Power.LINEAR)
