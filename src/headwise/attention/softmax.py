"""Softmax, the dense baseline (Vaswani et al. 2017, eq. 1)."""

from __future__ import annotations

from torch import Tensor

from headwise import entmax
from headwise.attention.base import Normaliser, ScoreContext
from headwise.attention.fused import fused_attention
from headwise.entmax.native import Power


class Softmax(Normaliser):
    """Every key gets weight."""

    is_fused = True

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Weights (B, H, Q, K)."""
        return entmax.softmax(scores_BHQK, dim=-1, mask=context.dense_mask(scores_BHQK))

    def attend(
        self,
        query_BHQE: Tensor,
        key_BHKE: Tensor,
        value_BHKE: Tensor,
        context: ScoreContext,
        dropout: float,
    ) -> Tensor | None:
        """Context (B, H, Q, E)."""
        return fused_attention(query_BHQE, key_BHKE, value_BHKE, context, dropout, Power.EXP)
