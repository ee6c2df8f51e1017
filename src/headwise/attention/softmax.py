"""Softmax, the dense baseline (Vaswani et al. 2017, eq. 1)."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from headwise import entmax
from headwise.attention.base import Mask, Normaliser, ScoreContext


class Softmax(Normaliser):
    """Every key gets weight; without weights asked for, torch's fused kernel is used."""

    is_fused = True

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Weights (B, H, Q, K)."""
        return entmax.softmax(scores_BHQK, dim=-1, mask=context.dense_mask(scores_BHQK))

    def attend(
        self, query_BHQE: Tensor, key_BHKE: Tensor, value_BHKE: Tensor, mask: Mask, dropout: float
    ) -> Tensor:
        """Context (B, H, Q, E)."""
        if mask.is_plain_causal and query_BHQE.shape[2] == key_BHKE.shape[2]:
            return scaled_dot_product_attention(
                query_BHQE, key_BHKE, value_BHKE, dropout_p=dropout, is_causal=True
            )
        dense = mask.dense(query_BHQE.shape[2], key_BHKE.shape[2], query_BHQE.device)
        return scaled_dot_product_attention(
            query_BHQE, key_BHKE, value_BHKE, attn_mask=dense, dropout_p=dropout
        )
