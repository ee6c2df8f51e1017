"""Softmax, the dense baseline (Vaswani et al. 2017, eq. 1)."""

from __future__ import annotations

from torch import Tensor

from headwise import entmax
from headwise.attention.fused import FusedNormaliser
from headwise.attention.parts import ScoreContext
from headwise.kernels.problem import Power


class Softmax(FusedNormaliser):
    """Every key gets weight."""

    power = Power.EXP

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Weights (B, H, Q, K)."""
        return entmax.softmax(scores_BHQK, dim=-1, mask=context.dense_mask(scores_BHQK))
