"""1.5-entmax in every head (Peters et al. 2019; the fixed row of Correia et al. 2019, table 1)."""

from __future__ import annotations

from torch import Tensor

from headwise import entmax
from headwise.attention.fused import FusedNormaliser
from headwise.attention.parts import ScoreContext
from headwise.kernels.problem import Power


class Entmax15(FusedNormaliser):
    """Sparse weights with a fixed α of 1.5."""

    power = Power.SQUARE

    def forward(self, scores_BHQK: Tensor, context: ScoreContext) -> Tensor:
        """Weights (B, H, Q, K) with exact zeros."""
        return entmax.entmax15(scores_BHQK, dim=-1, mask=context.dense_mask(scores_BHQK))
