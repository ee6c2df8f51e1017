"""1.5-entmax in every head (Peters et al. 2019; the fixed row of Correia et al. 2019, table 1)."""

from __future__ import annotations

from torch import Tensor

from headwise import entmax
from headwise.attention.base import Normaliser, ScoreContext
from headwise.attention.fused import fused_attention
from headwise.entmax.native import Power


class Entmax15(Normaliser):
    """Sparse weights with a fixed α of 1.5."""

    is_fused = True

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Weights (B, H, Q, K) with exact zeros."""
        return entmax.entmax15(scores_BHQK, dim=-1, mask=context.dense_mask(scores_BHQK))

    def attend(
        self,
        query_BHQE: Tensor,
        key_BHKE: Tensor,
        value_BHKE: Tensor,
        context: ScoreContext,
        dropout: float,
    ) -> Tensor | None:
        """Context (B, H, Q, E)."""
        return fused_attention(query_BHQE, key_BHKE, value_BHKE, context, dropout, Power.SQUARE)
